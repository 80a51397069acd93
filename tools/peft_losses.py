"""Compare the losses of a tiny GPT-2 with LoRA by examples/lora_block.py and by peft, in float64.

pip install peft torch transformers
python tools/peft_losses.py
"""

import tempfile
from pathlib import Path

import numpy as np
import peft
import torch
import transformers
from peft_adapter import merged, read_adapter, write_adapter, write_block

from npgpt import GPT

IDX, TARGETS = np.random.default_rng(0).integers(0, 11, (2, 3, 6))
SIZES = {"vocab_size": 11, "n_positions": 8, "n_embd": 12, "n_layer": 2, "n_head": 3}


def randomize(model, part):
    """Give random values to the parameters of torch's model whose names contain `part`."""
    generator = torch.Generator().manual_seed(len(part))
    for name, parameter in model.named_parameters():
        if part in name:
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)


def loss_of(model):
    """Return the loss of torch's model."""
    logits = model.double().eval()(torch.tensor(IDX)).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(TARGETS).flatten()
    ).item()


def compare(folder, base_folder, targets, alpha):
    """Print the losses with an adapter of peft, as each library reads the other's files."""
    base, again = (
        transformers.GPT2LMHeadModel.from_pretrained(base_folder, dtype=torch.float64)
        for _ in range(2)
    )
    lora = peft.LoraConfig(
        r=2, lora_alpha=alpha, target_modules=targets, fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    theirs = peft.get_peft_model(base, lora, autocast_adapter_dtype=False)
    randomize(theirs, ".lora_")
    theirs.save_pretrained(folder / "peft")
    block = write_block(folder / "peft", folder)
    ours = GPT.from_pretrained(base_folder, dtype="float64", block=block)
    read_adapter(folder / "peft", ours)
    (folder / "written").mkdir()
    write_adapter(ours, folder / "written")
    back = peft.PeftModel.from_pretrained(again, folder / "written", autocast_adapter_dtype=False)
    losses = {
        "peft": loss_of(theirs),
        "read by npgpt": ours(IDX, TARGETS)[1],
        "npgpt's read by peft": loss_of(back),
        "merged": merged(ours)(IDX, TARGETS)[1],
    }
    said = ", ".join(f"{name} {loss:.15f}" for name, loss in losses.items())
    difference = max(losses.values()) - min(losses.values())
    print(f"{targets}, r 2, alpha {alpha}: {said}, largest difference {difference:.1e}")
    assert difference < 1e-12 * losses["peft"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**SIZES, bos_token_id=1, eos_token_id=2)
        )
        randomize(model, "")
        model.double().save_pretrained(name)
        print(f"peft {peft.__version__}, without an adapter {loss_of(model):.15f}")
        for layers in (["c_attn", "c_proj"], ["c_attn"], ["mlp.c_proj"]):
            for alpha in (2, 4):
                with tempfile.TemporaryDirectory() as folder:
                    compare(Path(folder), name, layers, alpha)

"""Compare the losses of a tiny GPT-2 with LoRA, alpha = 2 r, by npgpt and by peft, in float64.

    pip install peft torch transformers
    python tools/peft_losses.py
"""

import tempfile
from pathlib import Path

import numpy as np
import peft
import torch
import transformers

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
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(TARGETS).flatten()).item()


def compare(folder, targets):
    """Print the losses with an adapter of peft for some layers, as each library reads the other's files."""
    base, again = (transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float64) for _ in range(2))
    lora = peft.LoraConfig(r=2, lora_alpha=4, target_modules=targets, fan_in_fan_out=True, task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(base, lora, autocast_adapter_dtype=False)
    randomize(theirs, ".lora_")
    theirs.save_pretrained(folder / "peft")
    ours = GPT.from_pretrained(folder, dtype="float64", adapter=folder / "peft")
    ours.save_adapter(folder / "npgpt")
    back = peft.PeftModel.from_pretrained(again, folder / "npgpt", autocast_adapter_dtype=False)
    losses = [loss_of(theirs), ours(IDX, TARGETS)[1], loss_of(back), ours.merged()(IDX, TARGETS)[1]]
    print(f"{targets}: peft {losses[0]:.15f}, read by npgpt {losses[1]:.15f}, npgpt's read by peft {losses[2]:.15f}, "
          f"merged {losses[3]:.15f}, largest difference {max(losses) - min(losses):.1e}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, bos_token_id=1, eos_token_id=2))
        randomize(model, "")
        model.double().save_pretrained(name)
        print(f"peft {peft.__version__}, without an adapter {loss_of(model):.15f}")
        for layers in (["c_attn", "c_proj"], ["c_attn"], ["mlp.c_proj"]):
            compare(Path(name), layers)

"""tools/peft_adapter.py against W + alpha / r (B A)^T by torch; tools/peft_losses.py compares with
peft.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from peft_adapter import main, merged, read_adapter, write_adapter, write_block
from safetensors.numpy import load_file, save_file

from npgpt import GPT, GPTConfig, load
from npgpt.data.tokenizers import TOKENIZER_FILE, CharTokenizer, save_tokenizer
from tests.cases import FROZEN, MODERN
from tests.helpers.models import SMALL, batch
from tests.helpers.runs import refused, refusing
from tests.torch_gpt import torch_gpt, torch_loss, torch_parameters, unit_scale

CONFIG = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 4,
    "bias": "none",
    "fan_in_fan_out": True,
    "lora_dropout": 0.1,
    "target_modules": ["c_attn", "c_proj"],
    "use_dora": False,
    "task_type": "CAUSAL_LM",
    "inference_mode": True,
}
WIDTHS = {"attn.c_attn": (12, 36), "attn.c_proj": (12, 12), "mlp.c_proj": (48, 12)}
PEFTS, FILE = "base_model.model.transformer.", "adapter_model.safetensors"


def write(folder, layers=tuple(WIDTHS), **fields):
    """Write a model and an adapter of some of its layers. Return both, by peft's names."""
    model, rng = GPT(GPTConfig(**SMALL), None, "float64"), np.random.default_rng(0)
    unit_scale(model.params)
    model.save_pretrained(folder)
    tensors = {}
    for name in (f"h.{i}.{layer}.lora" for i in range(2) for layer in layers):
        rows, columns = WIDTHS[name[4:-5]]
        tensors[f"{PEFTS}{name}_A.weight"] = rng.standard_normal((2, rows))
        tensors[f"{PEFTS}{name}_B.weight"] = rng.standard_normal((columns, 2))
    save_file(tensors, folder / FILE)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | fields))
    return model, tensors


def opened(folder, **options):
    """The model in a folder with the adapter there."""
    block = write_block(folder, folder)
    model = GPT.from_pretrained(folder, dtype="float64", block=block, freeze=FROZEN, **options)
    read_adapter(folder, model)
    return model


@pytest.mark.parametrize("targets", [["c_attn", "c_proj"], ["mlp.c_proj"]], ids=str)
@pytest.mark.parametrize("kernels", ["reference", "numpy"])
def test_the_loss_is_torchs(tmp_path, targets, kernels):
    layers = [layer for layer in WIDTHS if layer.endswith(tuple(targets))]
    model, tensors = write(tmp_path, layers, target_modules=targets)
    p, (idx, targets) = torch_parameters(model.params), batch(model.config)
    for name in [f"h.{i}.{layer}" for i in range(2) for layer in layers]:
        a, b = (tensors[f"{PEFTS}{name}.lora_{kind}.weight"] for kind in "AB")
        p[f"{name}.weight"].data += 4 / 2 * p[f"{name}.weight"].new_tensor((b @ a).T)
    loss = pytest.approx(torch_loss(torch_gpt(p, model.config, idx), targets).item(), rel=1e-12)
    ours = opened(tmp_path, kernels=kernels, threads=2)
    assert float(ours.loss_and_grads(idx, targets)[0]) == loss == merged(ours)(idx, targets)[1]


def test_what_is_written_is_what_was_read(tmp_path):
    _, tensors = write(tmp_path)
    (tmp_path / "again").mkdir()
    write_adapter(opened(tmp_path), tmp_path / "again")
    again = load_file(tmp_path / "again" / FILE)
    assert again.keys() == tensors.keys()
    for name, array in again.items():
        np.testing.assert_array_equal(array, tensors[name])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"use_dora": True}, '"use_dora" is '),
        ({"peft_type": "IA3"}, '"peft_type" is '),
        ({"target_modules": ["c_fc"]}, '"target_modules" must be a list of c_attn and c_proj'),
        ({"r": None}, '"r" must be a whole number'),
        ({"lora_alpha": -1}, '"lora_alpha" must be a finite number above 0'),
        ({"r": 3}, "has the shape .2, 12. instead of .3, 12."),
        ({"target_modules": ["c_attn"]}, "h.0.attn.c_proj.lora_[AB].weight is extra"),
        ({"layers": ["attn.c_attn"]}, "h.0.attn.c_proj.lora_A.weight is missing"),
    ],
)
def test_what_would_be_wrong_is_refused_in_one_line(tmp_path, fields, says):
    write(tmp_path, **fields)
    with refusing(f"adapter_.*{says}") as error:
        opened(tmp_path)
    assert "\n" not in str(error.value)


def test_the_command_reads_trains_writes_and_merges(tmp_path, npgpt, capsys):
    def run(*words):
        code = main([*map(str, words)])
        return code, *capsys.readouterr()

    model, tensors = write(tmp_path / "it")
    save_tokenizer(CharTokenizer("abcdefghijk"), tmp_path / "it" / TOKENIZER_FILE)
    Path("abc.txt").write_text("abcdefghijk" * 40)
    read = "read it --init-from it --out-dir read".split()
    code, _, err = run(*read)
    assert code == 0 and "drawn by lora_block.py" in err
    refused(run(*read), "already exists")
    block, idx = ["--block", "read/lora_block.py"], batch(model.config)[0]
    flags = "--init-from read --corpus abc.txt --crop-length 8 --max-iters 3 --warmup-iters 0"
    fast = "--lr-decay-iters 0 --learning-rate 0.01 --freeze".split()
    assert npgpt("train", *flags.split(), *block, *fast, FROZEN)[0] == 0
    for command, name in (("write", "written"), ("merge", "merged")):
        assert run(command, "out", *block, "--out-dir", name)[0] == 0
    tuned, plain = load("out", block=block[1])[0], load("merged")[0]
    np.testing.assert_allclose(plain.forward(idx)[0], tuned.forward(idx)[0], rtol=1e-4, atol=1e-5)
    for name, array in load_file(tmp_path / "written" / FILE).items():
        layer, kind = name.removeprefix(PEFTS).removesuffix(".weight").split(".lora_")
        ours = tuned.params[f"{layer}.lora_{kind.lower()}"]
        assert (array == ours.T).all() and not np.array_equal(array, tensors[name].astype("f"))
    fields = json.loads((tmp_path / "written/adapter_config.json").read_text())
    assert (fields["r"], fields["lora_alpha"]) == (2, 4) and fields.items() <= CONFIG.items()
    new = "--out-dir", "new"
    refused(run("read", "no", "--init-from", "it", *new), "adapter_config.json cannot be used")
    refused(run("merge", "no", *new), "no")
    refused(run("write", "out", "--block", MODERN, *new), "which is not modern_block.py")
    assert not Path("new").exists()

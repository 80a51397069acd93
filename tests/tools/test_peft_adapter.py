"""tools/peft_adapter.py against W + alpha / r (B A)^T by torch; tools/peft_losses.py compares with
peft.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from npgpt import GPT, GPTConfig, UserError, load
from npgpt.data.tokenizers import TOKENIZER_FILE, CharTokenizer, save_tokenizer
from tests.cases import FROZEN, MODERN
from tests.helpers.models import SMALL, batch
from tests.helpers.runs import refused
from tests.torch_gpt import torch_gpt, torch_loss, torch_parameters, unit_scale

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from peft_adapter import main, merged, read_adapter, write_adapter, write_block

CONFIG = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 4,
    "bias": "none",
    "fan_in_fan_out": True,
    "lora_dropout": 0.1,
    "target_modules": ["c_attn", "c_proj"],
    "use_dora": False,
    "rank_pattern": {},
    "inference_mode": True,
    "init_lora_weights": True,
    "peft_version": "0.21.2",
    "task_type": "CAUSAL_LM",
    "modules_to_save": None,
}
WIDTHS = {"attn.c_attn": (12, 36), "attn.c_proj": (12, 12), "mlp.c_proj": (48, 12)}
PEFTS, FILE = "base_model.model.transformer.", "adapter_model.safetensors"


def write(folder, layers=tuple(WIDTHS), extra=None, **fields):
    """Write a model and an adapter of some of its layers. Return both, the adapter by peft's names.
    """
    model, rng = GPT(GPTConfig(**SMALL), None, "float64"), np.random.default_rng(0)
    unit_scale(model.params)
    model.save_pretrained(folder)
    tensors = {
        f"{PEFTS}h.{i}.{layer}.lora_{kind}.weight": rng.standard_normal(
            (2, n) if kind == "A" else (n, 2)
        )
        for i in range(2)
        for layer in layers
        for kind, n in zip("AB", WIDTHS[layer], strict=True)
    }
    save_file(tensors | (extra or {}), folder / FILE)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | fields))
    return model, tensors


def opened(folder, **options):
    """The model in a folder with the adapter there."""
    block = write_block(folder, folder)
    model = GPT.from_pretrained(folder, dtype="float64", block=block, freeze=FROZEN, **options)
    read_adapter(folder, model)
    return model


@pytest.mark.parametrize("targets", [["c_attn", "c_proj"], ["c_attn"], ["mlp.c_proj"]], ids=str)
def test_the_loss_is_torchs_and_what_is_written_is_what_was_read(tmp_path, targets):
    layers = [layer for layer in WIDTHS if layer.endswith(tuple(targets))]
    model, tensors = write(tmp_path, layers, target_modules=targets)
    p, (idx, targets) = torch_parameters(model.params), batch(model.config)
    for name in [f"h.{i}.{layer}" for i in range(2) for layer in layers]:
        a, b = (tensors[f"{PEFTS}{name}.lora_{kind}.weight"] for kind in "AB")
        p[f"{name}.weight"].data += 4 / 2 * p[f"{name}.weight"].new_tensor((b @ a).T)
    loss = pytest.approx(torch_loss(torch_gpt(p, model.config, idx), targets).item(), rel=1e-12)
    for kernels in ("reference", "numpy", "numba", "xla"):
        ours = opened(tmp_path, kernels=kernels, threads=2)
        assert float(ours.loss_and_grads(idx, targets)[0]) == loss == merged(ours)(idx, targets)[1]
    (tmp_path / "again").mkdir()
    write_adapter(ours, tmp_path / "again")
    again = load_file(tmp_path / "again" / FILE)
    assert tensors.keys() <= again.keys() and len(again) == 12
    assert all(np.array_equal(array, tensors.get(name, 0 * array)) for name, array in again.items()
               if name in tensors or ".lora_B" in name)
    assert (
        json.loads((tmp_path / "again/adapter_config.json").read_text()).items() <= CONFIG.items()
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"use_dora": True}, '"use_dora" is '),
        ({"peft_type": "IA3"}, '"peft_type" is '),
        (
            {"target_modules": ["c_attn", "c_fc"]},
            '"target_modules" must be a list of c_attn and c_proj',
        ),
        ({"r": None}, '"r" must be a whole number'),
        ({"lora_alpha": -1}, '"lora_alpha" must be a finite number above 0'),
        ({"lora_alpha": None}, '"lora_alpha" must be a finite number above 0'),
        ({"r": 3}, "has the shape .2, 12. instead of .3, 12."),
        ({"r": 0}, '"r" must be a whole number'),
        ({"target_modules": ["c_attn"]}, "h.0.attn.c_proj.lora_[AB].weight is extra"),
        ({"layers": ["attn.c_attn"]}, "h.0.attn.c_proj.lora_A.weight is missing"),
    ],
)
def test_what_would_be_wrong_is_refused_in_one_line(tmp_path, fields, says):
    write(tmp_path, **fields)
    with pytest.raises(UserError, match=f"adapter_.*{says}") as error:
        opened(tmp_path)
    assert "\n" not in str(error.value)


def test_the_command_reads_trains_writes_and_merges(tmp_path, npgpt, text_file, capsys):
    model, tensors = write(tmp_path / "it")
    save_tokenizer(CharTokenizer("abcdefghijk"), tmp_path / "it" / TOKENIZER_FILE)
    Path("abc.txt").write_text("abcdefghijk" * 40)
    assert main(["read", "it", "--init-from", "it", "--out-dir", "read"]) == 0
    block, idx = ["--block", "read/lora_block.py"], batch(model.config)[0]
    assert "drawn by lora_block.py" in errors(capsys)
    refused(
        (main(["read", "it", "--init-from", "it", "--out-dir", "read"]), "", errors(capsys)),
        "already exists",
    )
    assert (
        npgpt(
            "train",
            "--init-from",
            "read",
            *block,
            "--freeze",
            FROZEN,
            "--corpus",
            "abc.txt",
            "--crop-length",
            8,
            "--max-iters",
            3,
            "--warmup-iters",
            0,
            "--lr-decay-iters",
            0,
            "--learning-rate",
            0.01,
        )[0]
        == 0
    )
    for command, name in (("write", "written"), ("merge", "merged")):
        assert main([command, "out", *block, "--out-dir", name]) == 0
    tuned, plain = load("out", block=block[1])[0], load("merged")[0]
    np.testing.assert_allclose(plain.forward(idx)[0], tuned.forward(idx)[0], rtol=1e-4, atol=1e-5)
    for name, array in load_file(tmp_path / "written" / FILE).items():
        layer, kind = name.removeprefix(PEFTS).removesuffix(".weight").split(".lora_")
        ours = tuned.params[f"{layer}.lora_{kind.lower()}"]
        assert (array == ours.T).all() and not np.array_equal(array, tensors[name].astype("f"))
    fields = json.loads((tmp_path / "written/adapter_config.json").read_text())
    assert (fields["r"], fields["lora_alpha"]) == (2, 4)
    capsys.readouterr()
    for command, says in (
        (["read", "no", "--init-from", "it"], "adapter_config.json cannot be used"),
        (["merge", "no"], "no"),
        (["write", "out", "--block", MODERN], "'lora_block.py', which is not modern_block.py"),
    ):
        refused((main([*map(str, command), "--out-dir", "new"]), "", errors(capsys)), says)
        assert not Path("new").exists()


def errors(capsys):
    return capsys.readouterr().err

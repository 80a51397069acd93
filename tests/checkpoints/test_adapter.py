"""Adapters as peft writes them, against W + alpha / r (B A)^T by torch; tools/peft_losses.py compares with peft."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from npgpt import GPT, GPTConfig, UserError
from tests.helpers.models import SMALL, batch
from tests.torch_gpt import torch_gpt, torch_loss, torch_parameters, unit_scale

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "fan_in_fan_out": True, "lora_dropout": 0.1,
          "target_modules": ["c_attn", "c_proj"], "use_dora": False, "rank_pattern": {}, "inference_mode": True,
          "init_lora_weights": True, "peft_version": "0.21.2", "task_type": "CAUSAL_LM", "modules_to_save": None}
WIDTHS = {"attn.c_attn": (12, 36), "attn.c_proj": (12, 12), "mlp.c_proj": (48, 12)}
PEFTS, FILE = "base_model.model.transformer.", "adapter_model.safetensors"


def write(folder, layers=tuple(WIDTHS), extra=None, **fields):
    """Write a model and an adapter of some of its layers. Return both, the adapter by peft's names."""
    model, rng = GPT(GPTConfig(**SMALL), None, "float64"), np.random.default_rng(0)
    unit_scale(model.params)
    model.save_pretrained(folder)
    tensors = {f"{PEFTS}h.{i}.{layer}.lora_{kind}.weight": rng.standard_normal((2, n) if kind == "A" else (n, 2))
               for i in range(2) for layer in layers for kind, n in zip("AB", WIDTHS[layer], strict=True)}
    save_file(tensors | (extra or {}), folder / FILE)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | fields))
    return model, tensors


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
        ours = GPT.from_pretrained(tmp_path, dtype="float64", adapter=tmp_path, kernels=kernels, threads=2)
        assert float(ours.loss_and_grads(idx, targets)[0]) == loss == ours.merged()(idx, targets)[1]
    ours.save_adapter(tmp_path / "again")
    again = load_file(tmp_path / "again" / FILE)
    assert tensors.keys() <= again.keys() and len(again) == 12
    assert all(np.array_equal(array, tensors.get(name, 0 * array)) for name, array in again.items()
               if name in tensors or ".lora_B" in name)
    assert json.loads((tmp_path / "again/adapter_config.json").read_text()).items() <= CONFIG.items()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"use_dora": True}, '"use_dora" is '),
        ({"peft_type": "IA3"}, '"peft_type" is '),
        (
            {"target_modules": ["c_attn", "c_fc"]},
            '"target_modules" must be a list of c_attn and c_proj',
        ),
        ({"r": None}, "lora_.* must be"),
        ({"lora_alpha": -1}, "lora_.* must be"),
        ({"r": 3}, "has the shape .2, 12. instead of .3, 12."),
        ({"r": 0}, "is extra"),
        ({"layers": ["attn.c_attn"]}, "h.0.attn.c_proj.lora_A.weight is missing"),
    ],
)
def test_what_would_be_wrong_is_refused_in_one_line(tmp_path, fields, says):
    write(tmp_path, **fields)
    with pytest.raises(UserError, match=f"adapter_.*{says}") as error:
        GPT.from_pretrained(tmp_path, adapter=tmp_path)
    assert "\n" not in str(error.value)


def test_an_adapter_that_is_missing_or_comes_with_a_rank(tmp_path):
    write(tmp_path)
    for options, says in (
        ({"adapter": tmp_path / "no"}, "adapter_config.json"),
        ({"lora_alpha": 2}, "rank must be"),
        ({"adapter": tmp_path, "lora_rank": 2}, "leave lora_"),
    ):
        with pytest.raises(UserError, match=says):
            GPT.from_pretrained(tmp_path, **options)

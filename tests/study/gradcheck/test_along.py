"""Gradients of blocks and models along directions: planted mistakes are found and named."""

from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.model.block import GPT2, read_block
from npgpt.model.tree import flatten, nest
from npgpt.study import check_block, check_grads
from tests.cases import FROZEN, LORA, MODERN, SMALL, VARIANTS, T, V
from tests.engine.test_activations import IDX, TARGETS
from tests.helpers.runs import refusing
from tests.torch_gpt import unit_scale

INPUT = "x, the input"


@pytest.mark.parametrize("block", [GPT2, MODERN, LORA], ids=["gpt2", "modern", "lora"])
def test_right_blocks_are_right(block, capsys):
    found = check_block(block, seed=0)
    assert capsys.readouterr().out == f"{found}\n"
    assert found.right and not found.wrong and not found.remarks and "WRONG" not in repr(found)
    assert found.errors.keys() == read_block(block).parameters(GPTConfig()).keys() | {INPUT}
    for name, error in found.errors.items():
        frozen = block == LORA and name.endswith(("weight", "bias"))
        assert error is None if frozen else error <= 1e-7
    assert ("no gradient: must be frozen" in repr(found)) == (block == LORA)
    small = GPTConfig(**SMALL | {"n_embd": 12, "n_head": 3, "n_layer": 1})
    assert check_block(block, small, seed=1).right


def planted(mistake, base=GPT2):
    """Return an object, a block whose backward runs the line `mistake` on its `grads`."""
    block, code = read_block(base), compile(mistake, "mistake", "exec")

    def forward(x, p, config, layer, mask, *others):
        x_out, cache = block.forward(x, p, config, layer, mask, *others)
        return x_out, (cache, {"np": np, "config": config, "layer": layer, "mask": mask})

    def backward(dx_out, cache, ops):
        dx, dp = block.backward(dx_out, cache[0], ops)
        grads = {INPUT: dx.copy(), **flatten(dp)}
        exec(code, cache[1] | {"grads": grads})
        dx = grads.pop(INPUT)
        return dx, nest(grads)

    return SimpleNamespace(parameters=block.parameters, forward=forward, backward=backward)


ONE_HEAD = 'grads["attn.c_attn.weight"][:, config.head_size : 2 * config.head_size] *= 2.0'
# the gradients that are wrong | the largest error that may be measured | where alone | the mistake
MISTAKES = f"""
attn.c_proj.weight | 2 | | grads["attn.c_proj.weight"] = grads["attn.c_proj.weight"].T.copy()
mlp.c_fc.weight | 1e-2 | | grads["mlp.c_fc.weight"][3, 5] *= 1.01
ln_2.bias | 2 | | if "ln_2.bias" in grads: grads["ln_2.bias"] *= 2 / 3
attn.c_attn.weight | 2 | | {ONE_HEAD}
mlp.c_proj.weight | 2 | | grads["mlp.c_proj.weight"] *= config.n_embd / config.mlp_width
ln_1.weight | 0.1 | with a mask and dropout | \
if mask is not None and mask.ndim == 4: grads["ln_1.weight"] += 1e-3
mlp.c_proj.weight | 2 | without biases, not causal | \
if not config.bias: grads["mlp.c_proj.weight"] *= -1.0
ln_1.weight | 2 | | if layer == 0: grads["ln_1.weight"] *= 0.0
{INPUT} | 2 | | grads["{INPUT}"][0, 0, 0] = np.nan
ln_2.weight | 2 | | grads["ln_2.weight"][3] = np.inf
ln_1.weight; ln_2.weight | 2 | | \
grads["ln_1.weight"], grads["ln_2.weight"] = grads["ln_2.weight"], grads["ln_1.weight"]
{INPUT} | 1e-2 | | grads["{INPUT}"][:, -1] += 1e-4 * grads["{INPUT}"][:, 0]
"""


@pytest.mark.parametrize("row", MISTAKES.strip().split("\n"))
def test_a_mistake_is_found_and_named(row):
    names, most, case, mistake = map(str.strip, row.split("|", 3))
    named = names.split("; ")
    for seed in range(2):
        found = check_block(planted(mistake), seed=seed)
        assert not found.right and [*found.wrong] == named
        assert found.wrong[named[0]] == case
        lines = [line for line in repr(found).splitlines() if f"WRONG {case}".strip() in line]
        assert [line.split("  ")[1] for line in lines] == named
        assert all(1e-7 < found.errors[each] < float(most) for each in named)


def test_a_block_without_a_mistake_is_right():
    assert check_block(planted("pass")).right


def test_what_a_block_cannot_do_is_said_or_raised():
    def forward(x, p, config, *others):
        if not config.bias:
            raise ValueError("biases only")
        return GPT2.forward(x, p, config, *others)

    block = SimpleNamespace(parameters=GPT2.parameters, forward=forward, backward=GPT2.backward)
    found = check_block(block)
    assert found.right and found.remarks[0] in repr(found)
    [remark] = found.remarks
    assert remark.startswith("not checked without biases, not causal: ")
    assert "biases only" in remark
    with refusing("biases only"):
        check_block(block, GPTConfig(bias=False))
    block.backward = lambda dx_out, cache, ops: (dx_out[0], {})
    with refusing(r"dx of .* must be an array \(2, 3, 24\)"):
        check_block(block)


# ReLU, whose kinks spoil some differences, and a mean over all texts
KINKED = """
import numpy as np
def parameters(config):
    C, F = config.n_embd, config.mlp_width
    return {"c_fc.weight": ((C, F), "linear"), "c_proj.weight": ((F, C), "residual")}
def forward(x, p, config, layer, mask, dropout_masks, ops, positions, distances):
    hidden, c_fc = ops.linear_forward(x, **p["c_fc"])
    place = (0.1 * positions[..., None] + distances.mean()).astype(x.dtype)
    active = np.maximum(hidden, 0.0) - np.maximum(hidden, 0.0).mean(axis=(0, 1)) + place
    y, c_proj = ops.linear_forward(active, **p["c_proj"])
    return x + y, (c_fc, hidden, c_proj)
def backward(dx_out, cache, ops):
    c_fc, hidden, c_proj = cache
    dactive, dc_proj, _ = ops.linear_backward(dx_out, c_proj)
    dhidden = (dactive - dactive.mean(axis=(0, 1))) * (hidden > 0.0)
    dx, dc_fc, _ = ops.linear_backward(dhidden, c_fc)
    return dx_out + dx, {"c_fc": {"weight": dc_fc}, "c_proj": {"weight": dc_proj}}
"""


def test_kinks_mixed_texts_and_places_are_no_mistakes(tmp_path):
    (tmp_path / "kinked.py").write_text(KINKED)
    block = read_block(tmp_path / "kinked.py")
    assert all(check_block(block, seed=seed).right for seed in range(10))
    model = GPT(GPTConfig(**SMALL), block=block, kernels="numpy")
    assert check_grads(model, IDX, TARGETS).right


@pytest.mark.parametrize("fields", [{}, *VARIANTS])
def test_right_models_are_right(fields, capsys):
    options = {"kernels": "reference", "dtype": "float64"} if fields else {"threads": 2}
    model = GPT(GPTConfig(**SMALL | fields, dropout=0.1), **options)
    mask = np.where(np.tri(T, dtype=bool) | (np.arange(T) < 2), 0.0, -np.inf)
    for each in (None, mask, np.arange(T) < [[5], [2], [4]]):
        before = model.params.flat.copy()
        found = check_grads(model, IDX, TARGETS, mask=each)
        assert found.right and found.errors.keys() == model.params.keys()
        np.testing.assert_array_equal(model.params.flat, before)
        unit_scale(model.params, 4)
    assert capsys.readouterr().out.splitlines()[0] == "gradient of                  off by  verdict"


@pytest.mark.parametrize(
    ("block", "freeze"), [(LORA, FROZEN), (MODERN, "wte,h.0"), (GPT2, "*.bias")]
)
def test_frozen_and_own_blocks_models(block, freeze):
    config = GPTConfig(**SMALL | {"n_embd": 4 * SMALL["n_head"]})
    model = GPT(config, block=block, freeze=freeze, dtype="float64")
    unit_scale(model.params)
    found = check_grads(model, IDX, TARGETS)
    assert found.right and found.errors.keys() == model.params.trained.keys()


@pytest.mark.parametrize("way", ["loss_and_grads", "backward"])
@pytest.mark.parametrize("factor", [1.01, np.nan])
def test_a_mistake_in_only_one_of_both_ways_is_caught(monkeypatch, way, factor):
    def spoiled(*arguments, **named):
        result = run(*arguments, **named)
        grads = result[1] if isinstance(result, tuple) else result
        grads["h.1.mlp.c_fc.bias"][1] *= factor
        return result

    run = getattr(GPT, way)
    monkeypatch.setattr(GPT, way, spoiled)
    model = GPT(GPTConfig(**SMALL), dtype="float64")
    assert [*check_grads(model, IDX, TARGETS).wrong] == ["h.1.mlp.c_fc.bias"]


def test_a_model_with_a_mistake_in_its_block():
    found = check_grads(GPT(GPTConfig(**SMALL), block=planted(ONE_HEAD)), IDX, TARGETS)
    assert {*found.wrong} >= {"h.0.attn.c_attn.weight", "h.1.attn.c_attn.weight"}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda model: check_block(GPT2, {"n_embd": 8}), "config must be a GPTConfig"),
        (lambda model: check_block(GPT2, seed=-1), "seed must be"),
        (lambda model: check_block(None), "block must be a file, a module or an object"),
        (lambda model: check_block(SimpleNamespace()), "has no function"),
        (lambda model: check_grads(GPTConfig(), IDX, TARGETS), "model must be a GPT"),
        (lambda model: check_grads(model, IDX, TARGETS, seed="a"), "seed must be"),
        (lambda model: check_grads(model, IDX, 0 * TARGETS + V), "targets must be from 0"),
        (lambda model: check_grads(model, IDX, TARGETS, mask=np.ones(3)), "mask must be"),
    ],
)
def test_bad_arguments_are_one_line(call, says):
    with refusing(says):
        call(GPT(GPTConfig(**SMALL)))

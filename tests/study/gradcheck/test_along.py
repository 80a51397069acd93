"""Gradients of blocks and models along directions: planted mistakes are found and named."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError, layers
from npgpt.model.block import GPT2, read_block
from npgpt.model.tree import flatten, nest
from npgpt.study import check_block, check_grads
from tests.cases import FROZEN, LORA, MODERN, SMALL, VARIANTS, C, T, V
from tests.engine.test_activations import IDX, TARGETS
from tests.torch_gpt import unit_scale

INPUT = "x, the input"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block", [GPT2, MODERN, LORA], ids=["gpt2", "modern", "lora"])
def test_right_blocks_are_right(block, seed, capsys):
    found = check_block(block, seed=seed)
    assert capsys.readouterr().out == f"{found}\n"
    assert found.right and not found.wrong and not found.remarks and "WRONG" not in repr(found)
    assert found.errors.keys() == read_block(block).parameters(GPTConfig()).keys() | {INPUT}
    for name, error in found.errors.items():
        frozen = block == LORA and name.endswith(("weight", "bias"))
        assert error is None if frozen else error <= 1e-7
    assert ("no gradient: must be frozen" in repr(found)) == (block == LORA)
    assert check_block(
        block, GPTConfig(**SMALL | {"n_embd": 12, "n_head": 3, "n_layer": 1}), seed
    ).right


def planted(mistake, base=GPT2):
    """Return an object, a block whose backward makes a mistake in its gradients."""
    block = read_block(base)

    def forward(x, p, config, *others):
        x_out, cache = block.forward(x, p, config, *others)
        return x_out, (cache, config, others[1])

    def backward(dx_out, cache, ops):
        dx, dp = block.backward(dx_out, cache[0], ops)
        grads = {INPUT: dx.copy(), **flatten(dp)}
        mistake(grads, *cache[1:])
        dx = grads.pop(INPUT)
        return dx, nest(grads)

    return SimpleNamespace(parameters=block.parameters, forward=forward, backward=backward)


def transposed(grads, config, mask):
    weight = grads["attn.c_proj.weight"]
    weight[:] = weight.T.copy()


def one_entry(grads, config, mask):
    grads["mlp.c_fc.weight"][3, 5] *= 1.01


def missing_term(grads, config, mask):
    if "ln_2.bias" in grads:
        grads["ln_2.bias"] *= 2 / 3  # as if one text were left out


def one_head(grads, config, mask):
    D = config.head_size
    grads["attn.c_attn.weight"][:, D : 2 * D] *= 2.0


def wrong_sizes(grads, config, mask):
    if config.n_embd != config.mlp_width:
        grads["mlp.c_proj.weight"] *= config.n_embd / config.mlp_width


def with_a_mask(grads, config, mask):
    if mask is not None and mask.ndim == 4:
        grads["ln_1.weight"] += 1e-3


def without_biases(grads, config, mask):
    if not config.bias:
        grads["mlp.c_proj.weight"] *= -1.0


def zero(grads, config, mask):
    grads["ln_1.weight"] *= 0.0


def nan(grads, config, mask):
    grads[INPUT][0, 0, 0] = np.nan


def infinite(grads, config, mask):
    grads["ln_2.weight"][3] = np.inf


def swapped(grads, config, mask):
    one, other = grads["ln_1.weight"].copy(), grads["ln_2.weight"].copy()
    grads["ln_1.weight"][:], grads["ln_2.weight"][:] = other, one


def later_position(grads, config, mask):
    grads[INPUT][:, -1] += 1e-4 * grads[INPUT][:, 0]


MISTAKES = {
    transposed: "attn.c_proj.weight",
    one_entry: "mlp.c_fc.weight",
    missing_term: "ln_2.bias",
    one_head: "attn.c_attn.weight",
    wrong_sizes: "mlp.c_proj.weight",
    with_a_mask: "ln_1.weight",
    without_biases: "mlp.c_proj.weight",
    zero: "ln_1.weight",
    nan: INPUT,
    infinite: "ln_2.weight",
    swapped: "ln_1.weight ln_2.weight",
    later_position: INPUT,
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found_and_named(mistake):
    name = MISTAKES[mistake]
    named = name.split() if mistake is swapped else [name]
    for seed in range(3):
        found = check_block(planted(mistake), seed=seed)
        assert not found.right and [*found.wrong] == named
        case = {
            with_a_mask: "with a mask and dropout",
            without_biases: "without biases, not causal",
        }.get(mistake, "")
        assert found.wrong[named[0]] == case and f"WRONG {case}".strip() in repr(found)
        assert [
            line.split("  ")[1] for line in repr(found).splitlines() if "WRONG" in line
        ] == named
        small = {one_entry: 1e-2, with_a_mask: 0.1, later_position: 1e-2}.get(mistake, 2.0)
        assert all(1e-7 < found.errors[each] < small for each in named)
    assert check_block(planted(lambda *_: None)).right


def test_a_mistake_in_the_first_block_alone_is_found():
    block = read_block(GPT2)

    def forward(x, p, config, layer, *others):
        x_out, cache = block.forward(x, p, config, layer, *others)
        return x_out, (cache, layer)

    def backward(dx_out, cache, ops):
        dx, dp = block.backward(dx_out, cache[0], ops)
        dp["ln_1"]["weight"] *= 1.0 + (cache[1] == 0)
        return dx, dp

    wrong = SimpleNamespace(parameters=block.parameters, forward=forward, backward=backward)
    assert [*check_block(wrong).wrong] == ["ln_1.weight"]


@pytest.mark.parametrize(("call", "says"), [
    (lambda: check_block(GPT2, {"n_embd": 8}), "config must be a GPTConfig"),
    (lambda: check_block(GPT2, seed=-1), "seed must be"),
    (lambda: check_grads(GPTConfig(), IDX, TARGETS), "model must be a GPT"),
    (lambda: check_grads(GPT(GPTConfig(**SMALL)), IDX, TARGETS, seed="a"), "seed must be"),
])
def test_arguments_of_another_kind_are_one_line(call, says):
    with pytest.raises(UserError, match=says):
        call()


def test_what_a_block_cannot_do_is_said_or_raised():
    def forward(x, p, config, *others):
        if not config.bias:
            raise ValueError("biases only")
        return GPT2.forward(x, p, config, *others)

    block = SimpleNamespace(parameters=GPT2.parameters, forward=forward, backward=GPT2.backward)
    found = check_block(block)
    assert found.right and len(found.remarks) == 1 and found.remarks[0] in repr(found)
    assert (
        found.remarks[0].startswith("not checked without biases, not causal: ")
        and "biases only" in found.remarks[0]
    )
    with pytest.raises(UserError, match="biases only"):
        check_block(block, GPTConfig(bias=False))
    block.backward = lambda dx_out, cache, ops: (dx_out[0], {})
    with pytest.raises(UserError, match=r"dx of .* must be an array \(2, 3, 24\)"):
        check_block(block)
    with pytest.raises(UserError, match="block must be a file, a module or an object"):
        check_block(None)
    with pytest.raises(UserError, match="has no function backward"):
        check_block(SimpleNamespace(parameters=GPT2.parameters, forward=forward))


class Kinked:
    """ReLU, whose kinks spoil some differences, and a mean over all texts."""

    @staticmethod
    def parameters(config):
        C, F = config.n_embd, config.mlp_width
        return {"c_fc.weight": ((C, F), "linear"), "c_proj.weight": ((F, C), "residual")}

    @staticmethod
    def forward(x, p, config, layer, mask, dropout_masks, ops, positions, distances):
        hidden, c_fc = ops.linear_forward(x, **p["c_fc"])
        place = (0.1 * positions[..., None] + distances.mean()).astype(x.dtype)
        active = np.maximum(hidden, 0.0) - active_mean(hidden) + place
        y, c_proj = ops.linear_forward(active, **p["c_proj"])
        return x + y, (c_fc, hidden, c_proj)

    @staticmethod
    def backward(dx_out, cache, ops):
        c_fc, hidden, c_proj = cache
        dactive, dc_proj, _ = ops.linear_backward(dx_out, c_proj)
        dhidden = (dactive - dactive.mean(axis=(0, 1))) * (hidden > 0.0)
        dx, dc_fc, _ = ops.linear_backward(dhidden, c_fc)
        return dx_out + dx, {"c_fc": {"weight": dc_fc}, "c_proj": {"weight": dc_proj}}


def active_mean(hidden):
    return np.maximum(hidden, 0.0).mean(axis=(0, 1))


def test_kinks_mixed_texts_and_places_are_no_mistakes():
    assert all(check_block(Kinked, seed=seed).right for seed in range(20))
    model = GPT(GPTConfig(**SMALL), block=Kinked, kernels="numpy")
    assert check_grads(model, IDX, TARGETS).right


@pytest.mark.parametrize("fields", [{}, *VARIANTS])
@pytest.mark.parametrize(("dtype", "kernels"), [("float32", "auto"), ("float64", "reference")])
def test_right_models_are_right(fields, dtype, kernels, capsys):
    model = GPT(GPTConfig(**SMALL | fields, dropout=0.1), dtype=dtype, kernels=kernels, threads=2)
    mask = np.where(np.tri(T, dtype=bool) | (np.arange(T) < 2), 0.0, -np.inf)
    for each in (None, mask, np.arange(T) < [[5], [2], [4]]):
        before = model.params.flat.copy()
        found = check_grads(model, IDX, TARGETS, mask=each)
        assert (
            found.right
            and found.errors.keys() == model.params.keys()
            and (model.params.flat == before).all()
        )
        unit_scale(model.params, 4)
    assert capsys.readouterr().out.splitlines()[0] == "gradient of                  off by  verdict"


def test_frozen_and_own_blocks_models():
    for block, freeze in ((LORA, FROZEN), (MODERN, "wte,h.0"), (GPT2, "*.bias")):
        model = GPT(
            GPTConfig(**SMALL | {"n_embd": 4 * SMALL["n_head"]}),
            block=block,
            freeze=freeze,
            dtype="float64",
        )
        unit_scale(model.params)
        found = check_grads(model, IDX, TARGETS)
        assert found.right and found.errors.keys() == model.params.trained.keys()


def test_an_edited_layer_is_caught(monkeypatch):
    def layernorm_backward(dy, cache):
        dx, dweight, dbias = right(dy, cache)
        dweight[2] *= 1.01
        return dx, dweight, dbias

    right = layers.layernorm_backward
    monkeypatch.setattr(layers, "layernorm_backward", layernorm_backward)
    model = GPT(GPTConfig(**SMALL), kernels="reference")
    found = check_grads(model, IDX, TARGETS)
    assert {*found.wrong} == {
        name for name in model.params if "ln_" in name and name.endswith("weight")
    }


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


def test_models_with_planted_mistakes_and_bad_arguments():
    config = GPTConfig(**SMALL)
    found = check_grads(GPT(config, block=planted(one_head)), IDX, TARGETS)
    assert {*found.wrong} >= {"h.0.attn.c_attn.weight", "h.1.attn.c_attn.weight"}
    model = GPT(dataclasses.replace(config, n_embd=C))
    with pytest.raises(UserError, match="targets must be from 0"):
        check_grads(model, IDX, np.full_like(TARGETS, V))
    with pytest.raises(UserError, match="mask must be"):
        check_grads(model, IDX, TARGETS, mask=np.ones(3))

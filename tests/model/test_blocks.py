"""Blocks of one's own: tools/examples/modern_block.py against torch and on each engine, and files that are wrong."""

import dataclasses
import functools
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, UserError, load
from npgpt.engine import sources
from npgpt.engine.reference import ReferenceEngine
from npgpt.engine.trial import mixes_texts, validate
from npgpt.errors import say_once
from npgpt.model.block import GPT2, read_block
from npgpt.model.transformer import block_backward, block_forward, block_parameters
from tests import strict_cupy
from tests.cases import CPU_KERNELS, MODERN, SMALL, B, C, T, V, small_parts, train_step
from tests.helpers.runs import refused
from tests.torch_gpt import assert_equal, torch_loss, torch_parameters, unit_scale

CONFIG = GPTConfig(**{**SMALL, "n_head": 2, "bias": False}, block=read_block(MODERN))       # an even head size
IDX, TARGETS = np.random.default_rng(0).integers(0, V, (2, B, T))
KERNELS = ["reference", *CPU_KERNELS, pytest.param("xla", marks=pytest.mark.slow)]


def model_of(block=MODERN, kernels="reference", dtype="float64", **named):
    return GPT(CONFIG, 0, dtype, threads=2, kernels=kernels, block=block, **named)


def edited(tmp_path, old, new):
    """The path of modern_block.py with other code."""
    assert old in (code := MODERN.read_text())
    (tmp_path / MODERN.name).write_text(code.replace(old, new))
    return tmp_path / MODERN.name


def by_torch(params):
    """Return logits, loss and parameters by torch's own functions; positions are turned as complex numbers."""
    import torch

    p, functional = torch_parameters(params), torch.nn.functional
    D = C // 2
    position, part = torch.arange(T).double()[:, None], torch.arange(D // 2).double() / (D // 2)
    angles = position * 10000.0 ** -part                                    # (T, D / 2)
    turns = torch.polar(torch.ones_like(angles), angles)

    def turned(q):
        both = torch.view_as_real(torch.complex(*q.chunk(2, -1)) * turns)
        return both.transpose(-1, -2).flatten(-2)

    x = p["wte.weight"][torch.tensor(IDX)] + p["wpe.weight"][:T]
    for i in range(2):
        w = {name.split(".")[2]: p[name] for name in p if name.startswith(f"h.{i}.")}
        qkv = functional.rms_norm(x, (C,), w["norm_1"], 1e-5) @ w["c_attn"]
        q, k, v = qkv.unflatten(2, (3, 2, D)).permute(2, 0, 3, 1, 4)
        mix = functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + mix.transpose(1, 2).flatten(2) @ w["c_proj"]
        normed = functional.rms_norm(x, (C,), w["norm_2"], 1e-5)
        x = x + (functional.silu(normed @ w["c_gate"]) * (normed @ w["c_up"])) @ w["c_down"]
    logits = functional.layer_norm(x, (C,), p["ln_f.weight"]) @ p["wte.weight"].T
    (loss := torch_loss(logits, TARGETS)).backward()
    return logits, loss, p


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_modern_block_is_torchs(kernels):
    model = model_of(kernels=kernels)
    unit_scale(model.params)
    logits, loss, p = by_torch(model.params)
    found, grads = model.loss_and_grads(IDX, TARGETS)
    assert_equal(model.forward(IDX, TARGETS)[0], logits)
    assert found == pytest.approx(loss.item(), rel=1e-12)
    for each in (grads, model.backward()):
        assert each.keys() == p.keys()
        for name, gradient in each.items():
            assert_equal(gradient, p[name].grad, name)
    assert_reads_like_forward(model)
    written = model.generate(IDX[:, :3], 9, temperature=0.0)            # beyond the context, by the cache
    for t in range(3, 12):
        context = written[:, :t] if t <= T + 2 else written[:, 5:t]     # then its last three tokens are read again
        np.testing.assert_array_equal(model.forward(context)[0][:, -1].argmax(axis=-1), written[:, t], str(t))


def test_padded_prompts_are_continued_as_each_alone_and_steered():
    model, T = model_of(), 4
    unit_scale(model.params)
    push = np.linspace(-2.0, 2.0, C)
    mask = np.arange(T) >= np.array([[1], [0], [3]])
    for edit in (None, {"h.0.x_out": lambda x: x + push}):
        together = model.generate(IDX[:, :T], 9, temperature=0.0, mask=mask, edit=edit)
        for row, ids, n in zip(together, IDX, mask.sum(axis=1), strict=True):
            alone = model.generate(ids[None, T - n:T], 9, temperature=0.0, edit=edit)
            np.testing.assert_array_equal(row[T - n:], alone[0])


def assert_reads_like_forward(model):
    """A prompt, then token by token: the same logits as at once, with padding before some rows, too.

    Greedy tokens alone would show less: a model that is wrong can prefer the same ones.
    """
    for pads in (None, np.array([1, 0, 3])):
        read, first = model.engine.reader(B, pads).read, np.zeros(B, int) if pads is None else pads
        for part in (slice(0, 4), slice(4, 5)):
            found = read(IDX[:, part])
            for row, ids, begin in zip(found, IDX, first, strict=True):
                alone = model.forward(ids[None, begin:part.stop])[0][0, -1]
                np.testing.assert_allclose(row, alone, rtol=1e-9, atol=1e-9 * abs(alone).max())


RELATIVE = """
import numpy as np
from npgpt.model.transformer import block_backward, block_forward, block_parameters as parameters


def forward(x, p, config, layer, mask, dropout_masks, ops, distances):
    table = np.array([0.5, -1.0, 2.0, 0.3])
    slopes = 0.5 ** np.arange(1, config.n_head + 1).reshape(-1, 1, 1)
    alibi, t5 = -slopes * distances, table[np.clip(distances, 0, 3)]
    window = np.where(distances < 4, 0.0, -np.inf)
    bias = (alibi + t5 + window).astype(x.dtype)
    return block_forward(x, p, config, layer, mask + bias, dropout_masks, ops)


def backward(dx_out, cache, ops):
    return block_backward(dx_out, cache, ops)
"""


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_bias_by_distance_trains_and_generates(kernels, tmp_path):
    """ALiBi, T5's buckets and a sliding window, with positions of the block's own alone."""
    (tmp_path / "relative.py").write_text(RELATIVE)
    config = GPTConfig(
        **{**SMALL, "n_head": 2}, positions="none", block=read_block(tmp_path / "relative.py")
    )
    with small_parts():
        model = GPT(config, 0, "float64", threads=2, kernels=kernels)
        unit_scale(model.params)
        assert "wpe.weight" not in model.params
        distances = np.arange(T)[:, None] - np.arange(T)
        bias = np.where(
            distances < 4, np.array([0.5, -1.0, 2.0, 0.3])[np.clip(distances, 0, 3)], -np.inf
        )
        bias = bias - distances * np.array([0.5, 0.25]).reshape(-1, 1, 1)
        plain = GPT(dataclasses.replace(config, block=GPT2), None, "float64", threads=1)
        plain.params.flat[:] = model.params.flat
        expected, expected_grads = plain.loss_and_grads(
            IDX, TARGETS, mask=np.broadcast_to(bias, (B, 2, T, T))
        )
        loss, grads = model.loss_and_grads(IDX, TARGETS)
        assert loss == pytest.approx(expected, rel=1e-9)
        for name, gradient in grads.items():
            np.testing.assert_allclose(gradient, expected_grads[name], rtol=1e-9, atol=1e-10)
        assert_reads_like_forward(model)


def trained(block, engine):
    """The losses of 20 steps in float32."""
    model = model_of(block, "reference" if engine == "own" else engine, "float32")
    if engine == "own":
        model.use_engine(ReferenceEngine(model.params, 2))
    optimizer = AdamW(model.params, lr=0.01, engine=model.engine)
    steps = (
        train_step(optimizer, [(IDX, TARGETS)], [None], TARGETS.size, max_norm=1.0)
        for _ in range(20)
    )
    return [float(loss) for loss, _ in steps]


@pytest.mark.parametrize("engine", [*KERNELS[1:], "own"])
def test_each_engine_trains_with_the_lines_of_the_file(engine, tmp_path):
    others = [MODERN, edited(tmp_path, "silu = gate * sigmoid", "silu = gate * sigmoid * 1.5")]
    plain, other = (trained(block, "reference") for block in others)
    assert plain[-1] < plain[0] - 0.5 and abs(other[-1] - plain[-1]) > 0.01
    for block, losses in zip(others, (plain, other), strict=True):
        np.testing.assert_allclose(trained(block, engine), losses, rtol=1e-3)


def test_every_array_of_a_block_has_a_name_a_gradient_and_edits():
    model = model_of()
    unit_scale(model.params)
    _, found = model.run_with_cache(IDX, TARGETS)
    model.backward()
    names = [name for name in found.grads if name.startswith("h.1.")]
    assert {"h.1.x", "h.1.norm_1.xhat", "h.1.c_attn.y", "h.1.rotary_q.first", "h.1.attention.att", "h.1.swiglu.silu",
            "h.1.x_out"} <= {*names}
    for name in names:
        along = 1e-5 * np.random.default_rng(1).standard_normal(found[name].shape)
        more, less = (model.forward(IDX, TARGETS, edit={name: functools.partial(np.add, each)})[1]
                      for each in (along, -along))
        np.testing.assert_allclose((more - less) / 2, (found.grads[name] * along).sum(), 1e-5, 1e-12, err_msg=name)


def test_gradcheck_checks_the_block_as_a_whole(npgpt, tmp_path):
    code, out, _ = npgpt("gradcheck", MODERN)
    assert code == 0 and all(f"{name} (modern_block.py)" in out for name in ("rmsnorm", "rotary", "swiglu", "block"))
    code, out, _ = npgpt("gradcheck", edited(tmp_path, "dx = dx_mid + dx_normed", "dx = dx_normed"), "block")
    assert code == 1 and [line.split()[0] for line in out.splitlines() if "WRONG" in line] == ["x"]


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_a_block_stays_on_the_gpu(monkeypatch, kernels):
    strict_cupy.install(monkeypatch)
    loss, grads = model_of(device="gpu", kernels=kernels).loss_and_grads(IDX, TARGETS)
    expected, gradients = model_of().loss_and_grads(IDX, TARGETS)
    assert float(loss.get()) == pytest.approx(expected, rel=1e-12) and grads.keys() == gradients.keys()
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient.get(), gradients[name], 1e-9, 1e-12)


def test_frozen_parameters_decay_and_initial_weights():
    params, frozen = model_of().params, model_of(freeze="h.0,h.1.c_gate")
    assert params.keys() - frozen.loss_and_grads(IDX, TARGETS)[1].keys() == {
        name for name in params if name.startswith(("h.0.", "h.1.c_gate"))}
    assert params.n_matrix == sum(each.size for each in params.values() if each.ndim == 2)
    assert (params["h.0.norm_1.weight"] == 1.0).all()
    deviations = [float(params[f"h.0.{name}.weight"].std()) for name in ("c_gate", "c_down")]
    assert deviations == pytest.approx([0.02, 0.01], rel=0.2)           # divided by sqrt(2 n_layer)


def test_a_run_asks_for_its_file_and_resumes_to_the_bit(train, npgpt, tmp_path):
    flags = ["--no-bias", "--eval-interval", 2, "--lr-decay-iters", 6, "--n-embd", 16, "--max-iters"]
    assert train("--block", MODERN, *flags, 6, "--out-dir", "whole")[0] == train("--block", MODERN, *flags, 4)[0] == 0
    there = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    other = edited(tmp_path, "two thirds", "2 / 3")
    again = "train", "--resume", "--max-iters", 6
    for command in (again, ("sample",), ("eval",), ("info", "out"), ("look", "--prompt", "To be"),
                    ("score", "--text", "a"), ("export", "--out", "exported")):
        refused(npgpt(*command), "'modern_block.py', which is not GPT-2's block", "as --block")
        refused(npgpt(*command, "--block", other), "'modern_block.py', which is not modern_block.py")
    refused(npgpt("export", "--out", "exported", "--block", MODERN), "block=modern_block.py has no counterpart")
    assert train(*flags, 2, "--out-dir", "gpt2")[0] == 0
    refused(npgpt(*again, "--out-dir", "gpt2", "--block", MODERN), "GPT-2's block, which is not modern_block.py")
    assert {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()} == there
    assert npgpt(*again, "--block", MODERN)[0] == 0
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert Path("out/step-00000006", name).read_bytes() == Path("whole/step-00000006", name).read_bytes()
    for command in ("sample", "--max-new-tokens", 9), ("eval",), ("info", "out"), ("look", "--prompt", "To be"):
        assert npgpt(*command, "--block", MODERN)[0] == 0
    module_spec = importlib.util.spec_from_file_location("modern_block", MODERN)
    module_spec.loader.exec_module(module := importlib.util.module_from_spec(module_spec))
    assert load("out", block=module)[0].config == load("out", block=MODERN)[0].config


WRONG = {  # old code, new code -> what is said
    "no parameters": ("def parameters", "def sizes", "has no function parameters"),
    "no shape": (
        '((C,), 1.0), "c_attn',
        '(C, 1.0), "c_attn',
        "norm_1.weight in parameters(config)",
    ),
    "a shape that does not fit": (
        '"c_up.weight": ((C, F)',
        '"c_up.weight": ((C, F + 1)',
        "line 84: ValueError",
    ),
    "no gradient of one": (
        '"c_up": dc_up, ',
        "",
        "modern_block.py returns no gradient of h.0.c_up.weight: return it, or freeze",
    ),
    "one memory": (
        '"norm_2": dnorm_2',
        '"norm_2": dnorm_1',
        "gradient of norm_1.weight must have memory of its own",
    ),
    "huge": ('"c_up.weight": ((C, F)', '"c_up.weight": ((2**62, F)', "the model would take"),
    "another dtype": (
        "np.cos(angles).astype(x.dtype)",
        "np.cos(angles)",
        "x_out of modern_block.py",
        "float32",
    ),
    "not Python": ("def parameters", "def 1", "line 101: invalid"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_in_one_line_and_nothing_is_written(train, tmp_path, wrong):
    old, new, *says = wrong
    refused(train("--block", edited(tmp_path, old, new), "--n-embd", 16), *says)
    assert not Path("out").exists()


class Methods:
    def __init__(self, block):
        self.block, self.parameters = block, block.parameters

    def forward(self, *arguments, positions):
        return passed_on(self.block.forward, (*arguments, positions))

    def backward(self, *arguments):
        return passed_on(self.block.backward, arguments)


def passed_on(function, arguments):
    return function(*arguments)


def test_what_cannot_be_continued_compiled_or_adapted(npgpt, tmp_path):
    for command in ("train", "sample"):
        refused(npgpt(command, "--block", "missing.py"), "block missing.py cannot be read")
    for other in ("ops.attention_forward(q, k, v, 1.0, mask, None)", "v = v + v.mean(axis=2, keepdims=True)"):
        block = edited(tmp_path, "    mix, attention", f"    {other}\n    mix, attention")
        with pytest.raises(UserError, match="cannot continue texts: token by token"):
            model_of(block).generate(IDX, 2)
    for kernels in ("reference", *CPU_KERNELS):
        assert model_of(Methods(read_block(MODERN)), kernels).loss_and_grads(IDX, TARGETS)[0] == pytest.approx(
            model_of().loss_and_grads(IDX, TARGETS)[0], rel=1e-12)
    assert "ln_f.x" in model_of(Methods(read_block(MODERN))).run_with_cache(IDX)[1]


@pytest.mark.slow
def test_xla_is_compared_with_numpy_before_it_trains(tmp_path):
    pytest.importorskip("jax", reason="JAX is not installed")
    block = edited(tmp_path, "silu = gate * sigmoid", "silu = gate\n    silu *= sigmoid")      # gate changes, too
    with pytest.raises(UserError, match="something else by XLA than by NumPy"):
        model_of(block, "xla")
    with pytest.raises(UserError, match="must be functions of one file"):
        model_of(Methods(read_block(MODERN)), "xla")


def wrapped_forward(x, p, config, layer, mask, dropout_masks, ops):
    x_out, block = block_forward(x, p, config, layer, mask, dropout_masks, ops)
    return x_out, block


def wrapped_backward(dx_out, block, ops):
    return block_backward(dx_out, block, ops)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_block_may_call_the_functions_of_the_transformer(kernels):
    block = SimpleNamespace(parameters=block_parameters, forward=wrapped_forward, backward=wrapped_backward)
    ours, plain = (GPT(GPTConfig(**SMALL), 0, "float64", threads=2, kernels=kernels, block=each)
                   for each in (block, None))
    grads = ours.loss_and_grads(IDX, TARGETS)[1]
    for name, gradient in plain.loss_and_grads(IDX, TARGETS)[1].items():
        np.testing.assert_allclose(grads[name], gradient, rtol=1e-9, atol=1e-12)
    assert {"h.1.x", "h.1.block.attn.att"} <= ours.run_with_cache(IDX)[1].keys()


TINY = """
import sys
import numpy as np

KEPT = {}


def parameters(config):
    C = config.n_embd
    return {"w": ((C,), 1.0)}


def forward(x, p, config, layer, mask, dropout_masks, ops):
    w, late = p["w"], x.shape[1] > 3        # later than the trial
    x_out = x * w
    return x_out, (x, w)


def backward(dx_out, cache, ops):
    x, w = cache
    late = x.shape[1] > 3
    dx = dx_out * w
    dw = (dx_out * x).sum(axis=(0, 1))
    return dx, {"w": dw}
"""


def tiny(tmp_path, *changes):
    """The path of TINY with other code: old, new, old, new, …"""
    code = TINY
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in code
        code = code.replace(old, new)
    (tmp_path / "tiny.py").write_text(code)
    return tmp_path / "tiny.py"


NESTED = "in parameters(config) of tiny.py cannot be nested"
AGAIN = "differs after the block has been called"
BUFFER = "x_out = np.multiply(x, w, out=KEPT.setdefault(x.shape, np.empty_like(x)))"
REFUSED = {     # what is said, old code, new code, …
    "a name within another": (f"'a' {NESTED}", '"w": (', '"a": ((C,), 1.0), "a.b": ('),
    "no parameter": ("must be a dict with names", '{"w": ((C,), 1.0)}', "{}"),
    "a buffer as x_out": (f"x_out {AGAIN}", "x_out = x * w", BUFFER),
    "a buffer in the cache": (
        f"the gradient of w {AGAIN}", "x_out, (x, w)", "x_out, (KEPT[0], w)",
        "x_out = x", "KEPT.setdefault(0, np.empty_like(x))[...] = x[-1:]\n    x_out = x"),
    "a stack as cache": (f"the gradient of w {AGAIN}", "return x_out, (x, w)",
                         "KEPT.setdefault(0, []).append((x, w))\n    return x_out, None",
                         "x, w = cache", "x, w = KEPT[0].pop()"),
    "a parameter as gradient": ("gradient of w must have memory of its own", '{"w": dw}', '{"w": w}'),
    "a parameter in place": ("line 15: ValueError: output array is read-only", "x_out = x * w", "w *= 2.0"),
}


@pytest.mark.parametrize("wrong", REFUSED.values(), ids=REFUSED)
def test_a_block_that_would_train_wrongly_is_refused(tmp_path, wrong):
    says, *changes = wrong
    with pytest.raises(UserError) as error:
        model_of(tiny(tmp_path, *changes))
    assert says in str(error.value)


RIGHT = {       # old code, new code, …
    "weight twice": ('"w": (', '"weight.weight": (', 'p["w"]', 'p["weight"]["weight"]',
                     '"w": dw', '"weight": {"weight": dw}'),
    "gradients side by side": ('"w": (', '"v": ((C,), 1.0), "w": (',
                               '"w": dw', '**dict(zip("vw", np.stack([0 * dw, dw], 1).T))'),
    "a square": ("(C,)", "(C, C)", "x * w", "x @ w", "dx_out * w", "dx_out @ w.T",
                 "(dx_out * x).sum(axis=(0, 1))", "np.einsum('btc,btd->cd', x, dx_out)"),
    "rounding errors": ("sum(axis=(0, 1))", "sum(axis=(0, 1)) - (dx_out * x)[::-1, ::-1].sum(axis=(0, 1))"),
    "NaN in the trial": ("x * w", "np.log(x) * w", "dx_out * w", "dx_out * w / x", "* x)", "* np.log(x))"),
}


@pytest.mark.parametrize("changes", RIGHT.values(), ids=RIGHT)
def test_a_block_that_trains_rightly_is_not_refused(tmp_path, changes):
    block = read_block(tiny(tmp_path, *changes))
    for block_size in (1, 8):
        config = GPTConfig(**{**SMALL, "block_size": block_size}, block=block)
        validate(config)
        assert not mixes_texts(config)


LATE = {        # what is said, old code, new code
    "no gradient": ("tiny.py returns no gradient of h.0.w: return it, or freeze it",
                    '{"w": dw}', '{} if late else {"w": dw}'),
    "an unknown gradient": ("the gradients of tiny.py must be of parameters(config)",
                            "return dx,", 'return dx, {"v": dw} if late else'),
    "a gradient's shape": ("the gradient of w of tiny.py must be", '"w": dw', '"w": dw[-late:]'),
    "a gradient's dtype": ("float64, not (12,) float32", '"w": dw', '"w": dw.astype("f") if late else dw'),
    "the shape of x_out": ("x_out of tiny.py must be an array", "return x_out,", "return x_out[:, :3],"),
    "an exit": ("tiny.py, line 15: SystemExit", "= x * w", "= sys.exit() if late else x * w"),
    "an error": ("tiny.py, line 22: ZeroDivisionError", "dx_out * w", "dx_out * w / (1 // (1 - late))"),
}


@pytest.mark.parametrize("kernels", ["reference", *CPU_KERNELS[1:]])
def test_what_is_wrong_only_at_the_real_size_is_an_error_of_the_user(tmp_path, kernels):
    for says, *changes in LATE.values():
        model = model_of(tiny(tmp_path, *changes), kernels)
        with pytest.raises(UserError) as error:
            model.loss_and_grads(IDX, TARGETS)
        assert says in str(error.value)
    model = model_of(tiny(tmp_path, *LATE["an exit"][1:]), kernels)
    for call, *more in ([model.forward], [model.run_with_cache], [model.hidden], [model.evaluate, TARGETS],
                        [model.generate, 1]):
        with pytest.raises(UserError, match="line 15: SystemExit"):
            call(IDX, *more)


def test_what_is_not_a_mistake_of_the_block_passes(tmp_path):
    full = type("CUDARuntimeError", (RuntimeError,), {"status": 2})         # as CuPy raises it
    for raised in (KeyboardInterrupt, MemoryError, BrokenPipeError, full):
        model = model_of(tiny(tmp_path, "    x_out", "    if late:\n        raise KEPT[0]\n    x_out"))
        model.config.block.forward.__globals__["KEPT"][0] = raised
        with pytest.raises(raised):
            model.loss_and_grads(IDX, TARGETS)


def test_a_run_of_a_block_that_is_wrong_later_exits_with_two(train, tmp_path):
    says, *changes = LATE["an exit"]
    refused(train("--block", tiny(tmp_path, *changes), "--n-embd", 12, "--kernels", "numpy"), says)


MIXED = {"statistics": ("x_out = x * w", "x = x - x.mean(axis=(0, 1))\n    x_out = x * w",
                        "dx = dx_out * w", "dx = dx_out * w\n    dx = dx - dx.mean(axis=(0, 1))"),
         "the size": ("(dx_out * x).sum(axis=(0, 1))", "(dx_out * x).sum(axis=(0, 1)) / x.shape[0]")}


def test_infinity_does_not_hide_that_texts_depend_on_each_other(tmp_path):
    infinite = "dx_out * w", "dx_out * np.where(np.arange(w.size) == 0, np.float32(np.inf), w)"
    config = model_of(tiny(tmp_path, *MIXED["the size"], *infinite)).config
    assert mixes_texts(config)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("mixed", MIXED.values(), ids=MIXED)
def test_a_batch_whose_texts_depend_on_each_other_is_not_divided(tmp_path, capsys, mixed, kernels):
    say_once.cache_clear()
    block = tiny(tmp_path, *mixed)

    def results(kernels, threads):
        """The gradients of a batch, and the losses of two steps of two micro-batches and afterwards."""
        model = GPT(CONFIG, 0, "float64", threads=threads, kernels=kernels, block=block)
        unit_scale(model.params)
        optimizer, losses = AdamW(model.params, lr=0.01, engine=model.engine), []
        grads = model.loss_and_grads(IDX, TARGETS)[1]
        for _ in range(2):
            two = [(IDX, TARGETS)] * 2
            loss, _ = train_step(optimizer, two, [None] * 2, 2 * TARGETS.size, max_norm=1.0)
            losses.append(float(loss))
        return {**grads, "losses": np.array([*losses, model.evaluate(IDX, TARGETS)])}

    right = results("reference", 1)
    for threads in (2,) if kernels == "xla" else (2, 3):
        found = results(kernels, threads)
        for name, array in right.items():
            np.testing.assert_allclose(found[name], array, 1e-9, 1e-9 * abs(array).max(), err_msg=name)
    assert capsys.readouterr().err.count("depend on each other in tiny.py") == (kernels in CPU_KERNELS)


ON_TWO = """
import json, sys
from npgpt import GPT, GPTConfig, UserError
config, idx, targets = json.loads(sys.argv[2])
model = GPT(GPTConfig(**config), 0, "float64", kernels="xla", block=sys.argv[1])
print(model.loss_and_grads(idx[:2], targets[:2])[0])
try:
    model.loss_and_grads(idx, targets)
except UserError as error:
    print(error)
"""


@pytest.mark.slow
def test_two_devices_divide_a_batch_only_evenly_if_its_texts_depend_on_each_other(tmp_path):
    pytest.importorskip("jax", reason="JAX is not installed")
    block = tiny(tmp_path, *MIXED["statistics"])
    two = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    arguments = json.dumps([{**SMALL, "n_head": 2, "bias": False}, IDX.tolist(), TARGETS.tolist()])
    result = subprocess.run([sys.executable, "-c", ON_TWO, block, arguments], capture_output=True, text=True, env=two)
    loss, says = result.stdout.splitlines()
    right, _ = model_of(block).loss_and_grads(IDX[:2], TARGETS[:2])
    assert float(loss) == pytest.approx(right, rel=1e-12)
    assert "tiny.py, so none can be added to these 3: choose a batch size divisible by the 2 devices" in says


def test_the_digest_is_that_of_the_text_that_ran(tmp_path):
    """The file saves another text, as an editor might, while it runs."""
    path = tiny(tmp_path, "KEPT = {}", "KEPT = open(__file__, 'w').write('1')")
    text = path.read_text()
    block = read_block(path)
    assert path.read_text() == "1" and block.source == text and block.texts == {str(path): text}
    assert inspect.getsource(block.forward) in text
    assert sources.tree_of(block.forward.__code__).name == "forward"

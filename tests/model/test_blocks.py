"""Blocks of one's own: tools/examples/modern_block.py against torch and on each engine, and files
that are wrong.
"""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.engine.trial import mixes_texts, validate
from npgpt.errors import say_once
from npgpt.model.block import GPT2, read_block
from tests import strict_cupy
from tests.cases import CPU_KERNELS, LORA, MODERN, SMALL, B, C, T, V, small_parts
from tests.helpers.runs import bits, refused, refusing, succeeded
from tests.torch_gpt import assert_equal, torch_loss, torch_parameters, unit_scale

# An even head size.
CONFIG = GPTConfig(**{**SMALL, "n_head": 2, "bias": False}, block=read_block(MODERN))
IDX, TARGETS = np.random.default_rng(0).integers(0, V, (2, B, T))
KERNELS = ["reference", *CPU_KERNELS, pytest.param("xla", marks=pytest.mark.slow)]


def model_of(block=MODERN, kernels="reference", dtype="float64", **named):
    return GPT(CONFIG, 0, dtype, threads=2, kernels=kernels, block=block, **named)


def edited(tmp_path, old, new, file=MODERN):
    """The path of a block's file with other code."""
    code = file.read_text()
    assert old in code
    (tmp_path / file.name).write_text(code.replace(old, new))
    return tmp_path / file.name


def by_torch(params):
    """Return logits, loss and parameters by torch's own functions; positions are turned as complex
    numbers.
    """
    import torch

    p, functional = torch_parameters(params), torch.nn.functional
    D = C // 2
    position, part = torch.arange(T).double()[:, None], torch.arange(D // 2).double() / (D // 2)
    angles = position * 10000.0**-part  # (T, D / 2)
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
    written = model.generate(IDX[:, :3], 9, temperature=0.0)  # beyond the context, by the cache
    for t in range(3, 12):
        # After T + 2 tokens the last three are read again.
        context = written[:, :t] if t <= T + 2 else written[:, 5:t]
        likeliest = model.forward(context)[0][:, -1].argmax(axis=-1)
        np.testing.assert_array_equal(likeliest, written[:, t], str(t))


def assert_reads_like_forward(model):
    """A prompt, then token by token: the same logits as at once, with padding before some rows,
    too.

    Greedy tokens alone would show less: a model that is wrong can prefer the same ones.
    """
    for pads in (None, np.array([1, 0, 3])):
        read, first = model.engine.reader(B, pads).read, np.zeros(B, int) if pads is None else pads
        for part in (slice(0, 4), slice(4, 5)):
            found = read(IDX[:, part])
            for row, ids, begin in zip(found, IDX, first, strict=True):
                alone = model.forward(ids[None, begin : part.stop])[0][0, -1]
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
    block = read_block(tmp_path / "relative.py")
    config = GPTConfig(**{**SMALL, "n_head": 2}, positions="none", block=block)
    distances = np.arange(T)[:, None] - np.arange(T)
    table = np.array([0.5, -1.0, 2.0, 0.3])
    window = np.where(distances < 4, table[np.clip(distances, 0, 3)], -np.inf)
    bias = window - distances * np.array([0.5, 0.25]).reshape(-1, 1, 1)
    with small_parts():
        model = GPT(config, 0, "float64", threads=2, kernels=kernels)
        unit_scale(model.params)
        plain = GPT(dataclasses.replace(config, block=GPT2), None, "float64", threads=1)
        plain.params.flat[:] = model.params.flat
        mask = np.broadcast_to(bias, (B, 2, T, T))
        expected, expected_grads = plain.loss_and_grads(IDX, TARGETS, mask=mask)
        loss, grads = model.loss_and_grads(IDX, TARGETS)
        assert loss == pytest.approx(expected, rel=1e-9)
        for name, gradient in grads.items():
            np.testing.assert_allclose(gradient, expected_grads[name], rtol=1e-9, atol=1e-10)
        assert_reads_like_forward(model)


def wrong_gradients(result):
    code, out, _ = result
    return code, [line.split()[0] for line in out.splitlines() if "WRONG" in line]


def test_gradcheck_checks_the_block_as_a_whole(npgpt, tmp_path):
    wrong = tiny(tmp_path, "dx = dx_out * w", "dx = dx_out")
    assert wrong_gradients(npgpt("gradcheck", wrong, "block")) == (1, ["x"])


@pytest.mark.slow
def test_gradcheck_checks_the_examples(npgpt, tmp_path):
    wrong = edited(tmp_path, "dx = dx_mid + dx_normed", "dx = dx_normed")
    assert wrong_gradients(npgpt("gradcheck", wrong, "block")) == (1, ["x"])
    wrong = edited(tmp_path, '"lora_b": SCALE * db_proj', '"lora_b": db_proj * 2', LORA)
    result = npgpt("gradcheck", wrong, "block", "--time-limit", 99)
    assert wrong_gradients(result) == (1, ["attn.c_proj.lora_b"])
    assert result[1].count("no gradient: must be frozen") == 12


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize(("file", "freeze"), [(MODERN, ()), (LORA, "*.weight")])
def test_a_block_stays_on_the_gpu(monkeypatch, file, freeze, kernels):
    strict_cupy.install(monkeypatch)
    here = model_of(file, freeze=freeze)
    unit_scale(here.params)
    there = model_of(file, kernels, device="gpu", freeze=freeze)
    for name, array in here.params.items():
        there.params[name] = array
    loss, grads = there.loss_and_grads(IDX, TARGETS)
    expected, gradients = here.loss_and_grads(IDX, TARGETS)
    assert float(loss.get()) == pytest.approx(expected, rel=1e-12)
    assert grads.keys() == gradients.keys()
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient.get(), gradients[name], 1e-9, 1e-12)


def test_a_run_asks_for_its_file_and_resumes_to_the_bit(train, npgpt, tmp_path):
    flags = "--no-bias --eval-interval 2 --lr-decay-iters 6 --n-embd 16 --max-iters".split()
    succeeded(train("--block", MODERN, *flags, 6, "--out-dir", "whole"))
    succeeded(train("--block", MODERN, *flags, 4))
    there = bits("out")
    other = edited(tmp_path, "two thirds", "2 / 3")
    again = "train --resume --max-iters 6"
    for command in (again, "sample", "eval", "info out", "look --prompt To", "score --text a"):
        refused(npgpt(command), "a block of its own, 'modern_block.py': give", "as --block")
        refused(npgpt(command, "--block", other), "'modern_block.py', which is not modern_block.py")
    exported = npgpt("export --out exported", "--block", MODERN)
    refused(exported, "block=modern_block.py has no counterpart")
    succeeded(train(*flags, 2, "--out-dir", "gpt2"))
    resumed = npgpt(again, "--out-dir", "gpt2", "--block", MODERN)
    refused(resumed, "GPT-2's block, which is not modern_block.py")
    assert bits("out") == there
    for command in (again, "sample --max-new-tokens 9", "eval", "info out", "look --prompt To"):
        succeeded(npgpt(command, "--block", MODERN))
    assert bits("out") == bits("whole")


WRONG = {  # old code, new code -> what is said
    "no parameters": ("def parameters", "def sizes", "has no function parameters"),
    "no shape": ('"norm_1.weight": ((C,)', '"norm_1.weight": (C', "weight in parameters(config)"),
    "huge": ('"c_up.weight": ((C, F)', '"c_up.weight": ((2**62, F)', "the model would take"),
    "another dtype": ("np.cos(angles).astype(x.dtype)", "np.cos(angles)", "float64, math.sqrt(D)"),
    "not Python": ("def parameters", "def 1", "line 115: invalid"),
}


@pytest.mark.parametrize(("old", "new", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_in_one_line_and_nothing_is_written(
    train, tmp_path, old, new, says
):
    refused(train("--block", edited(tmp_path, old, new), "--n-embd", 16), says)
    assert not Path("out").exists()


def test_a_block_that_mixes_positions_cannot_continue_texts(npgpt, tmp_path):
    refused(npgpt("sample --block missing.py"), "missing.py: No such file")
    for other in (
        "ops.attention_forward(q, k, v, 1.0, mask, None)",
        "v = v + v.mean(axis=2, keepdims=True)",
    ):
        block = edited(tmp_path, "    mix, attention", f"    {other}\n    mix, attention")
        with refusing("cannot continue texts: token by token"):
            model_of(block).generate(IDX, 2)


@pytest.mark.slow
def test_xla_is_compared_with_numpy_before_it_trains(tmp_path):
    pytest.importorskip("jax", reason="JAX is not installed")
    in_place = "silu = gate\n    silu *= sigmoid"  # gate changes, too
    with refusing("XLA computes something else than NumPy"):
        model_of(edited(tmp_path, "silu = gate * sigmoid", in_place), "xla")


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
REFUSED = {  # what is said, old code, new code, …
    "a name within another": (f"'a' {NESTED}", '"w": (', '"a": ((C,), 1.0), "a.b": ('),
    "no parameter": ("must be a dict with names", '{"w": ((C,), 1.0)}', "{}"),
    "a buffer as x_out": (f"x_out {AGAIN}", "x_out = x * w", BUFFER),
    "a buffer in the cache": (
        f"the gradient of w {AGAIN}",
        "x_out, (x, w)",
        "x_out, (KEPT[0], w)",
        "x_out = x",
        "KEPT.setdefault(0, np.empty_like(x))[...] = x[-1:]\n    x_out = x",
    ),
    "a stack as cache": (
        f"the gradient of w {AGAIN}",
        "return x_out, (x, w)",
        "KEPT.setdefault(0, []).append((x, w))\n    return x_out, None",
        "x, w = cache",
        "x, w = KEPT[0].pop()",
    ),
    "a parameter as gradient": (
        "gradient of w must have memory of its own",
        '{"w": dw}',
        '{"w": w}',
    ),
    "a parameter in place": (
        "line 15: ValueError: output array is read-only",
        "x_out = x * w",
        "w *= 2.0",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED.values(), ids=REFUSED)
def test_a_block_that_would_train_wrongly_is_refused(tmp_path, wrong):
    says, *changes = wrong
    with refusing(re.escape(says)):
        model_of(tiny(tmp_path, *changes))


RIGHT = {  # old code, new code, …
    "weight twice": (
        '"w": (',
        '"weight.weight": (',
        'p["w"]',
        'p["weight"]["weight"]',
        '"w": dw',
        '"weight": {"weight": dw}',
    ),
    "gradients side by side": (
        '"w": (',
        '"v": ((C,), 1.0), "w": (',
        '"w": dw',
        '**dict(zip("vw", np.stack([0 * dw, dw], 1).T))',
    ),
    "a square": (
        "(C,)",
        "(C, C)",
        "x * w",
        "x @ w",
        "dx_out * w",
        "dx_out @ w.T",
        "(dx_out * x).sum(axis=(0, 1))",
        "np.einsum('btc,btd->cd', x, dx_out)",
    ),
    "rounding errors": (
        "sum(axis=(0, 1))",
        "sum(axis=(0, 1)) - (dx_out * x)[::-1, ::-1].sum(axis=(0, 1))",
    ),
    "NaN in the trial": (
        "x * w",
        "np.log(x) * w",
        "dx_out * w",
        "dx_out * w / x",
        "* x)",
        "* np.log(x))",
    ),
}


@pytest.mark.parametrize("changes", RIGHT.values(), ids=RIGHT)
def test_a_block_that_trains_rightly_is_not_refused(tmp_path, changes):
    block = read_block(tiny(tmp_path, *changes))
    for block_size in (1, 8):
        config = GPTConfig(**{**SMALL, "block_size": block_size}, block=block)
        validate(config)
        assert not mixes_texts(config)


LATE = {  # what is said, old code, new code
    "no gradient": (
        "tiny.py returns no gradient of h.0.w: return it, or freeze it",
        '{"w": dw}',
        '{} if late else {"w": dw}',
    ),
    "an unknown gradient": (
        "the gradients of tiny.py must be of parameters(config)",
        "return dx,",
        'return dx, {"v": dw} if late else',
    ),
    "a gradient's shape": ("the gradient of w of tiny.py must be", '"w": dw', '"w": dw[-late:]'),
    "a gradient's dtype": (
        "float64, not (12,) float32",
        '"w": dw',
        '"w": dw.astype("f") if late else dw',
    ),
    "the shape of x_out": (
        "x_out of tiny.py must be an array",
        "return x_out,",
        "return x_out[:, :3],",
    ),
    "an exit": ("tiny.py, line 15: SystemExit", "= x * w", "= sys.exit() if late else x * w"),
    "an error": (
        "tiny.py, line 22: ZeroDivisionError",
        "dx_out * w",
        "dx_out * w / (1 // (1 - late))",
    ),
}


@pytest.mark.parametrize("kernels", ["reference", *CPU_KERNELS[1:]])
def test_what_is_wrong_only_at_the_real_size_is_an_error_of_the_user(tmp_path, kernels):
    for says, *changes in LATE.values():
        model = model_of(tiny(tmp_path, *changes), kernels)
        with refusing(re.escape(says)):
            model.loss_and_grads(IDX, TARGETS)
    model = model_of(tiny(tmp_path, *LATE["an exit"][1:]), kernels)
    for name in ("forward", "run_with_cache", "hidden", "generate"):
        with refusing("line 15: SystemExit"):
            getattr(model, name)(IDX, *[1] * (name == "generate"))


@pytest.mark.parametrize("raised", [KeyboardInterrupt, MemoryError, BrokenPipeError])
def test_what_is_not_a_mistake_of_the_block_passes(tmp_path, raised):
    model = model_of(tiny(tmp_path, "    x_out", "    if late:\n        raise KEPT[0]\n    x_out"))
    model.config.block.forward.__globals__["KEPT"][0] = raised
    with pytest.raises(raised):
        model.loss_and_grads(IDX, TARGETS)


MIXED = {
    "statistics": (
        "x_out = x * w",
        "x = x - x.mean(axis=(0, 1))\n    x_out = x * w",
        "dx = dx_out * w",
        "dx = dx_out * w\n    dx = dx - dx.mean(axis=(0, 1))",
    ),
    "the size": ("(dx_out * x).sum(axis=(0, 1))", "(dx_out * x).sum(axis=(0, 1)) / x.shape[0]"),
}


def test_infinity_does_not_hide_that_texts_depend_on_each_other(tmp_path):
    infinite = "dx_out * w", "dx_out * np.where(np.arange(w.size) == 0, np.float32(np.inf), w)"
    assert mixes_texts(model_of(tiny(tmp_path, *MIXED["the size"], *infinite)).config)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("mixed", MIXED.values(), ids=MIXED)
def test_a_batch_whose_texts_depend_on_each_other_is_not_divided(tmp_path, capsys, mixed, kernels):
    say_once.cache_clear()
    block = tiny(tmp_path, *mixed)

    def results(kernels, threads):
        """The gradients of a batch and of two micro-batches, and the loss."""
        model = GPT(CONFIG, 0, "float64", threads=threads, kernels=kernels, block=block)
        unit_scale(model.params)
        found = {"loss": np.array(model.evaluate(IDX, TARGETS))}
        for n in (1, 2):
            batches, rngs = [(IDX, TARGETS)] * n, [None] * n
            _, grads = model.engine.loss_and_grads(batches, rngs, n * TARGETS.size)
            found |= {f"{name} of {n}": np.array(grads[name]) for name in grads}
        return found

    found = results(kernels, 3)
    for name, right in results("reference", 1).items():
        np.testing.assert_allclose(found[name], right, 1e-9, 1e-9 * abs(right).max(), err_msg=name)
    said = capsys.readouterr().err.count("depend on each other in tiny.py")
    assert said == (kernels in CPU_KERNELS)

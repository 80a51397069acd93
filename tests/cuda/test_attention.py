"""The attention kernels against the layers: every output, for ragged lengths, heads of every size, all precisions."""

import numpy as np
import pytest

from npgpt.engine.philox import Philox
from npgpt.layers.attention import attention_backward, attention_forward
from npgpt.model.masks import dropout_mask
from tests.cuda.compare import MICRO_BATCH, ON_GPU, SEED, STEP, dropout, kernels
from tests.engine.cuda.cublaslt import round_to_bfloat16, widen

pytestmark = pytest.mark.slow

ROWS, THREADS = 64, 128     # of a block: attention.cu
# The largest relative error, and where scores are in the hundreds: of float64, but on a GPU it is float32.
LIMIT, OF_LARGE_SCORES = (3e-5, 2e-3) if ON_GPU else (1e-9, 1e-9)


def random_case(B, T, H, D, scale_of_scores=1.0, seed=0):
    """q, k, v, dout (B, H, T, D) whose scores (by 1 / sqrt(D)) have this standard deviation."""
    rng = np.random.default_rng(seed)
    q, k, v, dout = rng.standard_normal((4, B, H, T, D))
    return q * scale_of_scores, k, v, dout


def to_rows(a):
    """(B, H, T, D) -> (B * T, H * D), as the products with a model's weights have it."""
    B, H, T, D = a.shape
    return a.transpose(0, 2, 1, 3).reshape(B * T, H * D)


def to_heads(a, B, H):
    """The way back."""
    return a.reshape(B, len(a) // B, H, -1).transpose(0, 2, 1, 3)


def by_layers(q, k, v, dout, causal, dropout_mask=None):
    """All that the kernels give, in float64: out, lse, delta, dq, dk, dv."""
    T, D = q.shape[2:]
    mask = np.triu(np.full((T, T), -np.inf), 1) if causal else None
    out, cache = attention_forward(q, k, v, D**-0.5, mask, dropout_mask)
    scores = q @ k.swapaxes(-1, -2) * D**-0.5 + (0.0 if mask is None else mask)
    largest = scores.max(-1)
    lse = largest + np.log(np.exp(scores - largest[..., None]).sum(-1))
    return {"out": out, "lse": lse, "delta": (dout * out).sum(-1),
            **dict(zip(("dq", "dk", "dv"), attention_backward(dout, cache), strict=True))}


def by_kernels(gpu, q, k, v, dout, causal, p=0.0, site=0, dtype=np.float32 if ON_GPU else np.float64):
    """The same from the kernels. dtype: of the activations; np.uint16 holds the bits of bfloat16s."""
    B, H, T, D = q.shape
    statistics = np.float64 if dtype == np.float64 else np.float32
    grid = (H, B, -(-T // ROWS))
    qkv = to_activations(np.concatenate([to_rows(a) for a in (q, k, v)], axis=1), dtype)
    dout = to_activations(to_rows(dout), dtype)
    out, dqkv = (np.full_like(a, 0x7FC0 if dtype == np.uint16 else np.nan) for a in (dout, qkv))
    lse, delta = (np.full((B, H, T), np.nan, statistics) for _ in range(2))

    gpu.launch("attention_forward", grid, THREADS, out, lse, qkv, T, H, D**-0.5, int(causal), *dropout(p, site))
    gpu.launch("attention_delta", grid, THREADS, delta, dout, out, T, H)
    for name in ("attention_backward_kv", "attention_backward_q"):
        gpu.launch(name, grid, THREADS, dqkv, dout, qkv, lse, delta, T, H, D**-0.5, int(causal), *dropout(p, site))
    dq, dk, dv = (to_heads(third, B, H) for third in np.split(widen(dqkv), 3, axis=1))
    return {"out": to_heads(widen(out), B, H), "lse": lse, "delta": delta, "dq": dq, "dk": dk, "dv": dv}


def to_activations(a, dtype):
    """As the kernels take them: float64, float32 or the bits of bfloat16s."""
    return round_to_bfloat16(a) if dtype == np.uint16 else a.astype(dtype)


def rounded(a):
    """The nearest bfloat16s, as numbers."""
    return widen(round_to_bfloat16(a)).astype(np.float64)


def largest_errors(actual, desired):
    """For each array: its largest error, relative to its largest value."""
    return {name: np.abs(actual[name] - desired[name]).max() / (np.abs(desired[name]).max() or 1.0) for name in desired}


def norm_errors(actual, desired):
    """For each array: the norm of its error, relative to its norm."""
    return {name: np.linalg.norm(actual[name] - desired[name]) / np.linalg.norm(desired[name]) for name in desired}


def assert_below(errors, limit):
    assert all(error < limit for error in errors.values()), errors      # a NaN is not below


@pytest.mark.parametrize(("B", "T", "H", "head_size", "causal"), [
    (1, 1, 1, 64, True), (2, 5, 3, 64, True), (1, 5, 2, 64, False), (1, 63, 2, 64, True), (1, 64, 1, 64, True),
    (1, 64, 1, 64, False), (2, 65, 1, 64, True), (1, 65, 1, 64, False), (1, 130, 2, 64, True), (1, 200, 1, 64, True),
    (1, 200, 1, 64, False), (1, 1, 2, 32, False), (2, 65, 3, 32, True), (1, 130, 1, 32, False), (1, 63, 1, 128, False),
    (1, 130, 1, 128, True), (1, 65, 2, 48, True)])
def test_as_the_layers(B, T, H, head_size, causal):
    case = random_case(B, T, H, head_size)
    actual = by_kernels(kernels("float64", head_size), *case, causal)
    assert_below(largest_errors(actual, by_layers(*case, causal)), LIMIT)


@pytest.mark.parametrize("causal", [True, False])
def test_large_scores(causal):
    """Of some hundreds to either side: alone, exp would overflow, or give 0 for all keys of a row."""
    case = random_case(1, 130, 2, 64, scale_of_scores=60.0)
    q, k, *_ = case
    scores = q @ k.swapaxes(-1, -2) * 64**-0.5
    assert scores.max() > 200 and scores.min() < -200
    actual = by_kernels(kernels("float64"), *case, causal)
    assert_below(largest_errors(actual, by_layers(*case, causal)), OF_LARGE_SCORES)


def test_scores_that_grow_and_shrink():
    """The largest score of a row may be in the first tile or the last, far from the others."""
    q, k, v, dout = random_case(1, 130, 1, 64)
    for growth in (np.linspace(0, 40, 130), np.linspace(40, 0, 130)):
        case = q, k * growth[:, None], v, dout
        actual = by_kernels(kernels("float64"), *case, False)
        assert_below(largest_errors(actual, by_layers(*case, False)), OF_LARGE_SCORES)


@pytest.mark.parametrize(("B", "T", "H", "head_size", "causal", "p"), [
    (2, 65, 2, 64, True, 0.1), (1, 130, 2, 64, False, 0.5), (2, 5, 3, 64, True, 0.5), (1, 64, 2, 32, True, 0.2)])
def test_dropout(B, T, H, head_size, causal, p):
    """The masks are those of the layers, at the same site, bit for bit: one that differed would be an error of 1."""
    case = random_case(B, T, H, head_size)
    rng = Philox(SEED, STEP, MICRO_BATCH)
    rng.site = 11
    mask = dropout_mask(rng, (B, H, T, T), p, np.float64)
    actual = by_kernels(kernels("float64", head_size), *case, causal, p, site=11)
    assert_below(largest_errors(actual, by_layers(*case, causal, mask)), LIMIT)


@pytest.mark.parametrize(("head_size", "causal", "p"), [(64, True, 0.0), (64, False, 0.1), (128, True, 0.0),
                                                      (80, True, 0.1)])
def test_bfloat16(head_size, causal, p):
    """Against float64 layers of the same bfloat16s. The kernels also round the weights and the scores' gradients."""
    case = [rounded(a) for a in random_case(1, 130, 2, head_size)]
    mask = dropout_mask(Philox(SEED, STEP, MICRO_BATCH), (1, 2, 130, 130), p, np.float64)
    actual = by_kernels(kernels("bfloat16", head_size), *case, causal, p, dtype=np.uint16)
    desired = by_layers(*case, causal, mask)
    assert_below(norm_errors(actual, desired), 1e-2)
    assert_below({"lse": largest_errors(actual, desired)["lse"]}, 1e-5)         # is never rounded


def test_float32():
    """Products of float32 from instructions that take 11 bits: as close as float32 is, or nearly so on a GPU, which
    cuts off what does not fit into a sum where the emulator rounds it."""
    case = random_case(1, 130, 1, 64)
    actual = by_kernels(kernels("float32"), *case, True, dtype=np.float32)
    assert_below(norm_errors(actual, by_layers(*case, True)), 1e-5 if ON_GPU else 1e-6)


def test_tf32():
    """Operands of 11 bits: faster, and not as close."""
    case = random_case(1, 130, 1, 64)
    errors = norm_errors(by_kernels(kernels("tf32"), *case, True, dtype=np.float32), by_layers(*case, True))
    assert_below(errors, 2e-3)
    assert all(errors[name] > 1e-6 for name in ("out", "lse", "dq", "dk", "dv")), errors


@pytest.mark.parametrize(("precision", "dtype"), [("bfloat16", np.uint16), ("float32", np.float32)])
def test_same_bits_again(precision, dtype):
    """In whatever order blocks, warps and lanes run: the emulator shuffles them anew at each launch."""
    case = random_case(2, 65, 1, 64)
    first, again = (by_kernels(kernels(precision), *case, True, p=0.1, dtype=dtype) for _ in range(2))
    for name in first:
        np.testing.assert_array_equal(again[name], first[name], err_msg=name)

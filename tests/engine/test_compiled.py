"""The compiled loops against the lines of the lesson: odd shapes, any memory layout, masks, the ends of the dtypes."""

from unittest import mock

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, layers
from npgpt.engine import cpu, update
from npgpt.engine.threads import blas_threads, using_cores
from tests.cases import LAYOUTS, small_parts, unchanged, uncompiled

pytest.importorskip("numba", reason="compiles the loops; it is in the extras fast and test")
from npgpt.engine import compiled, few_rows

DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def unit(rng, dtype, *shapes):
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def assert_close(ours, theirs, least=0.0):
    """To rounding of the largest value, or of `least`; NaN and infinity stand where the lesson has them."""
    theirs = np.asarray(theirs)
    largest = abs(theirs).max(initial=least, where=np.isfinite(theirs))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=(1e-9 if theirs.dtype == np.float64 else 2e-6) * largest)
    assert np.asarray(ours).dtype == theirs.dtype


@np.errstate(all="ignore")
def check(name, arguments, dy, least=0.0):
    """Compare y and all gradients of a pair with the lesson's; no argument is written to."""
    def results(functions):
        with unchanged((arguments, dy)):
            y, cache = getattr(functions, f"{name}_forward")(*arguments)
            with unchanged(cache):
                grads = getattr(functions, f"{name}_backward")(dy, cache)
        return y, *(grads if isinstance(grads, tuple) else (grads,))

    for ours, theirs in zip(results(compiled), results(layers), strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            assert_close(ours, theirs, least)


@DTYPES
@pytest.mark.parametrize("C", [1, 2, 3, 5, 7, 17, 33, 65])
def test_layernorm_and_gelu(C, dtype):
    rng = np.random.default_rng(C)
    for shape in ((1, C), (2, 3, C)):
        for laid_out in LAYOUTS:
            x, dy = map(laid_out, unit(rng, dtype, shape, shape))
            weight, bias = unit(rng, dtype, C, C)
            with small_parts(row_bytes=2 * C * x.itemsize):         # blocks of two rows
                check("layernorm", (2 * x + 1, weight, bias, 0.5), dy, least=1.0)       # of 1 or 2 columns, dx is 0
                if C > 2:
                    check("layernorm", (x, weight), dy, least=1.0)
                check("gelu_tanh", (3 * x,), dy)


def masks_of(rng, dtype, B, T, S):
    """Causal; for each entry, with finite values; None."""
    each = np.where(rng.random((B, 1, T, S)) < 0.4, -np.inf, rng.standard_normal((B, 1, T, S)))
    each[..., 0] = 0.5              # each query sees a key
    causal = np.triu(np.full((T, S), -np.inf), k=1 + S - T)
    return [None, causal.astype(dtype), each.astype(dtype), np.asfortranarray(each[:1].astype(dtype))]


@DTYPES
@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 7), (2, 2), (3, 17), (5, 5), (2, 33), (1, 65)])
def test_attention(T, S, dtype):
    rng, B, H, D = np.random.default_rng(S), 3, 2, 4
    drop = (2.0 * (rng.random((B, H, T, S)) < 0.5)).astype(dtype)
    for laid_out in LAYOUTS:
        q, k, v, dmix = map(laid_out, unit(rng, dtype, (B, H, T, D), (B, H, S, D), (B, H, S, D), (B, H, T, D)))
        for mask in masks_of(rng, dtype, B, T, S):
            for dropped in (None, laid_out(drop)):
                check("attention", (q, k, v, 0.7, mask, dropped), dmix)


@DTYPES
@pytest.mark.parametrize("part", range(9))
def test_numbers_of_every_size(part, dtype):
    """From subnormal numbers to the largest whose sums do not overflow; what does, does so where the lesson does."""
    limits, rng = np.finfo(dtype), np.random.default_rng(part)
    size = float(2.0 ** np.linspace(np.log2(float(limits.smallest_subnormal)) + 5, limits.maxexp - 6, 9)[part])
    x, dy, weight, q, k, v, dmix = unit(rng, dtype, (6, 17), (6, 17), 17, *4 * [(1, 2, 5, 3)])
    x, q = (size * x.astype(np.float64)).astype(dtype), (size * q.astype(np.float64)).astype(dtype)
    check("layernorm", (x, weight, weight), dy)
    check("gelu_tanh", (x,), dy)
    for scale in (0.7, 1.0 / size):
        check("attention", (q, k, v, scale), dmix)


@DTYPES
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so_in_its_rows(value, dtype):
    rng = np.random.default_rng(0)
    x, dy, weight, q, k, v, dmix = unit(rng, dtype, (6, 17), (6, 17), 17, *4 * [(2, 2, 5, 3)])
    for i in (0, 7, 16):
        for array in (x, dy):
            wrong = array.copy()
            wrong[[2, 4], i] = value
            arguments, upstream = ((wrong,), dy) if array is x else ((x,), wrong)
            check("layernorm", (*arguments, weight, weight), upstream)
            if array is x or np.isnan(value):       # an infinite dy: infinity, where the lesson adds it to another one
                check("gelu_tanh", arguments, upstream)
    for array in (q, k, v, dmix):
        array[1, 0, 2, 0] = value
        for mask in masks_of(rng, dtype, 2, 5, 5):
            check("attention", (q, k, v, 0.7, mask), dmix)
        array[1, 0, 2, 0] = 1.0


@DTYPES
@pytest.mark.parametrize("V", [1, 2, 3, 7, 33, 65])
@pytest.mark.parametrize("size", [1.0, 1e4, 1e36])
@np.errstate(all="ignore")
def test_cross_entropy(size, V, dtype):
    """The loss, and dlogits, which replace the logits. Rows that do not count get 0, whatever their logits are."""
    rng = np.random.default_rng(V)
    for counts in ([0, 2, 3, 5], [1], range(6)):
        logits, targets = (size * rng.standard_normal((2, 3, V))).astype(dtype), np.full(6, -1)
        targets[counts] = rng.integers(0, V, len(counts))
        targets = targets.reshape(2, 3)
        logits[1, 2, :V // 2] = -np.inf                 # of the last row some, or a target
        for count in (len(counts), 40):
            loss, cache = layers.cross_entropy_forward(logits, targets)
            share, found = len(counts) / count, logits.copy()
            with unchanged(targets), small_parts(row_bytes=2 * V * logits.itemsize):
                ours = compiled.cross_entropy_in_place(found, targets, count, gradient=True)
            assert_close(dtype(ours), loss * dtype(share))
            assert_close(found, layers.cross_entropy_backward(share, cache))
    for value in (np.nan, np.inf):
        logits[0, 0, -1] = value
        found = logits.copy()
        assert np.isnan(compiled.cross_entropy_in_place(found, targets, 6, gradient=True))
        assert np.isnan(found[0, 0, -1]) and np.isfinite(found[0, 1:]).all()
        compiled.cross_entropy_in_place(logits, np.array([[-1, 0, 0], [-1] * 3]), 6, gradient=True)
        assert not logits[0, 0].any()


@DTYPES
@pytest.mark.parametrize(("clip", "weight_decay"), [(1.0, 0.0), (0.3, 0.1)])
def test_adamw(clip, weight_decay, dtype):
    """Three steps on slices of any length, from the smallest gradients to the largest."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 65):
        ours, theirs = ([array.copy() for array in unit(np.random.default_rng(n), dtype, n, n)] for _ in range(2))
        for each in (ours, theirs):
            each.append(abs(each[1]))
        for size in (1.0, 1e-15, 1e15):
            g = (size * rng.standard_normal(n)).astype(dtype)
            with unchanged(g):
                for rule, (p, m, v) in ((compiled.adamw_update, ours), (update.adamw_update, theirs)):
                    found = rule(p, g, m, v, 0.01, 0.02, 1e-8, 0.9, 0.95, weight_decay, clip)
                    assert all(a is b for a, b in zip(found, (p, m, v), strict=True))
            for a, b in zip(ours, theirs, strict=True):
                assert_close(a, b)


@DTYPES
@pytest.mark.parametrize("rows", range(1, 10))
def test_matmuls_of_a_few_rows(rows, dtype):
    """By the loops if there are 2 to 8, and K is a multiple of 8; the number of cores changes no bit."""
    rng = np.random.default_rng(rows)
    for K, N in ((8, 3), (8, 5), (8, 12), (16, 65), (24, 33), (12, 9)):
        x, weight, bias = unit(rng, dtype, (1, rows, K), (K, N), N)
        for name, given in (("linear", weight), ("head", np.ascontiguousarray(weight.T))):
            forward, found = getattr(layers, f"{name}_forward"), []
            multiply = mock.Mock(wraps=few_rows.times if name == "linear" else few_rows.times_transposed)
            some = few_rows.by_loops(multiply, forward)
            for cores in (1, 3):
                with mock.patch.object(few_rows, "BLOCK_BYTES", 0), using_cores(cores), unchanged((x, given, bias)):
                    found.append(some(np.asfortranarray(x), given, bias)[0])
            assert multiply.call_count == 2 * (2 <= rows <= 8 and K % 8 == 0 and N > 3)
            with blas_threads(1):
                assert_close(found[0], forward(x, given, bias)[0])
            if multiply.called:
                np.testing.assert_array_equal(*found)
            some(x, given)                              # a small weight: by the lesson
            assert multiply.call_count < 3


@pytest.mark.parametrize("rows", range(2, 9))
def test_the_weights_next_rows_are_prefetched_once(rows):
    x, weight, prefetched = np.zeros((rows, 33), np.float32), np.zeros((12, 33), np.float32), []
    with uncompiled(), mock.patch.object(few_rows, "prefetch", lambda row: prefetched.append(row.ctypes.data)):
        few_rows._times_transposed(x, weight, 0, 12, np.empty((rows, 12), np.float32))
    lines = weight[4:, ::16]                # of 64 bytes
    assert prefetched == [each.ctypes.data for row in lines for each in np.split(row, row.size)]


@pytest.mark.parametrize(("intel", "matmuls"), [(True, 8), (False, 0)])
def test_a_model_reads_few_texts_by_these_loops(intel, matmuls):
    """On Intel's CPUs all matmuls, on others the head's."""
    idx = np.random.default_rng(0).integers(0, 11, (3, 1))
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16)
    with mock.patch.object(few_rows, "BLOCK_BYTES", 0), mock.patch.object(cpu, "is_intel", lambda: intel), \
         mock.patch.object(few_rows, "times", wraps=few_rows.times) as times, \
         mock.patch.object(few_rows, "times_transposed", wraps=few_rows.times_transposed) as times_transposed:
        ours, reference = (GPT(config, dtype="float64", threads=2, kernels=kernels).engine.reader(3)(idx)
                           for kernels in ("numba", "reference"))
    np.testing.assert_allclose(ours, reference, rtol=1e-10)
    assert (times.call_count, times_transposed.call_count) == (matmuls, 1)

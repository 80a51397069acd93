"""The kernels that sum: over columns, and over whole arrays."""

import math

import numpy as np
import pytest

from tests.cuda.compare import assert_close, device, every_precision, exact, float_precisions

pytestmark = pytest.mark.slow


@every_precision
@pytest.mark.parametrize("N, C, P, block", [(1, 8, 1, 32), (3, 64, 2, 32), (37, 128, 5, 32), (37, 384, 37, 64),
                                            (37, 24, 40, 32), (9, 3072, 3, 96), (5, 6400, 2, 1024)])
def test_column_sum(precision, N, C, P, block):
    gpu = device(precision)
    a = gpu.reals(np.random.default_rng(0).standard_normal((N, C)))
    parts = gpu.nans(P, C)
    gpu.launch("column_sum", P, block, parts, a, N, C)
    for p in range(P):
        assert_close(parts[p], exact(a)[p::P].sum(0))
    out = gpu.nans(C)
    gpu.launch("column_sum_parts", -(-C // 32), 64, out, parts, P, C, 0)
    assert_close(out, exact(a).sum(0))


@float_precisions
@pytest.mark.parametrize("P, C, block", [(1, 8, 32), (3, 40, 64), (37, 33, 1024), (70, 128, 1024), (70, 1600, 128)])
@pytest.mark.parametrize("add", [0, 1])
def test_column_sum_parts(precision, P, C, block, add):
    gpu = device(precision)
    rng = np.random.default_rng(1)
    parts = gpu.floats(rng.standard_normal((P, C)))
    out = gpu.floats(rng.standard_normal(C)) if add else gpu.nans(C)
    expected = exact(parts).sum(0) + (exact(out) if add else 0.0)
    gpu.launch("column_sum_parts", -(-C // 32), block, out, parts, P, C, add)
    assert_close(out, expected)


@float_precisions
@pytest.mark.parametrize("n, block", [(1, 32), (37, 32), (1000, 64), (5000, 1024)])
@pytest.mark.parametrize("add", [0, 1])
def test_sum(precision, n, block, add):
    gpu = device(precision)
    a = gpu.floats(np.random.default_rng(2).random(n))
    out = gpu.floats([0.75]) if add else gpu.nans(1)
    gpu.launch("sum", 1, block, out, a, n, add)
    assert_close(out, np.array([exact(a).sum() + 0.75 * add]))


@float_precisions
@pytest.mark.parametrize("n, P, block", [(4, 1, 32), (4, 3, 32), (4 * 37, 2, 64), (10000, 7, 256)])
def test_global_norm(precision, n, P, block):
    gpu = device(precision)
    a = gpu.floats(np.random.default_rng(3).standard_normal(n))
    parts, out = gpu.nans(P), gpu.nans(1)
    gpu.launch("square_sum", P, block, parts, a, n)
    assert_close(parts.sum(keepdims=True), np.array([(exact(a)**2).sum()]))
    gpu.launch("global_norm", 1, 64, out, parts, P)
    assert_close(out, np.array([math.sqrt((exact(a)**2).sum())]))


@pytest.mark.parametrize("P", [1, 33, 200])
def test_global_norm_of_many_parts(P):
    gpu = device("float64")
    parts, out = gpu.floats(np.random.default_rng(4).random(P)), gpu.nans(1)
    gpu.launch("global_norm", 1, 64, out, parts, P)
    assert_close(out, np.array([math.sqrt(parts.sum())]))


def test_every_order_of_threads_gives_the_same_bits():
    gpu = device("float32")
    a = np.random.default_rng(5).standard_normal((40, 96)).astype(np.float32)
    results = []
    for order in ("forward", "reverse"):
        parts, columns, squares, norm, total = gpu.nans(7, 96), gpu.nans(96), gpu.nans(6), gpu.nans(1), gpu.nans(1)
        gpu.launch("column_sum", 7, 32, parts, a, 40, 96, order=order)
        gpu.launch("column_sum_parts", 3, 128, columns, parts, 7, 96, 0, order=order)
        gpu.launch("square_sum", 6, 64, squares, a, a.size, order=order)
        gpu.launch("global_norm", 1, 64, norm, squares, 6, order=order)
        gpu.launch("sum", 1, 256, total, a, a.size, 0, order=order)
        results.append((parts, columns, squares, norm, total))
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)

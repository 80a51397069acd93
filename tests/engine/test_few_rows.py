"""Matmuls of a few rows, against NumPy's."""

from unittest import mock

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, layers
from npgpt.engine import cpu
from npgpt.engine.threads import blas_threads, using_cores
from tests.cases import unchanged, uncompiled

pytest.importorskip("numba", reason="compiles the loops; it is in the extras fast and test")
from npgpt.engine import few_rows


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("rows", range(1, 10))
def test_matmuls_of_a_few_rows(rows, dtype):
    """By the loops if there are 2 to 8, and K is a multiple of 8; the number of cores changes no bit."""
    rng = np.random.default_rng(rows)
    for K, N in ((8, 3), (8, 5), (8, 12), (16, 65), (24, 33), (12, 9)):
        x, weight, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((1, rows, K), (K, N), N))
        for name, given in (("linear", weight), ("head", np.ascontiguousarray(weight.T))):
            forward, found = getattr(layers, f"{name}_forward"), []
            multiply = mock.Mock(wraps=few_rows.times if name == "linear" else few_rows.times_transposed)
            some = few_rows.by_loops(multiply, forward)
            for cores in (1, 3):
                with mock.patch.object(few_rows, "BLOCK_BYTES", 0), using_cores(cores), unchanged((x, given, bias)):
                    found.append(some(np.asfortranarray(x), given, bias)[0])
            assert multiply.call_count == 2 * (2 <= rows <= 8 and K % 8 == 0 and N > 3)
            with blas_threads(1):
                expected = forward(x, given, bias)[0]
            tolerance = 1e-12 if dtype == np.float64 else 1e-5
            np.testing.assert_allclose(found[0], expected, rtol=0, atol=tolerance * abs(expected).max())
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

"""Matmuls by cublasLt against float64: every transpose, type, bias and sum, on ragged shapes and on GPT-2's."""

import itertools

import numpy as np
import pytest

from npgpt.engine.cuda.gpu import GPU
from tests.engine.cuda.cublaslt import round_to_bfloat16, widen
from tests.gpu.conftest import relative_error

# M, K, N. The last three are a layer's forward, its weight's gradient and the head's, of GPT-2 with few tokens and, for
# the head, a tenth of its vocabulary.
SHAPES = [(8, 8, 8), (40, 72, 24), (5, 64, 8), (128, 768, 2304), (768, 256, 3072), (5056, 128, 768)]
# tf32: 8e-4 if a GPU cuts the operands' bits off, 3e-4 if it rounds. bfloat16: of a rounded result.
TOLERANCE = {"float32": 2e-6, "tf32": 2e-3, "bfloat16": 4e-3}


@pytest.fixture(scope="module", params=list(TOLERANCE))
def gpu(request):
    return GPU(request.param, 64)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmuls(gpu, shape):
    M, K, N = shape
    rng = np.random.default_rng(M + K + N)
    narrow = gpu.precision == "bfloat16"

    def given(rows, columns, transposed, wide=False):
        """An array on the GPU, and its values in float64."""
        host = rng.standard_normal((columns, rows) if transposed else (rows, columns)).astype(np.float32)
        host = round_to_bfloat16(host) if narrow and not wide else host
        there = gpu.xp.asarray(host)
        return (there.T, widen(host).T.astype(np.float64)) if transposed else (there, widen(host).astype(np.float64))

    for of_a, of_b, add, wide in itertools.product((False, True), (False, True), (False, True), {True, not narrow}):
        if narrow and not wide and add:
            continue                            # sums are kept in float32
        if narrow and of_a and M % 8:
            continue                            # rows not of whole 16 bytes: no layer has them; cublasLt may refuse
        (a, exact_a), (b, exact_b) = given(M, K, of_a), given(K, N, of_b)
        out, before = given(M, N, False, wide)
        bias, exact_bias = given(1, N, False, wide)
        for with_bias in (False, True):
            result = out.copy()
            if not add:
                result.view(np.uint8)[...] = 0xFF
            gpu.matmul(a, b, result, bias=bias[0] if with_bias else None, add=add)
            expected = exact_a @ exact_b + (exact_bias if with_bias else 0) + (before if add else 0)
            within = 1e-5 if narrow and wide else TOLERANCE[gpu.precision]
            assert relative_error(widen(result.get()), expected) < within

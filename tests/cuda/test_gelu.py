"""GELU's kernels against layers/gelu.py, both forms."""

import numpy as np
import pytest

from npgpt.layers.gelu import gelu_exact_backward, gelu_exact_forward, gelu_tanh_backward, gelu_tanh_forward
from tests.cuda.compare import assert_close, device, every_precision, exact

pytestmark = pytest.mark.slow

FORMS = {0: (gelu_tanh_forward, gelu_tanh_backward), 1: (gelu_exact_forward, gelu_exact_backward)}


def random_case(gpu, n):
    """x, dy (n): most at unit scale, and some x where phi is 0 or 1."""
    x, dy = np.random.default_rng(n).standard_normal((2, n))
    x[::7] *= 5
    x[3::50], x[5::50] = 1e4, -1e4
    return gpu.reals(x), gpu.reals(dy)


@every_precision
@pytest.mark.parametrize("n, grid, block", [(8, 1, 32), (8 * 37, 1, 32), (8 * 37, 2, 64), (4096, 3, 96)])
@pytest.mark.parametrize("form", FORMS)
def test_forward_and_backward(precision, n, grid, block, form):
    gpu = device(precision)
    forward, backward = FORMS[form]
    x, dy = random_case(gpu, n)
    y_expected, cache = forward(exact(x))
    dx_expected = backward(exact(dy), cache)
    y, dx = gpu.real_nans(n), gpu.real_nans(n)
    gpu.launch("gelu_forward", grid, block, y, x, n, form)
    gpu.launch("gelu_backward", grid, block, dx, dy, x, n, form)
    gpu.launch("gelu_backward", grid, block, dy, dy, x, n, form)        # in place
    near = np.abs(exact(x)) < 100       # the large values would hide the others in a norm
    for actual, expected in ((y, y_expected), (dx, dx_expected)):
        assert_close(actual[near], expected[near])
        assert_close(actual[~near], expected[~near])
    np.testing.assert_array_equal(dy, dx)

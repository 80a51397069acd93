"""AdamW's kernel against `adamw_update`, over steps."""

import math

import numpy as np
import pytest

from npgpt.engine.adamw import adamw_update
from tests.cuda.compare import assert_close, device, exact, float_precisions

pytestmark = pytest.mark.slow

BETA1, BETA2, EPS, DECAY = 0.9, 0.95, 1e-3, 0.1        # eps large, so that its place shows


def random_case(gpu, n):
    rng = np.random.default_rng(n)
    p, g, m = rng.standard_normal((3, n))
    return [gpu.floats(array) for array in (p, g, 0.1 * m, 0.01 * rng.random(n))]


def hyper(t, lr):
    correction = math.sqrt(1.0 - BETA2**t)
    return [lr, lr * correction / (1.0 - BETA1**t), correction]


@float_precisions
@pytest.mark.parametrize("n, n_matrix, grid, block", [(8, 0, 1, 32), (8, 8, 1, 32), (1000, 600, 2, 64),
                                                      (4096, 2048, 40, 32)])
@pytest.mark.parametrize("max_norm", [0.0, 1.0, 1e6])
def test_steps(precision, n, n_matrix, grid, block, max_norm):
    gpu = device(precision)
    p, g, m, v = random_case(gpu, n)
    expected = [exact(array) for array in (p, m, v)]
    for t, lr in ((1, 0.01), (2, 0.02), (10, 0.005)):
        norm = gpu.floats([np.linalg.norm(exact(g))])
        clip = min(1.0, max_norm / (norm[0] + 1e-6)) if max_norm else 1.0
        for part, decay in ((slice(n_matrix), DECAY), (slice(n_matrix, n), 0.0)):
            adamw_update(*(array[part] for array in (expected[0], exact(g), *expected[1:])),
                         t, lr, BETA1, BETA2, EPS, decay, clip)
        gpu.launch("adamw", grid, block, p, g, m, v, norm, gpu.floats(hyper(t, lr)), n, n_matrix,
                   BETA1, BETA2, EPS, DECAY, max_norm)
        for actual, of_layers in zip((p, m, v), expected, strict=True):
            assert_close(actual, of_layers)


@float_precisions
@pytest.mark.parametrize("norm", [np.nan, np.inf])
@pytest.mark.parametrize("max_norm", [0.0, 1.0])
def test_a_norm_that_is_not_finite_changes_nothing(precision, norm, max_norm):
    gpu = device(precision)
    p, g, m, v = random_case(gpu, 64)
    before = [array.copy() for array in (p, m, v)]
    gpu.launch("adamw", 1, 32, p, g, m, v, gpu.floats([norm]), gpu.floats(hyper(1, 0.1)), 64, 32,
               BETA1, BETA2, EPS, DECAY, max_norm)
    for actual, unchanged in zip((p, m, v), before, strict=True):
        np.testing.assert_array_equal(actual, unchanged)

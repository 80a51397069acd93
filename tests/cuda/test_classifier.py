"""The fused softmax cross-entropy against layers/loss.py."""

import numpy as np
import pytest

from npgpt.layers.loss import IGNORE_INDEX, cross_entropy_backward, cross_entropy_forward
from tests.cuda.compare import assert_close, device, every_precision, exact

pytestmark = pytest.mark.slow

# N, V, stride, threads of a block
SHAPES = [(1, 1, 8, 32), (3, 7, 8, 32), (37, 65, 128, 32), (5, 65, 128, 256), (3, 128, 128, 64), (3, 1001, 1088, 96),
          (2, 50257, 50304, 1024)]


def random_case(gpu, N, V, stride, scale=1.0, ignored=()):
    """logits (N, stride), whose padding would be noticed in the maximum or the sum, targets (N)."""
    rng = np.random.default_rng(V)
    logits = np.full((N, stride), np.nan)
    logits[:, V::2] = 3e4
    logits[:, :V] = scale * rng.standard_normal((N, V))
    targets = rng.integers(0, V, N, dtype=np.int32)
    targets[list(ignored)] = IGNORE_INDEX
    return gpu.reals(logits), targets


def check(precision, logits, targets, V, block, gradient):
    """Row by row, since the layer gives the sum of the losses."""
    gpu = device(precision)
    N, stride = logits.shape
    count = N + 3                       # the rows are a part of a larger batch
    before, losses = logits.copy(), gpu.nans(N)
    gpu.launch("classifier", N, block, logits, losses, targets, V, stride, np.array([count], np.int32),
               gradient)
    expected, dlogits = np.zeros(N), np.zeros((N, stride))
    for n in np.flatnonzero(targets != IGNORE_INDEX):
        loss, cache = cross_entropy_forward(exact(before[n:n + 1, :V]), targets[n:n + 1])
        expected[n], dlogits[n, :V] = loss / count, cross_entropy_backward(1.0 / count, cache)
    assert_close(losses, expected)
    if gradient:
        assert_close(logits, dlogits)
        padding = exact(logits[:, V:])
        np.testing.assert_array_equal(padding, 0)
        np.testing.assert_array_equal(exact(logits[targets == IGNORE_INDEX]), 0)
    else:
        np.testing.assert_array_equal(logits, before)


@every_precision
@pytest.mark.parametrize("N, V, stride, block", SHAPES)
@pytest.mark.parametrize("gradient", [0, 1])
def test_losses_and_dlogits(precision, N, V, stride, block, gradient):
    logits, targets = random_case(device(precision), N, V, stride)
    check(precision, logits, targets, V, block, gradient)


@every_precision
@pytest.mark.parametrize("ignored", [[0], [1, 3], range(5)])
def test_targets_that_do_not_count(precision, ignored):
    logits, targets = random_case(device(precision), 5, 65, 128, ignored=ignored)
    for gradient in (0, 1):
        check(precision, logits, targets, 65, 32, gradient)


@every_precision
@pytest.mark.parametrize("V, stride, block", [(65, 128, 32), (1001, 1088, 64)])
@pytest.mark.parametrize("scale", [100.0, 1e4])
@pytest.mark.parametrize("offset", [-1e4, 0.0, 1e4])
def test_large_logits(precision, V, stride, block, scale, offset):
    """Also rows in which all are negative, or the largest comes last or first."""
    gpu = device(precision)
    logits, targets = random_case(gpu, 6, V, stride, scale)
    values = exact(logits) + offset
    values[0, :V] = np.sort(values[0, :V])
    values[1, :V] = -np.sort(-values[1, :V])
    values[2, :V] = -np.abs(values[2, :V])
    values[3, :V] = offset              # all alike
    targets[:2] = V - 1, 0              # the largest
    check(precision, gpu.reals(values), targets, V, block, 1)


def test_largest_at_every_place():
    """The running maximum is handed on from pack to pack, lane to lane and warp to warp."""
    gpu = device("float64")
    logits, _ = random_case(gpu, 65, 65, 72)
    logits[np.arange(65), np.arange(65)] = 800.0
    check("float64", logits, np.roll(np.arange(65, dtype=np.int32), 1), 65, 64, 1)


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_what_is_not_finite_shows_in_the_loss(what):
    gpu = device("float32")
    logits, targets = random_case(gpu, 3, 65, 128)
    logits[1, 20] = what
    losses = gpu.floats(np.zeros(3))
    gpu.launch("classifier", 3, 32, logits, losses, targets, 65, 128, np.array([1], np.int32), 1)
    np.testing.assert_array_equal(np.isfinite(losses), [True, False, True])

"""What the masks are: their mean, their values, their dtype, and that backward uses the forward's."""

import numpy as np
import pytest

from npgpt.layers.dropout import dropout_backward, dropout_forward, dropout_mask


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_expectation_is_one_and_values_are_zero_or_grown(p, dtype):
    mask = dropout_mask(np.random.default_rng(0), (400, 500), p, dtype)
    assert mask.dtype == dtype
    assert set(np.unique(mask)) == {dtype(0.0), dtype(1.0) / dtype(1.0 - p)}
    assert (mask == 0).mean() == pytest.approx(p, abs=0.005)
    assert mask.mean() == pytest.approx(1.0, abs=0.02)


def test_evaluation_and_p_0_drop_nothing():
    assert dropout_mask(None, (3,), 0.5, np.float32) is None
    assert dropout_mask(np.random.default_rng(0), (3,), 0.0, np.float32) is None


def test_the_backward_drops_what_the_forward_dropped():
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 50, 40))
    y, cache = dropout_forward(x, dropout_mask(rng, x.shape, 0.5, x.dtype))
    dx = dropout_backward(dy, cache)
    np.testing.assert_array_equal(y == 0, dx == 0)
    np.testing.assert_allclose(dx[dx != 0], 2 * dy[dx != 0])

"""The dropout masks: their values, mean and dtype."""

import numpy as np
import pytest

from npgpt.model.masks import dropout_mask


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [0.1, 0.9])
def test_values_are_zero_or_scaled_so_that_the_mean_is_one(p, dtype):
    mask = dropout_mask(np.random.default_rng(0), (400, 500), p, dtype)
    assert mask.dtype == dtype
    assert set(np.unique(mask)) == {dtype(0.0), dtype(1.0) / dtype(1.0 - p)}
    assert (mask == 0).mean() == pytest.approx(p, abs=0.005)
    assert mask.mean() == pytest.approx(1.0, abs=0.02)


def test_evaluation_and_p_0_drop_nothing():
    assert dropout_mask(None, (3,), 0.5, np.float32) is None
    assert dropout_mask(np.random.default_rng(0), (3,), 0.0, np.float32) is None

"""The fast sums against NumPy's plain ones."""

import numpy as np
import pytest

from npgpt.engine.sums import column_dot, column_sum, row_dot, row_sum
from tests.layers.elsewhere import Elsewhere

EACH_SHAPE = pytest.mark.parametrize("shape", [(6,), (5, 6), (2, 3, 6), (2, 3, 4, 6), (0, 6)], ids=str)
EACH_DTYPE = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@EACH_DTYPE
@EACH_SHAPE
def test_equal_numpys(shape, dtype):
    a, b = np.random.default_rng(0).standard_normal((2, *shape)).astype(dtype)
    over = tuple(range(len(shape) - 1))
    for ours, theirs in ((row_sum(a), a.sum(axis=-1, keepdims=True)),
                         (row_dot(a, b), (a * b).sum(axis=-1, keepdims=True)),
                         (column_sum(a), a.sum(axis=over)),
                         (column_dot(a, b), (a * b).sum(axis=over))):
        assert ours.shape == theirs.shape and ours.dtype == dtype
        tolerance = 1e-5 if dtype == np.float32 else 1e-12
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_any_memory_layout_will_do():
    a, b = np.random.default_rng(0).standard_normal((2, 4, 6, 3)).swapaxes(1, 3)
    np.testing.assert_allclose(column_dot(a, b), (a * b).sum(axis=(0, 1)), rtol=1e-12)
    np.testing.assert_allclose(column_sum(a), a.sum(axis=(0, 1)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(row_dot(a, b)[..., 0], (a * b).sum(axis=-1), rtol=1e-12, atol=1e-12)


def test_the_ones_are_made_in_the_library_of_the_array():
    a = np.ones((3, 2)).view(Elsewhere)
    Elsewhere.made.clear()
    column_sum(a)
    assert Elsewhere.made == [np.ones]

"""Attention's softmax on scores that exp alone could not take."""

import numpy as np

from npgpt.layers.attention import attention_backward, attention_forward


def test_large_scores_neither_overflow_nor_vanish():
    """Rows that lie thousands apart: each has its own maximum."""
    q = np.array([1e4, -1e4, 1e-4])[None, None, :, None]                # (1, 1, 3, 1): scores of 1e4, -1e4 and 0
    k = np.array([1.0, 1.0, 1.1])[None, None, :, None]
    v = np.random.default_rng(0).standard_normal((1, 1, 3, 2))
    mix, cache = attention_forward(q, k, v, 1.0)
    np.testing.assert_allclose(mix[0, 0, 0], v[0, 0, 2])                # all on the largest,
    np.testing.assert_allclose(mix[0, 0, 1], v[0, 0, :2].mean(axis=0))  # half on each of the two largest,
    np.testing.assert_allclose(mix[0, 0, 2], v[0, 0].mean(axis=0), rtol=1e-4)       # a third on each
    assert all(np.isfinite(grad).all() for grad in attention_backward(np.ones_like(mix), cache))

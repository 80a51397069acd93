"""Attention's softmax on scores that exp alone could not take, and on rows that have none."""

import numpy as np
import pytest

from npgpt.engine.sums import row_sum
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_query_without_keys_gives_zeros_and_changes_nothing_else(dtype, dropped):
    rng = np.random.default_rng(1)
    q, k, v, dmix = (rng.standard_normal((2, 3, 5, 4)).astype(dtype) for _ in range(4))
    mask = np.triu(np.full((5, 5), -np.inf, dtype), k=1)
    mask[[0, 3]] = -np.inf
    kept = (2.0 * (rng.random((2, 3, 5, 5)) < 0.5)).astype(dtype) if dropped else None
    with np.errstate(all="raise", under="ignore"):      # not even on the way is there a NaN
        mix, cache = attention_forward(q, k, v, 0.7, mask, kept)
        dq, dk, dv = attention_backward(dmix, cache)
    assert not mix[:, :, [0, 3]].any() and not dq[:, :, [0, 3]].any()
    others = [1, 2, 4]
    some, some_cache = attention_forward(q[:, :, others], k, v, 0.7, mask[others],
                                         None if kept is None else kept[:, :, others])
    some_dq, some_dk, some_dv = attention_backward(dmix[:, :, others], some_cache)
    tolerance = 1e-5 if dtype is np.float32 else 1e-12
    for ours, theirs in ((mix[:, :, others], some), (dq[:, :, others], some_dq), (dk, some_dk), (dv, some_dv)):
        assert theirs.any()
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "offset", "size"), [
    ("usual", 0.0, 1.0), ("wide", 0.0, 1e3), ("very low", -1e30, 1e24), ("very high", 1e30, 1e24),
    ("as low as float32 goes", float(np.finfo(np.float32).min), 0.0)])
def test_rows_with_keys_keep_their_bits(dtype, name, offset, size):
    """The weights are, to the last bit, those of the softmax that knows nothing of rows without keys."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, 3, 6, 6)).astype(dtype) for _ in range(3))
    q *= size
    mask = (np.triu(np.full((6, 6), -np.inf), k=1) + offset).astype(dtype)
    _, (*_, att, _) = attention_forward(q, k, v, 1.0, mask)
    masked = q @ k.swapaxes(-1, -2) + mask
    exps = np.exp(masked - masked.max(axis=-1, keepdims=True))
    assert att.dtype == dtype and np.isfinite(att).all()
    np.testing.assert_array_equal(att, exps / row_sum(exps))

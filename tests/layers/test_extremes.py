"""Numbers at the ends of their dtype: the layers are finite wherever torch is."""

import math

import numpy as np
import pytest

from npgpt.layers.attention import attention_backward, attention_forward
from npgpt.layers.gelu import gelu_exact_backward, gelu_exact_forward, gelu_tanh_backward, gelu_tanh_forward
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward

torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
F = torch.nn.functional
GELUS = {"none": (gelu_exact_forward, gelu_exact_backward), "tanh": (gelu_tanh_forward, gelu_tanh_backward)}


def every_magnitude(dtype):
    """0, infinity, and numbers of both signs from the smallest, which is denormal, to the largest."""
    limits = np.finfo(dtype)
    smallest, largest = np.log2(float(limits.smallest_subnormal)), np.log2(float(limits.max))
    sizes = np.concatenate([2.0 ** np.linspace(smallest, largest - 1.0, 2000), np.linspace(0.0, 45.0, 901),
                            [float(limits.tiny), float(limits.max), np.inf]]).astype(dtype)
    return np.concatenate([sizes, -sizes])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dy", [1.0, -100.0])
@pytest.mark.parametrize("form", GELUS)
def test_gelu_is_finite_wherever_torch_is(form, dy, dtype):
    forward, backward = GELUS[form]
    x = every_magnitude(dtype)
    dy = np.full_like(x, dy)
    with np.errstate(over="ignore", invalid="ignore"):      # x * x, and 0 times that
        y, cache = forward(x)
        dx = backward(dy, cache)
    tensor = torch.from_numpy(x.copy()).requires_grad_()
    reference = F.gelu(tensor, approximate=form)
    reference.backward(torch.from_numpy(dy))
    tolerance = 1e-5 if dtype is np.float32 else 1e-12
    for ours, theirs in ((y, reference.detach().numpy()), (dx, tensor.grad.numpy())):
        finite = np.isfinite(theirs)
        np.testing.assert_allclose(ours[finite], theirs[finite], rtol=tolerance, atol=tolerance * np.abs(dy[0]))
    if form == "none":
        assert np.isfinite(dx[np.isfinite(x)]).all()


@pytest.mark.parametrize("row", [[-np.inf, 0.0, 1.0], [-3e38, 3e38, 0.0], [-np.inf, -np.inf, 2.0]])
def test_an_ignored_position_adds_nothing_to_the_loss_whatever_its_logits_are(row):
    logits = np.array([[0.5, -1.0, 2.0], row, [1.0, 0.0, -0.5]], np.float32)
    targets = np.array([1, -1, 0])
    with np.errstate(over="ignore"):
        loss, cache = cross_entropy_forward(logits, targets)
    tensor = torch.from_numpy(logits.copy()).requires_grad_()
    reference = F.cross_entropy(tensor, torch.from_numpy(targets), ignore_index=-1)
    reference.backward()
    np.testing.assert_allclose(loss, reference.item(), rtol=1e-6)
    np.testing.assert_allclose(cross_entropy_backward(1.0, cache), tensor.grad.numpy(), rtol=1e-5, atol=1e-7)


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


def test_each_row_of_logits_has_its_own_scale():
    """Rows that lie thousands apart: one row's maximum must not push another's exponentials to zero."""
    logits = np.array([[1e4, 1e4 - 1.0, 0.0], [-1e4, -1e4 - 1.0, -2e4]])
    loss, cache = cross_entropy_forward(logits, np.array([0, 1]))
    assert loss == pytest.approx(math.log(1 + math.exp(-1)) + 0.5, rel=1e-12)
    p = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(cross_entropy_backward(2.0, cache), [[p - 1, 1 - p, 0], [p, -p, 0]], atol=1e-15)

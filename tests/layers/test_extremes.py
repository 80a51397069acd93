"""Numbers at the ends of their dtype: the layers are finite wherever torch is."""

import numpy as np
import pytest

from npgpt.layers.attention import attention_backward, attention_forward
from npgpt.layers.gelu import (
    gelu_exact_backward,
    gelu_exact_forward,
    gelu_tanh_backward,
    gelu_tanh_forward,
)
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward

torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
F = torch.nn.functional
GELUS = {
    "none": (gelu_exact_forward, gelu_exact_backward),
    "tanh": (gelu_tanh_forward, gelu_tanh_backward),
}


def every_magnitude(dtype):
    """0, infinity, and numbers of both signs from the smallest, a denormal, to the largest."""
    limits = np.finfo(dtype)
    powers = 2.0 ** np.linspace(limits.minexp - limits.nmant, limits.maxexp - 1, 2000)
    sizes = np.concatenate([powers, np.linspace(0.0, 45.0, 901), [limits.max, np.inf]])
    return np.concatenate([sizes, -sizes]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", GELUS)
def test_gelu_is_finite_wherever_torch_is(form, dtype):
    forward, backward = GELUS[form]
    x = every_magnitude(dtype)
    dy = np.full_like(x, -100.0)
    with np.errstate(over="ignore", invalid="ignore"):  # x * x, and 0 times that
        y, cache = forward(x)
        dx = backward(dy, cache)
    tensor = torch.from_numpy(x.copy()).requires_grad_()
    reference = F.gelu(tensor, approximate=form)
    reference.backward(torch.from_numpy(dy))
    tolerance = 1e-5 if dtype is np.float32 else 1e-12
    for ours, theirs in ((y, reference.detach().numpy()), (dx, tensor.grad.numpy())):
        finite = np.isfinite(theirs)
        np.testing.assert_allclose(ours[finite], theirs[finite], tolerance, 100 * tolerance)
    if form == "none":
        assert np.isfinite(dx[np.isfinite(x)]).all()


@pytest.mark.parametrize(
    ("row", "target"),
    [
        ([-np.inf, 0.0, 1.0], -1),
        ([-3e38, 3e38, 0.0], -1),
        ([1e4, 1e4 - 1.0, 0.0], 0),
        ([-1e4, -1e4 - 1.0, -2e4], 1),
    ],
)
def test_each_row_of_logits_has_its_own_scale(row, target):
    """An ignored position adds nothing to the loss, whatever its logits are."""
    logits = np.array([[0.5, -1.0, 2.0], row, [1.0, 0.0, -0.5]], np.float32)
    targets = np.array([1, target, 0])
    with np.errstate(over="ignore"):
        loss, cache = cross_entropy_forward(logits, targets)
    tensor = torch.from_numpy(logits.copy()).requires_grad_()
    reference = F.cross_entropy(tensor, torch.from_numpy(targets), ignore_index=-1)
    reference.backward()
    np.testing.assert_allclose(loss, reference.item(), rtol=1e-6)
    dlogits = cross_entropy_backward(1.0, cache)
    np.testing.assert_allclose(dlogits, tensor.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_large_scores_neither_overflow_nor_vanish():
    """Rows that lie thousands apart: each has its own maximum."""
    q = torch.tensor([1e4, -1e4, 1e-4], dtype=torch.float64)[None, None, :, None].requires_grad_()
    k = torch.tensor([1.0, 1.0, 1.1], dtype=torch.float64)[None, None, :, None].requires_grad_()
    v = torch.arange(6.0, dtype=torch.float64).reshape(1, 1, 3, 2).requires_grad_()
    expected = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    expected.sum().backward()
    mix, cache = attention_forward(*(each.detach().numpy() for each in (q, k, v)), 1.0)
    np.testing.assert_allclose(mix, expected.detach().numpy(), rtol=1e-12)
    grads = attention_backward(np.ones_like(mix), cache)
    for ours, tensor in zip(grads, (q, k, v), strict=True):
        np.testing.assert_allclose(ours, tensor.grad.numpy(), rtol=1e-9, atol=1e-11)

"""GELU, the activation of GPT-2's MLP, in the two forms that checkpoints use."""

import math

import numpy as np

from npgpt.engine.rowwise import rowwise
from npgpt.errors import UserError

SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
SQRT_HALF = math.sqrt(0.5)
CUBIC = 0.044715 * SQRT_2_OVER_PI


@rowwise
def gelu_tanh_forward(x):
    """GELU in the tanh form: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), elementwise, any shape.

    This is the form of OpenAI's GPT-2 (Hendrycks & Gimpel 2016, arXiv:1606.08415). phi is what stands for the normal
    distribution function, from 0 to 1. The cache keeps x and phi: phi saves the backward a second tanh, the only
    expensive operation here.
    """
    inner = x * (SQRT_2_OVER_PI + CUBIC * (x * x))      # not a power: that is a hundred times slower
    phi = 0.5 * (1.0 + np.tanh(inner))
    y = x * phi
    return y, (x, phi)


@rowwise
def gelu_tanh_backward(dy, cache):
    """Undo `gelu_tanh_forward`: dy -> dx, same shape. x reaches y twice, outside the tanh and inside it.

    In float32 dx is NaN for |x| > 1.8e19, as torch's is: x * x overflows to infinity, and infinity times 0 is NaN.
    """
    x, phi = cache
    # y = x * phi
    dx_outside = dy * phi
    dphi = dy * x
    # phi = 0.5 * (1.0 + np.tanh(inner)), and tanh' = 1 - tanh^2 = (1 + tanh) (1 - tanh) = 2 phi 2 (1 - phi)
    dinner = dphi * (2.0 * phi * (1.0 - phi))
    # inner = x * (SQRT_2_OVER_PI + CUBIC * (x * x))
    dx_inside = dinner * (SQRT_2_OVER_PI + 3.0 * CUBIC * (x * x))
    dx = dx_outside + dx_inside
    return dx


@rowwise
def gelu_exact_forward(x):
    """GELU in the exact form: y = x Phi(x), with Phi the distribution function of the standard normal; any shape.

    This is torch's nn.GELU(), and so nanoGPT's; it differs from the tanh form by up to 4.7e-4. Needs SciPy for erf
    (`pip install npgpt[gelu]`; UserError without it). The cache keeps x and phi to save a second erf.
    """
    erf = import_erf()
    phi = 0.5 * (1.0 + erf(x * SQRT_HALF))      # Phi(x)
    y = x * phi
    return y, (x, phi)


@rowwise
def gelu_exact_backward(dy, cache):
    """Undo `gelu_exact_forward`: dy -> dx, same shape. The derivative of Phi is the normal density.

    Short cut: dphi is skipped. It is dy * x, and dx_inside = dphi * density. But dy * x can overflow to infinity if |x|
    is huge; the density is 0 there, and infinity times 0 is NaN. x * density is never large, so it is made first.
    """
    x, phi = cache
    # y = x * phi
    dx_outside = dy * phi
    # phi = 0.5 * (1.0 + erf(x * SQRT_HALF)), and d/dx Phi(x) = exp(-x^2 / 2) / sqrt(2 pi)
    density = np.exp(-0.5 * (x * x)) * (0.5 * SQRT_2_OVER_PI)
    dx_inside = dy * (x * density)
    dx = dx_outside + dx_inside
    return dx


def import_erf():
    """SciPy's error function; UserError that names the extra where SciPy is missing."""
    try:
        from scipy.special import erf
    except ImportError:
        raise UserError('activation "gelu" needs SciPy for erf: pip install "npgpt[gelu]", '
                        'or choose activation "gelu_tanh"') from None
    return erf

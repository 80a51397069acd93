"""GELU, the activation of GPT-2's MLP, in the two forms that checkpoints use."""

import math

import numpy as np

SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
SQRT_HALF = math.sqrt(0.5)


def gelu_tanh_forward(x):
    """Compute y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), elementwise: GELU's tanh form.

    Parameters
    ----------
    x : array of any shape, floating

    Returns
    -------
    y : array, x's shape
    cache : tuple
        x, and the tanh: that saves the backward a second tanh, the only expensive operation here.

    References
    ----------
    Hendrycks & Gimpel 2016, arXiv:1606.08415. OpenAI's GPT-2 uses this form.
    """
    inner = SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))       # x**3 calls pow: far slower
    tanh = np.tanh(inner)
    y = 0.5 * x * (1.0 + tanh)
    return y, (x, tanh)


def gelu_tanh_backward(dy, cache):
    """Undo `gelu_tanh_forward`. x reaches y twice: outside the tanh and inside it.

    Parameters
    ----------
    dy : array of any shape
        In float32, dx is NaN for |x| > 1.8e19, as torch's is: x * x overflows to infinity, and
        infinity times 0 is NaN.
    cache : tuple, from `gelu_tanh_forward`

    Returns
    -------
    dx : array, dy's shape
    """
    x, tanh = cache
    # y = 0.5 * x * (1.0 + tanh)
    dx_outside = dy * (0.5 * (1.0 + tanh))
    dtanh = dy * (0.5 * x)
    # tanh = np.tanh(inner), and the derivative of tanh is 1 - tanh^2
    dinner = dtanh * (1.0 - tanh * tanh)
    # inner = SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))
    dx_inside = dinner * (SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * (x * x)))
    dx = dx_outside + dx_inside
    return dx


def gelu_exact_forward(x):
    """Compute y = x Phi(x), elementwise, Phi being the standard normal CDF: GELU's exact form.

    Parameters
    ----------
    x : array of any shape, floating

    Returns
    -------
    y : array, x's shape
    cache : tuple
        x and phi, which saves a second erf.

    Raises
    ------
    ImportError
        SciPy, which has the error function, is not installed.

    References
    ----------
    Hendrycks & Gimpel 2016, arXiv:1606.08415. This is torch's nn.GELU(), which nanoGPT uses; it
    differs from the tanh form by up to 4.7e-4.
    """
    from scipy.special import erf
    phi = 0.5 * (1.0 + erf(x * SQRT_HALF))      # Phi(x)
    y = x * phi
    return y, (x, phi)


def gelu_exact_backward(dy, cache):
    """Undo `gelu_exact_forward`. The derivative of Phi is the density of the normal distribution.

    Parameters
    ----------
    dy : array of any shape
    cache : tuple, from `gelu_exact_forward`

    Returns
    -------
    dx : array, dy's shape

    Notes
    -----
    Fused: dphi is skipped. It is dy * x, and dx_inside = dphi * density. But dy * x can overflow to
    infinity for a large dy; x * density is never large, so it is computed first.
    """
    x, phi = cache
    # y = x * phi
    dx_outside = dy * phi
    # phi = 0.5 * (1.0 + erf(x * SQRT_HALF)), and d/dx Phi(x) = exp(-x^2 / 2) / sqrt(2 pi)
    density = np.exp(-0.5 * (x * x)) * (0.5 * SQRT_2_OVER_PI)
    dx_inside = dy * (x * density)
    dx = dx_outside + dx_inside
    return dx

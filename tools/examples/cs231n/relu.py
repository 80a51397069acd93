"""ReLU. Nothing says the shape of x: give it, as in --input x=4,5."""

import numpy as np


def relu_forward(x):
    """Return max(0, x); the cache is x itself."""
    out = np.maximum(0, x)
    return out, x


def relu_backward(dout, cache):
    x = cache
    dx = dout * (x > 0)
    return dx

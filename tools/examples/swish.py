"""Swish (Ramachandran et al. 2017, arXiv:1710.05941) with a learned beta: a layer of one's own."""

import numpy as np

LESSON = {"x": "B T C", "beta": "C"}  # the shapes of the inputs, by letters


def swish_forward(x, beta):
    """Compute y = x / (1 + exp(-beta x)): x (B, T, C), beta (C,) -> y (B, T, C), cache."""
    s = 1 / (1 + np.exp(-beta * x))  # (B, T, C)
    y = x * s  # (B, T, C)
    return y, (x, beta, s)


def swish_backward(dy, cache):
    """Undo `swish_forward`: dy (B, T, C) -> dx (B, T, C), dbeta (C,)."""
    x, beta, s = cache
    # y = x * s
    ds = dy * x  # (B, T, C)
    # s = 1 / (1 + np.exp(-beta * x)), of which s (1 - s) is the derivative
    dz = ds * s * (1 - s)  # (B, T, C)
    dx = dy * s + dz * beta  # (B, T, C)
    dbeta = (dz * x).sum(axis=(0, 1))  # (C,)
    return dx, dbeta

"""Dropout: in training, each value is zeroed with probability p and the survivors grow by 1 / (1 - p)."""

import numpy as np


def dropout_mask(rng, shape, p, dtype):
    """Draw the mask that `dropout_forward` multiplies by: 0 with probability p, else 1 / (1 - p), so its mean is 1.

    rng is a np.random.Generator, or None in evaluation. Returns an array (shape, dtype), or None where nothing is
    dropped (evaluation, or p = 0). Drawn outside the layers, so that they stay pure and a test can give its own mask.
    """
    if rng is None or p == 0.0:
        return None
    keep = rng.random(shape, dtype=np.float32) >= p
    return keep.astype(dtype) / (1.0 - p)


def dropout_forward(x, mask):
    """y = x * mask, or x itself where the mask is None (Srivastava et al. 2014). The cache is the mask."""
    y = x if mask is None else x * mask
    return y, mask


def dropout_backward(dy, mask):
    """Undo `dropout_forward`: what was dropped gets no gradient, and what grew passes its gradient on as much grown."""
    # y = x * mask
    dx = dy if mask is None else dy * mask
    return dx

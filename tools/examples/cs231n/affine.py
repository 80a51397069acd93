"""A fully connected layer."""

import numpy as np

LESSON = {"x": "N 2 3", "w": "6 M", "b": "M"}


def affine_forward(x, w, b):
    """Flatten each example to one row, and apply a linear map.

    x (N, 2, 3), w (6, M), b (M,) -> out (N, M) and the cache.
    """
    rows = x.reshape(x.shape[0], -1)
    out = rows.dot(w) + b
    cache = (x, w, b)
    return out, cache


def affine_backward(dout, cache):
    """Return the gradients of x, w and b."""
    x, w, b = cache
    drows = dout.dot(w.T)
    dx = drows.reshape(x.shape)
    dw = x.reshape(x.shape[0], -1).T.dot(dout)
    db = np.sum(dout, axis=0)
    return dx, dw, db

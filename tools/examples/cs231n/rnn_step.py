"""One step of a plain RNN with tanh. The shapes stand in the docstring, one a line."""

import numpy as np


def rnn_step_forward(x, prev_h, Wx, Wh, b):
    """Return the next hidden state, (N, H), and the cache.

    x: (N, D)
    prev_h: (N, H)
    Wx: (D, H)
    Wh: (H, H)
    b: (H,)
    """
    a = x @ Wx + prev_h @ Wh + b
    next_h = np.tanh(a)
    cache = (x, prev_h, Wx, Wh, next_h)
    return next_h, cache


def rnn_step_backward(dnext_h, cache):
    x, prev_h, Wx, Wh, next_h = cache
    da = dnext_h * (1 - next_h ** 2)
    dx = da @ Wx.T
    dprev_h = da @ Wh.T
    dWx = x.T @ da
    dWh = prev_h.T @ da
    db = da.sum(axis=0)
    return dx, dprev_h, dWx, dWh, db

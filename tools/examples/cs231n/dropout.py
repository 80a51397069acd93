"""Inverted dropout with a given mask: 1 keeps a value, 0 drops it, and p is the probability to keep one."""

LESSON = {"x": "N D", "mask": "N D: 0..2", "p": 0.6}


def dropout_forward(x, mask, p):
    out = x * mask / p
    cache = (mask, p)
    return out, cache


def dropout_backward(dout, cache):
    mask, p = cache
    dx = dout * mask / p
    return dx

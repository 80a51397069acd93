"""Lesson 0: four tiny pairs with all the rules of backpropagation that the layers need.

They have the form of npgpt/layers: `x_forward` directly followed by `x_backward`, pure functions.
The gradient of `v` is called `dv`, and a backward quotes each line of the forward that it undoes. N
counts rows, C columns; `...` stands for any axes.
"""

import numpy as np


def chain_forward(x, a):
    """Compute y = exp(sin(a x)), elementwise, in three steps. x and a (...) -> y (...), cache."""
    u = a * x                   # (...)
    v = np.sin(u)               # (...)
    y = np.exp(v)               # (...)
    return y, (x, a, u, y)


def chain_backward(dy, cache):
    """Undo `chain_forward`: dy (...) -> dx (...), da (...).

    The chain rule: each line multiplies the gradient of its result by its own derivative, from the
    last line to the first.
    """
    x, a, u, y = cache
    # y = np.exp(v), and the derivative of exp is exp itself: y
    dv = dy * y                 # (...)
    # v = np.sin(u)
    du = dv * np.cos(u)         # (...)
    # u = a * x
    dx = du * a                 # (...)
    da = du * x                 # (...)
    return dx, da


def twice_forward(x):
    """Compute y = exp(x) sin(x), elementwise. x (...) -> y (...), cache. Two lines read x."""
    u = np.exp(x)               # (...) the first use of x
    v = np.sin(x)               # (...) the second use of x
    y = u * v                   # (...)
    return y, (x, u, v)


def twice_backward(dy, cache):
    """Undo `twice_forward`: dy (...) -> dx (...).

    A variable that is used twice gets the sum of two gradients, one for each use.
    """
    x, u, v = cache
    # y = u * v
    du = dy * v                                 # (...)
    dv = dy * u                                 # (...)
    # v = np.sin(x)
    dx_through_v = dv * np.cos(x)               # (...)
    # u = np.exp(x), and the derivative of exp is exp itself: u
    dx_through_u = du * u                       # (...)
    dx = dx_through_u + dx_through_v            # (...)
    return dx


def broadcast_forward(x, gain, bias):
    """Compute y = x gain + bias. x (N, C), gain (N, 1), bias (C,) -> y (N, C), cache.

    NumPy broadcasts the two small arrays: every column gets the same gain, every row the same bias.
    """
    product = x * gain                          # (N, C)
    y = product + bias                          # (N, C)
    return y, (x, gain)


def broadcast_backward(dy, cache):
    """Undo `broadcast_forward`: dy (N, C) -> dx (N, C), dgain (N, 1), dbias (C,).

    A broadcast entry is used many times, so its gradient is the sum over all uses.
    """
    x, gain = cache
    # y = product + bias
    dproduct = dy                                       # (N, C)
    dbias = dy.sum(axis=0)                              # (C,)
    # product = x * gain
    dx = dproduct * gain                                # (N, C)
    dgain = (dproduct * x).sum(axis=1, keepdims=True)   # (N, 1)
    return dx, dgain, dbias


def difference_forward(x, f, h):
    """Compute y = f(x), elementwise, for any f. x (...), h a small step -> y (...), cache."""
    y = f(x)                    # (...)
    return y, (f, x, h)


def difference_backward(dy, cache):
    """Undo `difference_forward`: dy (...) -> dx (...). f is unknown, but can be called.

    Its derivative is measured by a central difference, as every gradient of npgpt is verified. The
    difference of f(x + h) and f(x) would work too, but its error is of order h, that of the central
    difference of order h^2.
    """
    f, x, h = cache
    # y = f(x)
    up = f(x + h)                       # (...)
    down = f(x - h)                     # (...)
    slope = (up - down) / (2.0 * h)     # (...) of f at x
    dx = dy * slope                     # (...)
    return dx

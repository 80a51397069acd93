"""Tables of operations: `npgpt.layers` with some entries replaced."""

from types import SimpleNamespace

import numpy as np

from npgpt import layers


def table(ops=layers, **replaced):
    """The layers of a table by name, with some of them replaced."""
    return SimpleNamespace(**{name: getattr(ops, name) for name in layers.__all__} | replaced)


def without_caches(ops):
    """A table for forwards that have no backward: each layer's cache is None, and its memory free again at once."""
    def forget(forward):
        return lambda *arguments, **named: (forward(*arguments, **named)[0], None)

    forwards = [name for name in layers.__all__ if name.endswith("_forward") and name != "cross_entropy_forward"]
    return table(ops, **{name: forget(getattr(ops, name)) for name in forwards})


def pass_forward(x, weight, bias):
    """Stand in for `head_forward`: return x itself."""
    return x, (weight, bias)


def pass_backward(dx, cache):
    """Undo `pass_forward`: the head's parameters, which were not used, have gradients of 0."""
    weight, bias = cache
    return dx, np.zeros_like(weight), None if bias is None else np.zeros_like(bias)


HEADLESS = table(head_forward=pass_forward, head_backward=pass_backward)

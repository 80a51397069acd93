"""Tables of operations: `npgpt.layers` with some entries replaced, or whose lines see arrays of
another type.
"""

from types import SimpleNamespace

import numpy as np

from npgpt import layers
from npgpt.engine.sources import as_tested
from npgpt.model.variants import NOTHING


def table(ops=layers, **replaced):
    """Return the layers of a table by name, with some of them replaced."""
    return SimpleNamespace(**{name: getattr(ops, name) for name in layers.__all__} | replaced)


def without_caches(ops):
    """Return a table for forwards without a backward: all caches are None, and their memory is
    freed at once.
    """

    def forget(forward):
        return lambda *arguments, **named: (forward(*arguments, **named)[0], None)

    forwards = [
        name
        for name in layers.__all__
        if name.endswith("_forward") and name != "cross_entropy_forward"
    ]
    return table(ops, **{name: forget(getattr(ops, name)) for name in forwards})


def without_frozen(ops, params):
    """Return the table for a model: frozen embeddings cost no gradients.

    A frozen matrix of the head gets 0 instead of the product dlogits^T x, and a block may call the
    same functions for matrices of its own.
    """
    tied, trained = params.config.tie_word_embeddings, params.trained
    name, replaced = "wte" if tied else "lm_head", {}

    def head_backward(dlogits, cache):
        if cache[1] is not params.tree[name]["weight"]:
            return ops.head_backward(dlogits, cache)
        return ops.linear_forward(dlogits, cache[1])[0], NOTHING

    frozen = f"{name}.weight" not in trained
    if frozen and as_tested("gpt_backward", "linear_forward", "head_forward", "head_backward"):
        replaced["head_backward"] = head_backward
    if {"wte.weight", "wpe.weight"}.isdisjoint(trained) and as_tested(
        "gpt_backward", "embedding_backward"
    ):
        replaced["embedding_backward"] = lambda dx, cache: (NOTHING, NOTHING)
    return table(ops, **replaced)


def headless(ops):
    """Return the table without the head: it has what the head reads, x, and gets its gradient, dx.

    The head's gradients are 0. So are the logits, one number unless edited lines may read them.
    """
    edited = not as_tested("gpt_forward", "gpt_backward")

    def head_forward(x, weight):
        found.x = x
        shape = (*x.shape[:-1], len(weight)) if edited else (1, 1, 1)
        return np.zeros_like(x, shape=shape), weight

    def head_backward(dlogits, weight):
        return found.dx, np.zeros_like(weight)

    found = table(ops, head_forward=head_forward, head_backward=head_backward)
    return found


def seen_as(kind, forward, backward):
    """Wrap the pair of a layer: its lines see all arrays as `kind`, a subclass with operators of
    its own.

    The results are plain arrays.
    """
    plain = kind.__base__

    def seen(array):
        return array.view(type=kind) if isinstance(array, plain) else array

    def seeing_forward(*arguments, **named):
        y, cache = forward(
            *map(seen, arguments), **{name: seen(each) for name, each in named.items()}
        )
        return y.view(type=plain), cache

    def seeing_backward(dy, cache):
        grads = backward(seen(dy), cache)
        return tuple(None if each is None else each.view(type=plain) for each in grads)

    return seeing_forward, seeing_backward

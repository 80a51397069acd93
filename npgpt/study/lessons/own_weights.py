"""Find the weights of a layer that is an object, and where it keeps their gradients.

A weight is a floating array in the object before the first forward, for which the backward makes a
gradient: under one of the names of `spelling.py`, as an attribute beside it, in a dict or list of
gradients (`self.grads["w"]`), as `.grad` of the object that holds it, as a local variable of the
backward, as one of its results, or as a change by `lr`.
"""

import dataclasses

import numpy as np

from npgpt.study.gradcheck.spelling import variable_of
from npgpt.study.lessons.lesson import as_tuple
from npgpt.study.lessons.own import RATE, Locals, labels_of
from npgpt.study.lessons.own_state import follow, holders, is_float_array, parts_of

NAMELESS = ("data", "value", "val", "array", "params", "parameters", "weights", "_params", "p")


@dataclasses.dataclass(frozen=True)
class Weight:
    """An array of an object that has a gradient.

    identity: its `id`; path: to it; gradient: the path to its gradient, the name of a local
    variable of the backward, or the learning rate by which the backward changes the weight; None if
    it is one of the backward's results.
    """

    name: str
    identity: int
    path: tuple
    gradient: tuple | str | float | None

    def found(self, layer, before, local):
        """Return the gradient after a backward, or None. before: the weight."""
        if isinstance(self.gradient, float):
            return (before - follow(layer, self.path)) / self.gradient
        if isinstance(self.gradient, str):
            return local.get(self.gradient)
        return self.gradient and follow(layer, self.gradient)


def find_weights(pair, known):
    """Return the `Weight`s of a `Pair` with an object, and `id` -> name of its other arrays.

    known: `id` -> name of arrays that its constructor was given.
    """
    y, rest = pair.run_forward(pair.inputs)
    [layer] = rest.before
    names = {id(value): name for name, value in rest.local.items()}  # W, b = self.params
    places = {}
    for path, _, parts in holders(pair.layer):
        for key, array in parts.items():
            if is_float_array(array):
                now = follow(layer, (*path, key))
                name = names.get(id(now), key) if isinstance(key, int) else key
                places.setdefault(id(array), []).append(
                    (path, key, name, None if now is None else np.copy(now))
                )
    backward = Locals(pair.backward)
    backward(*pair.arguments(tuple(np.ones(np.shape(each)) for each in as_tuple(y)), rest))
    labels = {*labels_of(pair.backward, False).values()}
    rate = next(
        (float(value) for name, value in rest.named.items() if RATE.fullmatch(name) and value), None
    )
    found = []
    gradients = set()
    for identity, held in places.items():
        for path, key, name, before in held:
            place = gradient_of(layer, path, key, name, backward.found, labels)
            changed = (
                rate
                and before is not None
                and not np.array_equal(before, follow(layer, (*path, key)))
            )
            if place is not None or changed:
                place = rate if place is None else None if place == "" else place
                found.append(
                    Weight(known.get(identity) or named(path, name), identity, (*path, key), place)
                )
                gradients |= {id(follow(pair.layer, place))} if isinstance(place, tuple) else set()
                break
    found = [each for each in found if each.identity not in gradients]
    taken = {each.identity for each in found} | gradients
    others = {
        identity: named(held[0][0], held[0][2])
        for identity, held in places.items()
        if identity not in taken
    }
    return unique(found), others


def gradient_of(layer, path, key, name, local, labels):
    """Return the place of the gradient of a layer's array `key` of its part at `path`: see
    `Weight`; "" for a result.
    """
    beside = parts_of(follow(layer, path)) or {}
    above = (parts_of(follow(layer, path[:-1])) or {}) if path else {}
    for there, parts, kept in (
        (path, beside, name),
        (path[:-1], above, path[-1] if path else None),
    ):
        for other, value in parts.items():
            if (
                is_gradient(value)
                and isinstance(other, str)
                and (other, there) != (key, path)
                and (
                    variable_of(other, [str(name)])
                    or there == path
                    and key in NAMELESS
                    and other.startswith("grad")
                )
            ):
                return (*there, other)
            if isinstance(other, str) and (
                "grad" in other.lower() or kept and variable_of(other, [str(kept)])
            ):
                inner = parts_of(value) or {}
                for each in inner:
                    if is_gradient(inner[each]) and (
                        each == key or isinstance(each, str) and variable_of(each, [str(name)])
                    ):
                        return (*there, other, each)
    if not path or len(path) == 1 and path[0] in NAMELESS or isinstance(key, int):
        found = next(
            (
                each
                for each, value in local.items()
                if is_gradient(value) and variable_of(each, [str(name)])
            ),
            None,
        )
        if found:
            return found
        if any(variable_of(each, [str(name)]) for each in labels):
            return ""
    return None


def is_gradient(value):
    return isinstance(value, np.ndarray | np.floating) and value.dtype.kind == "f"


def named(path, name):
    """Return the name of an array: "fc.W" for `self.fc.params["W"]`, "weight" for
    `self.weight.data`.
    """
    words = [str(each) for each in (*path, name) if each not in NAMELESS]
    return ".".join(words) or str(name)


def unique(weights):
    """Return the weights, those of equal names with numbers."""
    names = [each.name for each in weights]
    return tuple(
        dataclasses.replace(each, name=f"{each.name}_{i}") if names.count(each.name) > 1 else each
        for i, each in enumerate(weights)
    )

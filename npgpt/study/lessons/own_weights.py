"""Find the weights of a layer that is an object, and where it keeps their gradients.

A weight is a floating array in the object before the first forward, for which the backward makes a
gradient: under one of the names of `spelling.py`, as an attribute beside it, in a dict or list of
gradients (`self.grads["w"]`), as `.grad` of the object that holds it, as a local variable of the
backward, as one of its results, or as a change by `lr`.
"""

import dataclasses
import itertools
import re

import numpy as np

from npgpt.errors import UserError
from npgpt.study.gradcheck.measure import STEP, derivative, upstream, weighted_sum
from npgpt.study.gradcheck.spelling import variable_of
from npgpt.study.lessons.own_call import RATE, Locals, labels_of
from npgpt.study.lessons.own_state import follow, holders, is_float_array, parts_of, same

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
    """Return the `Weight`s of a `Pair` with an object, and the names of its other arrays that its
    result depends on.

    known: `id` -> name of arrays that its constructor was given.
    """
    for (path, one), (other, array) in itertools.combinations(arrays_in(pair.layer), 2):
        if one is not array and np.shares_memory(one, array):
            both = f"{named(path[:-1], path[-1])} and {named(other[:-1], other[-1])}"
            raise UserError(f"{both} share memory, which in a copy they do not: no verdict")
    y, rest = pair.run_forward(pair.inputs)
    [layer] = rest.before
    names = {id(value): name for name, value in rest.local.items()}  # W, b = self.params
    before = {path: (array, array.tobytes()) for path, array in arrays_in(layer)}
    backward = Locals(pair.backward)
    backward(*pair.arguments(upstream(pair, y), rest))
    made = {
        path: array
        for path, array in arrays_in(layer)
        if path not in before or before[path][0] is not array or before[path][1] != array.tobytes()
    }
    made |= {name: value for name, value in backward.found.items() if is_gradient(value)}
    made |= {f"return {label}": None for label in labels_of(pair.backward).values()}
    rates = [*rest.named.items(), *(parts_of(layer) or {}).items()]
    rates = [float(value) for name, value in rates if isinstance(value, int | float) and value
             and RATE.fullmatch(str(name))]
    rate = next(iter(rates), 0.0)
    weights = []
    others = []
    for path, array in arrays_in(pair.layer):
        if all(each.identity != id(array) for each in weights) and depends(pair, id(array)):
            key = path[-1]
            name = names.get(id(follow(layer, path)), key) if isinstance(key, int) else key
            places = [place for place in made if is_gradient_of(layer, place, path, str(name))]
            places.sort(
                key=lambda place: place[-1] != key
            )  # grads[0] of params[0], before other numbers
            places += [rate] * bool(rate and path in made)
            name = known.get(id(array)) or named(path[:-1], name)
            if places:
                fits = [
                    Weight(name, id(array), path, None if made.get(place, rate) is None else place)
                    for place in places
                ]
                right = (each for each in fits if len(fits) > 1 and agrees(pair, each, array))
                weights.append(next(right, fits[0]))
            else:
                others.append(Weight(name, id(array), path, None))
    taken = {each.gradient for each in weights}
    left = [
        place
        for place in made
        if isinstance(place, tuple)
        and place not in taken
        and (
            re.match("d|.*grad", str(place[-1]), re.IGNORECASE)
            or is_box(place[-2:-1] and place[-2])
        )
    ]
    for each in [*others]:  # `weights` and `dW`: the only ones of a shape
        shape = follow(pair.layer, each.path).shape
        alike = [place for place in left if made[place].shape == shape]
        if len(alike) == 1 == sum(follow(pair.layer, one.path).shape == shape for one in others):
            weights.append(dataclasses.replace(each, gradient=alike[0]))
            others.remove(each)
    return unique(weights), tuple(dict.fromkeys(each.name for each in others))


def arrays_in(value):
    """Return [(path, floating array), …] of all that a value holds."""
    return [
        ((*path, key), each)
        for path, _, parts in holders(value)
        for key, each in parts.items()
        if is_float_array(each)
    ]


def is_gradient_of(layer, place, path, name):
    """Return whether a place, made by a backward, is called like the gradient of the array `name`
    at a path.

    place: a path, the name of a local variable, or "return x" of one of the results.
    """
    *above, key = path

    def is_called(word):
        return isinstance(word, str) and variable_of(word, [name]) == name

    if isinstance(place, str):
        is_near = (
            len(above) == 0 or len(above) == 1 and (above[0] in NAMELESS or isinstance(key, int))
        )
        slots = parts_of(follow(layer, above)) or {}  # an attribute for it, that was left alone?
        return (
            is_near and is_called(place.removeprefix("return ")) and not any(map(is_called, slots))
        )
    *there, last = place
    if there == above:
        return place != path and (
            is_called(last) or key in NAMELESS and str(last).startswith("grad")
        )
    is_same = last == key or isinstance(last, int) and isinstance(key, int) or is_called(last)
    others = [(a, b) for a, b in zip(there, above, strict=False) if a != b]
    box = (
        there[-1:]
        if there[:-1] == above
        else [
            a
            for a, b in others
            if len(there) == len(above)
            and len(others) == 1
            and (is_box(a) or variable_of(str(a), [str(b)]))
        ]
    )
    return (
        is_same
        and any(map(is_box, box))
        or bool(box)
        and last == key
        and len(there) == len(above)
        or (is_called(last) and there == above[:-1])
    )


def is_box(word):
    """Return whether a dict or a list of gradients may be called so."""
    return "grad" in str(word).lower() or word in ("g", "d")


def agrees(pair, weight, array):
    """Return whether what is called the gradient of a weight is right along a random direction."""
    tried = dataclasses.replace(
        pair, weights=(weight,), inputs=pair.inputs | {weight.name: array.astype(np.float64)}
    )
    y, rest = tried.run_forward(tried.inputs)
    dy = upstream(tried, y)
    direction = np.random.default_rng(0).standard_normal(array.shape)

    def output(change):
        return weighted_sum(
            dy,
            tried.run_forward(tried.inputs | {weight.name: tried.inputs[weight.name] + change})[0],
        )

    try:
        given = tried.run_backward(dy, rest)[f"d{weight.name}"]
        true = derivative(output, direction, STEP)
        return abs((given * direction).sum() - true) <= 1e-5 * abs(true)
    except Exception:  # of another shape, or none
        return False


def depends(pair, identity):
    """Return whether the forward's result depends on an array of the object."""
    results = []
    for moved in (), (identity, lambda array: array * 1.25 + 0.5):
        try:
            results.append(dataclasses.replace(pair, moved=moved).run_forward(pair.inputs)[0])
        except Exception:
            return False
    return not same(*results)


def is_gradient(value):
    return isinstance(value, np.ndarray | np.floating) and value.dtype.kind == "f"


def named(path, name):
    """Return the name of an array: "fc.W" for `self.fc.params["W"]`, "weight" for
    `self.weight.data`.
    """
    words = [str(each) for each in (*path, name) if each not in NAMELESS]
    words = [str(each) for each in (*path, name)] if "".join(words).isdecimal() else words
    return ".".join(words) or str(name)


def unique(weights):
    """Return the weights, those of equal names with numbers."""
    names = [each.name for each in weights]
    return tuple(
        dataclasses.replace(each, name=f"{each.name}_{i}") if names.count(each.name) > 1 else each
        for i, each in enumerate(weights)
    )

"""Find the weights of a layer that is an object, and where it keeps their gradients.

A weight is a floating array in the object before the first forward, for which the backward makes a
gradient: under one of the names of `spelling.py`, as an attribute beside it, in a dict or list of
gradients (`self.grads["w"]`), as `.grad` of the object that holds it, as a local variable of the
backward, as one of its results, or as a change by `lr`.
"""

import ast
import dataclasses
import itertools
import re

import numpy as np

from npgpt.errors import UserError
from npgpt.study.gradcheck.measure import STEP, derivative, output_of, run_once, upstream
from npgpt.study.gradcheck.source import is_name, parsed
from npgpt.study.gradcheck.spelling import bare, variable_of
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.lessons.own_call import RATE, Locals, labels_of
from npgpt.study.lessons.own_state import arrays_in, follow, parts_of, same, with_arrays

NAMELESS = "data value val array params parameters weights _params p".split()


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


def find_weights(pair):
    """Return the `Weight`s of a `Pair` with an object, and the names of its other arrays that its
    result depends on.
    """
    check_memory(pair.layer)
    y, rest = pair.run_forward(pair.inputs)
    [layer] = rest.before
    before = {path: (each, np.array(each).tobytes()) for path, each in arrays_in(layer, is_any)}
    backward = Locals(pair.backward)
    backward(*pair.arguments(upstream(pair, y), rest))
    made = {}  # place -> array or number: a sum over all axes may be a mistake
    for path, each in arrays_in(layer, is_any):
        old, content = before.get(path, (None, b""))
        if old is not each or content != np.array(each).tobytes():
            made[path] = each
    read = {node.id for node in ast.walk(parsed(pair.backward)) if is_name(node, ast.Load)}
    local = {name: value for name, value in backward.found.items() if name in read}
    made |= {name: value for name, value in local.items() if is_floating(value)}
    made |= {f"return {label}": None for label in labels_of(pair.backward).values()}
    rate = learning_rate([*rest.named.items(), *(parts_of(layer) or {}).items()])
    names = {id(value): name for name, value in rest.local.items()}  # W, b = self.params
    weights, others = {}, []
    for path, array in arrays_in(pair.layer):
        if id(array) in weights or not depends(pair, array):
            continue
        key = path[-1]
        name = names.get(id(follow(layer, path)), key) if isinstance(key, int) else key
        places = [place for place in made if is_gradient_of(layer, place, path, str(name))]
        # grads[0] of params[0], before other numbers
        places.sort(key=lambda place: (place[-1] != key, np.shape(made[place]) != array.shape))
        gradients = [None if made[place] is None else place for place in places]
        gradients += [rate] * bool(rate and path in made)
        weight = Weight(named((*path[:-1], name)), id(array), path, None)
        found = [dataclasses.replace(weight, gradient=each) for each in gradients]
        if found:
            right = (each for each in found if len(found) > 1 and agrees(pair, each, array))
            weights[id(array)] = next(right, found[0])
        else:
            others.append(weight)
    taken = {each.gradient for each in weights.values()}
    left = [place for place in made if place not in taken and is_gradient_place(place)]
    for each in [*others]:  # `weights` and `dW`: the only ones of a shape
        shape = follow(pair.layer, each.path).shape
        alike = [place for place in left if np.shape(made[place]) == shape]
        if len(alike) == 1 == sum(follow(pair.layer, one.path).shape == shape for one in others):
            weights[each.identity] = dataclasses.replace(each, gradient=alike[0])
            others.remove(each)
    return unique(weights.values()), tuple(dict.fromkeys(each.name for each in others))


def is_any(value):
    """Return whether a value is an array or a number: a gradient, or what was made by mistake."""
    return isinstance(value, np.ndarray | np.number | int | float) and not isinstance(value, bool)


def check_memory(layer):
    """Raise UserError if two arrays of an object share memory: in a copy they do not."""
    for (path, one), (other, array) in itertools.combinations(arrays_in(layer), 2):
        if one is not array and np.shares_memory(one, array):
            both = f"{named(path)} and {named(other)}"
            raise UserError(f"{both} share memory, which in a copy they do not: no verdict")


def learning_rate(arguments):
    """Return the first number in [(name, value), …] that is called like a learning rate, or 0."""
    for name, value in arguments:
        if isinstance(value, int | float) and value and RATE.fullmatch(str(name)):
            return float(value)
    return 0.0


def is_gradient_of(layer, place, path, name):
    """Return whether a place, made by a backward, is called like the gradient of the array `name`
    at a path.

    place: a path, the name of a local variable, or "return x" of one of the results.
    """
    *above, key = path

    def is_called(word):
        return isinstance(word, str) and variable_of(word, [name]) == name

    if isinstance(place, str):
        is_near = not above or len(above) == 1 and (above[0] in NAMELESS or isinstance(key, int))
        slots = parts_of(follow(layer, above)) or {}  # an attribute for it, that was left alone?
        return (
            is_near and is_called(place.removeprefix("return ")) and not any(map(is_called, slots))
        )
    *there, last = place
    if there == above:
        is_grad = key in NAMELESS and str(last).startswith("grad")
        return place != path and (is_called(last) or is_grad)
    if there == above[:-1] and is_called(last):
        return True
    is_same = last == key or isinstance(last, int) and isinstance(key, int) or is_called(last)
    if there[:-1] == above:
        return is_same and is_box(there[-1])
    changed = [(a, b) for a, b in zip(there, above, strict=False) if a != b]
    if len(there) != len(above) or len(changed) != 1:
        return False
    [(box, other)] = changed  # self.grads[0]["W"] beside self.params[0]["W"]
    if is_box(box):
        return is_same
    return last == key and bool(variable_of(str(box), [str(other)]))


def is_gradient_place(place):
    """Return whether a path is called like that of a gradient."""
    if not isinstance(place, tuple):
        return False
    is_named = re.match("d|.*grad", str(place[-1]), re.IGNORECASE)
    return is_named or len(place) > 1 and is_box(place[-2])


def is_box(word):
    """Return whether a dict or a list of gradients may be called so."""
    return "grad" in str(word).lower() or word in ("g", "d")


def agrees(pair, weight, array):
    """Return whether what is called the gradient of a weight is right along a random direction."""
    inputs = pair.inputs | {weight.name: array.astype(np.float64)}
    tried = dataclasses.replace(pair, weights=(weight,), inputs=inputs)
    direction = np.random.default_rng(0).standard_normal(array.shape)
    try:
        _, dy, gradients = run_once(tried)
        true = derivative(output_of(tried, weight.name, dy), direction, STEP)
        return abs((gradients[f"d{weight.name}"] * direction).sum() - true) <= 1e-5 * abs(true)
    except Exception:  # of another shape, or none
        return False


def depends(pair, array):
    """Return whether the forward's result depends on an array of the object."""
    changed = with_arrays(pair.layer, {id(array): array * 1.25 + 0.5})
    try:
        result, _ = pair.run_forward(pair.inputs)
        other, _ = dataclasses.replace(pair, layer=changed).run_forward(pair.inputs)
    except Exception:
        return False
    return not same(result, other)


def named(path):
    """Return the name of an array at a path: "fc.W" for `self.fc.params["W"]`, "weight" for
    `self.weight.data`.
    """
    words = [bare(str(each)) for each in path]
    telling = [each for each in words if each not in NAMELESS]
    if not "".join(telling).isdecimal():
        words = telling
    return ".".join(words) or str(path[-1])


def unique(weights):
    """Return the weights, those of equal names with numbers."""
    names = [each.name for each in weights]
    return tuple(
        dataclasses.replace(each, name=f"{each.name}_{i}") if names.count(each.name) > 1 else each
        for i, each in enumerate(weights)
    )

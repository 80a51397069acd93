"""Make a `Pair` of a user's code: by a text such as "Affine(W=6 5, b=5)", or of functions and
objects.
"""

import contextlib
import dataclasses
import functools
import inspect
import re
from pathlib import Path
from types import FunctionType

import numpy as np

from npgpt.engine.sources import tree_of
from npgpt.engine.watch import tree_in_file
from npgpt.errors import UserError, describe, raised_at
from npgpt.study.gradcheck.measure import upstream
from npgpt.study.gradcheck.source import assigned_anywhere, read_source
from npgpt.study.lessons.inputs import (
    Text,
    drawn,
    input_of,
    is_computed,
    is_shape,
    is_sizes,
    sizes_of,
)
from npgpt.study.lessons.own import Pair
from npgpt.study.lessons.own_find import Found, methods_of, returns_several, run_file
from npgpt.study.lessons.own_state import World, is_float_array, parts_of
from npgpt.study.lessons.own_weights import find_weights

TARGET = re.compile(r"(\w+)\s*(?:\((.*)\))?(?: (\w+) (\w+))?", re.DOTALL)
ARGUMENT = re.compile(r"(?:(\w+)\s*=(?!=))?\s*(.*?)\s*", re.DOTALL)
# Arguments that are arrays, even if only a part of the layer computes their gradient.
VECTORS = re.compile(r"[wb][a-z]?\d?|gamma|beta|bias|weights?", re.IGNORECASE)


class Missing(UserError):
    """An input has no shape and no value."""


def chosen(path, what):
    """Return the `Found` in a file that a text names, and the texts of its arguments."""
    names, found = run_file(path)
    two = what.split(" ")
    if len(two) == 2 and all(map(str.isidentifier, two)):
        lost = [each for each in two if not isinstance(names.get(each), FunctionType)]
        if lost:
            raise UserError(f"{path}: there is no function {lost[0]}")
        return Found(two[0], *two), []
    match = TARGET.fullmatch(what)
    name, arguments, *methods = match.groups() if match else (what, "", "")
    named = names.get(name)
    candidates = [each for each in found if name in (each.name, each.forward)]
    if methods[0] and isinstance(named, type):
        candidates = [Found(name, *methods, named)]
    if not candidates and isinstance(named, FunctionType):
        if returns_several(named):
            return Found(name, name, name), []  # a loss and its gradients, by another name
    if not candidates:
        there = ", ".join(each.name for each in found) or "none of them"
        raise UserError(
            f"{path}: there is no pair {name}_forward and {name}_backward, no class {name} with a "
            f"forward and a backward, and no function {name} that returns a loss and its "
            f"gradients; it has {there}"
        )
    return candidates[0], pieces(arguments or "")


def pieces(text):
    """Split the text of a call's arguments at its commas."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        found = [*found, ""] if letter == "," and not depth else [*found[:-1], found[-1] + letter]
    return [each.strip() for each in found if each.strip()]


def constructed(path, found, texts, names):
    """Return an object of a class.

    texts: the constructor's arguments as written; an array by its shape, "W=6 5".
    """
    members = sum(([*vars(owner).values()] for owner in found.owner.__mro__), [])
    trees = [tree_of(each.__code__) for each in members if isinstance(each, FunctionType)]
    computed = set().union(*map(assigned_anywhere, filter(None, trees)))
    rng = np.random.default_rng(0)
    arguments = []
    for text in texts:
        keyword, said = ARGUMENT.fullmatch(text).groups()
        is_vector = VECTORS.fullmatch(keyword or "") or keyword and is_computed(keyword, computed)
        if is_vector and said.isdecimal() or is_shape(said) and re.search("[ :]", said):
            said = f"__array__({said!r})"
        arguments.append(f"{keyword}={said}" if keyword else said)
    if not texts and required(found.owner):
        raise Missing(f"{path}: what are its arguments, as in {usage(path, found)}?")
    World().reset()
    names = names | {"__array__": lambda shape: drawn(shape, {}, rng), "__owner__": found.owner}
    try:
        return eval(f"__owner__({', '.join(arguments)})", names)
    except Exception as error:
        line = raised_at(error, path)
        at = f"{path}, line {line}" if line else path
        call = f"{found.name}({', '.join(texts)})"
        raise UserError(f"{at}: {call}: {describe(error)}") from None


def required(function):
    """Return the names of a function's parameters without a default, but `self`."""
    return [
        name
        for name, each in inspect.signature(function).parameters.items()
        if each.default is each.empty
        and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        and name != "self"
    ]


def usage(path, found):
    """Return how a command calls one of the `Found`, with what has to be filled in."""
    name = f"{path} {found.name}"
    if found.owner:
        arguments = ", ".join(f"{each}=…" for each in required(found.owner))
        name = f'"{path}:{found.name}({arguments})"'
    forward, _ = found.functions(run_file(path)[0])
    return " ".join([name, *(f"--input {each}=…" for each in required(forward))])


@functools.lru_cache
def read_pair(path, what, given=()):
    """Return the `Pair` of a file that a text names. given: texts of --input, such as "x=4,5".

    Raises UserError if there is none, or an input has no shape; and what its functions raise.
    """
    found, texts = chosen(path, what)
    names, every = run_file(path)
    layer = constructed(path, found, texts, names) if found.is_made else None
    lesson = names.get("LESSON", {})
    if not isinstance(lesson, dict):
        raise UserError(f"{path}: LESSON must be a dict such as {{'x': 'N D'}}")
    of_pairs = {each.name for each in every if isinstance(lesson.get(each.name), dict)}
    said = {name: each for name, each in lesson.items() if name not in of_pairs}
    said |= lesson[found.name] if found.name in of_pairs else {}
    said |= dict(map(input_of, given))
    functions = sum((each.functions(names) for each in [found, *every]), [])
    known = set().union(*(inspect.signature(each).parameters for each in functions))
    if unknown := [name for name in said if name not in known]:
        raise UserError(
            f"{path}: no forward has an argument {unknown[0]}: they have {', '.join(sorted(known))}"
        )
    return make_pair(*found.functions(names), layer, said, path, what=what, given=given)


def pair_in_memory(forward, backward, inputs, constants):
    """Return the `Pair` of two functions, of one of a loss, or of an object. inputs, constants:
    name -> value.
    """
    layer = None
    if isinstance(forward, type):
        name = forward.__name__
        raise UserError(f"{name} is a class: give an object of it, as in {name}(…)")
    if inspect.ismethod(forward) and inspect.ismethod(backward):
        layer, forward, backward = forward.__self__, forward.__func__, backward.__func__
    methods = [] if isinstance(forward, FunctionType) else methods_of(type(forward))
    name = getattr(forward, "__name__", type(forward).__name__).removesuffix("_forward")
    if methods and all(methods):
        layer = forward
        forward, backward = (inspect.getattr_static(type(layer), each) for each in methods)
    return make_pair(forward, backward or forward, layer, inputs, constants=constants, what=name)


def make_pair(forward, backward, layer, said, path="", constants=None, **fields):
    """Return a `Pair`.

    said: argument -> shape, array or value; path: for messages; constants: arguments
    without a gradient.
    """
    for each in (forward, backward):
        tree = tree_in_file(getattr(each, "__code__", None))  # raises without its lines
    computed = assigned_anywhere(tree)
    taken = inspect.signature(forward).parameters
    parameters = {**inspect.signature(backward).parameters, **taken}
    defaults = {name: each.default for name, each in parameters.items()}
    floats = {name: value for name, value in defaults.items() if type(value) is float}
    said = {name: value for name, value in floats.items() if is_computed(name, computed)} | said
    gradients = len(read_source(backward).returned) - (forward is backward)
    is_one_each = gradients == sum(name in said for name in taken) > 1
    shapes, fixed, values = {}, {}, dict(constants or {})
    for name, value in said.items():
        has_gradient = is_computed(name, computed) or is_one_each and name in taken
        if path and type(value) is int and has_gradient:
            value = str(value)  # `b=5` is a vector, `heads=2` a number
        for key, each in arrays_of(name, value).items():
            if type(each) is float and is_computed(name, computed):
                each = np.array(each)
            is_spec = isinstance(each, str) and not isinstance(each, Text)
            if is_float_array(each):
                fixed[key] = each.astype(np.float64)
                shapes[key] = " ".join(map(str, each.shape))
            elif is_spec and not isinstance(defaults.get(name), str):
                if not is_shape(each):
                    raise UserError(
                        f'{path}: {name} is "{each}", which is no shape such as "N D" or "N: 0..9"'
                    )
                shapes[key] = str(each)
            elif name in parameters:
                values[key] = each
    sizes = sizes_of(shapes.values(), 0)
    for key in parameters:
        if key in shapes and key not in taken:  # of the backward alone
            values[key] = fixed.get(key, drawn(shapes[key], sizes, np.random.default_rng(0)))
    argument_of = {key: key.split(".")[0] for key in shapes}
    shapes = {key: shapes[key] for name in taken for key in shapes if argument_of[key] == name}
    check_known(forward, {*argument_of.values(), *values}, path)
    pair = Pair(
        "",
        forward,
        backward,
        shapes,
        values=values,
        fixed=fixed,
        file=path and Path(path),
        layer=layer,
        world=World(forward, backward),
        **fields,
    )
    return with_weights(pair)


def check_known(forward, known, path):
    """Raise `Missing` if an argument of a forward has no shape and no value."""
    for name in required(forward):
        if name not in known:
            how = f"give it, {name}=…"
            if path:
                how = f"use --input {name}=4,5, or a dict LESSON (see npgpt gradcheck --help)"
            raise Missing(f"{path or forward.__name__}: nothing says the shape of {name}: {how}")


def arrays_of(name, value):
    """Return {"params.W": …} for a dict or list of arrays or shapes, {name: value} otherwise."""
    if isinstance(value, dict | list | tuple):
        parts = parts_of(value)
        if parts and all(is_float_array(each) or is_sizes(each) for each in parts.values()):
            return {f"{name}.{key}": each for key, each in parts.items()}
    return {name: value}


def with_weights(pair):
    """Return a `Pair` that knows its object's weights, and the globals that its functions change.

    Raises UserError if nothing has a gradient.
    """
    if pair.layer is not None:
        weights, buffers = find_weights(pair.at())
        if not weights:  # perhaps the first forward makes them
            with contextlib.suppress(Exception):  # it may run once only
                start = pair.at()
                [layer] = start.run_forward(start.inputs)[1].before
                later = dataclasses.replace(pair, layer=layer)
                weights, kept = find_weights(later.at())
                pair, buffers = (later, kept) if weights else (pair, buffers)
        pair = dataclasses.replace(pair, weights=weights, buffers=buffers)
    start = pair.at()
    if not start.inputs:
        raise UserError(
            f"{pair.file or 'verify'}: {pair.name} has no input that is an array of floating "
            "numbers, so nothing has a gradient (x=4 is a number, x=4, a shape)"
        )
    y, cache = start.run_forward(start.inputs)
    start.run_backward(upstream(start, y), cache)
    pair.world.keep_changed()
    return pair

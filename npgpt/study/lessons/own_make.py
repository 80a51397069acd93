"""Make a `Pair` of what other people wrote: by a text such as "Affine(W=6 5, b=5)", or of functions
and objects.
"""

import ast
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
from npgpt.study.gradcheck.source import assigned_anywhere, read_source, returned_value
from npgpt.study.lessons.inputs import (
    as_shapes,
    drawn,
    input_of,
    is_computed,
    is_shape,
    is_sizes,
    is_text,
    sizes_of,
)
from npgpt.study.lessons.own import Pair
from npgpt.study.lessons.own_find import Found, methods_of, run_file
from npgpt.study.lessons.own_state import World, is_float_array, parts_of
from npgpt.study.lessons.own_weights import find_weights

TARGET = re.compile(r"(\w+)\s*(?:\((.*)\))?(?: (\w+) (\w+))?", re.DOTALL)
ARGUMENT = re.compile(r"(?:(\w+)\s*=(?!=))?\s*(.*?)\s*", re.DOTALL)
# Arguments that are arrays, even if only a part of the layer computes their gradient.
VECTORS = re.compile(r"[wb][a-z]?\d?|gamma|beta|bias|weights?", re.IGNORECASE)


class Missing(UserError):
    """Nothing says what an input is."""


def chosen(path, what):
    """Return the `Found` in a file that a text calls for, and the texts of its constructor's
    arguments.
    """
    names, found = run_file(path)
    two = what.split(" ")
    if len(two) == 2 and all(isinstance(names.get(each), FunctionType) for each in two):
        return Found(two[0], *two), []
    if len(two) == 2 and all(map(str.isidentifier, two)):
        lost = next(each for each in two if not isinstance(names.get(each), FunctionType))
        raise UserError(f"{path}: there is no function {lost}")
    match = TARGET.fullmatch(what)
    name, arguments, *methods = match.groups() if match else (what, "", None)
    fits = [each for each in found if name in (each.name, each.forward)]
    if methods[0] and isinstance(names.get(name), type):
        fits = [Found(name, *methods, names[name])]
    function = names.get(name)
    if not fits and isinstance(function, FunctionType) and isinstance(
            returned_value(tree_in_file(function.__code__)), ast.Tuple):
        fits = [Found(name, name, name)]        # a loss and its gradients, by another name
    if not fits:
        raise UserError(
            f"{path}: there is no pair {name}_forward and {name}_backward, no class {name} with a "
            f"forward and a backward, and no function {name} that returns a loss and its gradients; "
            "it has "
            f"{', '.join(each.name for each in found) or 'none of them'}"
        )
    return fits[0], pieces(arguments or "")


def pieces(text):
    """Split the text of a call's arguments at its commas."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        found = [*found, ""] if letter == "," and not depth else [*found[:-1], found[-1] + letter]
    return [each.strip() for each in found if each.strip()]


def constructed(path, found, texts, names):
    """Return an object of a class, and `id` -> name of the arrays that it was given.

    texts: the constructor's arguments as written; an array by its shape, "W=6 5".
    """
    methods = [
        each
        for owner in found.owner.__mro__
        for each in vars(owner).values()
        if isinstance(each, FunctionType)
    ]
    trees = [tree for each in methods if (tree := tree_of(each.__code__))]  # a dataclass has others
    computed = assigned_anywhere(ast.Module(trees, []))
    arrays = {}
    rng = np.random.default_rng(0)

    def array(name, shape):
        value = drawn(shape, {}, rng)
        arrays[id(value)] = name
        return value

    arguments = []
    taken = [*inspect.signature(found.owner).parameters]
    for i, text in enumerate(texts):
        keyword, said = ARGUMENT.fullmatch(text).groups()
        is_vector = (
            keyword
            and said.isdecimal()
            and (VECTORS.fullmatch(keyword) or is_computed(keyword, computed))
        )
        if is_vector or is_shape(said) and not is_python(said):
            said = f"__array__({keyword or ''.join(taken[i : i + 1])!r}, {said!r})"
        arguments.append(f"{keyword}={said}" if keyword else said)
    if not texts and required(found.owner):
        raise Missing(f"{path}: what are its arguments, as in {usage(path, found)}?")
    World().reset()
    try:
        return eval(
            f"__owner__({', '.join(arguments)})",
            names | {"__array__": array, "__owner__": found.owner},
        ), arrays
    except Exception as error:
        line = f", line {line}" if (line := raised_at(error, path)) else ""
        raise UserError(
            f"{path}{line}: {found.name}({', '.join(texts)}): {describe(error)}"
        ) from None


def is_python(text):
    """Return whether a text is an expression."""
    try:
        return bool(ast.parse(text, mode="eval"))
    except SyntaxError:
        return False


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
    """Return the `Pair` of a file that a text calls for. given: texts of --input, such as "x=4,5".

    Raises UserError if there is none, or nothing says what an input is; and what its functions
    raise.
    """
    found, texts = chosen(path, what)
    names, every = run_file(path)
    layer, arrays = constructed(path, found, texts, names) if found.is_made else (None, {})
    lesson = names.get("LESSON", {})
    if not isinstance(lesson, dict):
        raise UserError(f"{path}: LESSON must be a dict such as {{'x': 'N D'}}")
    others = {each.name for each in every if isinstance(lesson.get(each.name), dict)}
    said = {name: each for name, each in lesson.items() if name not in others}
    said |= lesson[found.name] if found.name in others else {}
    said |= dict(map(input_of, given))
    known = {
        name
        for each in [found, *every]
        for function in each.functions(names)
        for name in inspect.signature(function).parameters
    }
    if unknown := [name for name in said if name not in known]:
        raise UserError(
            f"{path}: no forward has an argument {unknown[0]}: they have {', '.join(sorted(known))}"
        )
    return make_pair(*found.functions(names), layer, said, path, arrays, what=what, given=given)


def pair_in_memory(forward, backward, inputs, constants):
    """Return the `Pair` of two functions, of one of a loss, or of an object. inputs, constants:
    name -> value.
    """
    layer = None
    methods = [] if isinstance(forward, FunctionType) else methods_of(type(forward))
    name = getattr(forward, "__name__", type(forward).__name__).removesuffix("_forward")
    if methods and all(methods):
        layer = forward
        forward, backward = (inspect.getattr_static(type(layer), each) for each in methods)
    return make_pair(forward, backward or forward, layer, inputs, constants=constants, what=name)


def make_pair(forward, backward, layer, said, path="", arrays=None, constants=None, **fields):
    """Return a `Pair`.

    said: argument -> shape, array or value; path: for messages; arrays: `id` -> name, of the
    layer's; constants: arguments without a gradient.
    """
    trees = [tree_in_file(getattr(each, "__code__", None)) for each in (forward, backward)]
    parameters = {**inspect.signature(backward).parameters, **inspect.signature(forward).parameters}
    shapes, fixed, values = {}, {}, dict(constants or {})
    computed = assigned_anywhere(trees[1])
    taken = [*inspect.signature(forward).parameters]
    numbers = {name for name in taken if type(said.get(name)) is int}
    results = len(read_source(backward).returned) - (forward is backward)
    if path and results == sum(name in said for name in taken) and results > 1:
        said = {name: str(each) if name in numbers else each for name, each in said.items()}
    said = {
        name: each.default
        for name, each in parameters.items()
        if type(each.default) is float and is_computed(name, computed)
    } | said
    for name, value in (as_shapes(said, computed) if path else said).items():
        inner = parts_of(value) if isinstance(value, dict | list | tuple) else None
        if not inner or not all(is_float_array(each) or is_sizes(each) for each in inner.values()):
            inner = None
        default = parameters[name].default if name in parameters else None
        for key, each in inner.items() if inner else [("", value)]:
            key = f"{name}.{key}" if inner else name
            if type(each) is float and is_computed(name, computed):
                each = np.array(each)
            if is_float_array(each):
                fixed[key] = each.astype(np.float64)
                shapes[key] = " ".join(map(str, each.shape))
            elif isinstance(each, str) and not is_text(each) and not isinstance(default, str):
                if not is_shape(each):
                    raise UserError(
                        f'{path}: {name} is "{each}", which is no shape such as "N D" or "N: 0..9"'
                    )
                shapes[key] = str(each)
            elif name in parameters:
                values[key] = each
    sizes = sizes_of(shapes.values(), 0)
    values |= {
        key: fixed.get(key, drawn(spec, sizes, np.random.default_rng(0)))
        for key, spec in shapes.items()
        if key.split(".")[0] not in taken and key in parameters  # of the backward alone
    }
    shapes = {key: shapes[key] for name in taken for key in shapes if key.split(".")[0] == name}
    known = {key.split(".")[0] for key in shapes} | values.keys()
    if missing := [name for name in required(forward) if name not in known]:
        how = f"use --input {missing[0]}=4,5, or a dict LESSON (see npgpt gradcheck --help)"
        how = how if path else f"give it, {missing[0]}=…"
        raise Missing(f"{path or forward.__name__}: nothing says the shape of {missing[0]}: {how}")
    world = World(forward, backward)
    pair = Pair(
        "",
        forward,
        backward,
        shapes,
        values=values,
        fixed=fixed,
        file=path and Path(path),
        layer=layer,
        world=world,
        **fields,
    )
    return with_weights(pair, arrays or {})


def with_weights(pair, arrays):
    """Return a `Pair` that knows its object's weights, and the globals that its functions change.

    Raises UserError if nothing has a gradient.
    """
    if pair.layer is not None:
        weights, buffers = find_weights(pair.at(), arrays)
        if not weights:             # perhaps the first forward makes them
            with contextlib.suppress(Exception):        # it may run once only
                start = pair.at()
                [layer] = start.run_forward(start.inputs)[1].before
                later = dataclasses.replace(pair, layer=layer)
                weights, kept = find_weights(later.at(), {})
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

"""Find forward and backward passes in other people's files: pairs of functions, classes, losses
with their gradients.

`x_forward` and `x_backward`, also with a word after it (`x_forward_naive`), `forward_x`, or x and
`x_backward`; a backward may have no forward of its own ending. A class has two methods, `forward`
and `backward` or names like these. A function `x_loss` may return the loss and its gradients. What
the inputs are is said by a dict `LESSON` in the file (see inputs.py), also {"swish": {"x": "N D"}}
for each, or by --input.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import re
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np

from npgpt.engine.watch import tree_in_file
from npgpt.errors import UserError, describe, raised_at
from npgpt.files import read_python, run_python
from npgpt.study.gradcheck.measure import upstream
from npgpt.study.gradcheck.source import assigned_anywhere, returned_value
from npgpt.study.lessons.inputs import (
    Text,
    Word,
    as_shapes,
    drawn,
    input_of,
    is_computed,
    is_shape,
    is_sizes,
)
from npgpt.study.lessons.own import Pair
from npgpt.study.lessons.own_state import World, globals_of, is_float_array, parts_of
from npgpt.study.lessons.own_weights import find_weights

FORWARD = re.compile(r"(?P<start>.*?)_?(?:forward|fwd|fprop)(?P<end>(?:_\w+)?)")
BACKWARD = re.compile(r"(?P<start>.*?)_?(?:backward|bwd|bprop|backprop)(?P<end>(?:_\w+)?)")
FORWARDS = (
    "forward",
    "forward_pass",
    "fprop",
    "fwd",
    "forward_prop",
    "feed_forward",
    "feedforward",
    "_forward",
    "__call__",
    "calculate",
    "compute",
    "loss",
    "propagate",
    "forward_propagation",
    "forward_propagate",
)
BACKWARDS = (
    "backward",
    "backward_pass",
    "bprop",
    "bwd",
    "backprop",
    "backward_prop",
    "back_prop",
    "_backward",
    "back_propagation",
    "backpropagation",
    "backward_propagation",
    "backward_propagate",
    "gradient",
    "grad",
)
DEEPER = 2  # folders above a package, for the relative imports of what it imports
# of constructors: arrays, even if only a part of the layer computes their gradient
VECTORS = re.compile(r"[wb][a-z]?\d?|gamma|beta|bias|weights?", re.IGNORECASE)


class Missing(UserError):
    """Nothing says what an input is."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What a file has: a pair of functions (or one function twice), or a class with the names of
    two methods.
    """

    name: str
    forward: str
    backward: str
    owner: type | None = None


def names_pair(forward, backward):
    """Return whether two functions are called like a pair."""
    first, second = FORWARD.fullmatch(forward), BACKWARD.fullmatch(backward)
    if not second or not second["start"] and not second["end"]:
        return bool(second) and forward in ("forward", "fwd")
    if not first:
        return second["start"] == forward and not second["end"]
    return first["start"] == second["start"] and (
        first["end"] == second["end"]
        or bool(first["start"])
        and bool(first["end"] or second["end"])
    )


def passes_in(tree, names):
    """Return all `Found` in a file that has run."""
    defined = {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    own = {
        name: each
        for name, each in names.items()
        if isinstance(each, FunctionType | type)
        and each.__module__ == names["__name__"]
        and each.__name__ in defined
    }
    functions = [name for name, each in own.items() if isinstance(each, FunctionType)]
    found = []
    for backward in functions:
        fits = [each for each in functions if each != backward and names_pair(each, backward)]
        fits.sort(key=lambda each: ends(each) != ends(backward))
        for forward in fits[:1]:
            found.append(Found(name_of(forward, backward, found), forward, backward))
    for name in functions:
        returned = returned_value(defined[own[name].__name__])
        if (
            re.search(r"(^|_)loss(_|$)", name)
            and isinstance(returned, ast.Tuple)
            and all(name not in (each.forward, each.backward) for each in found)
        ):
            found.append(Found(name, name, name))
    methods = {name: methods_of(each) for name, each in own.items() if isinstance(each, type)}
    return found + [Found(name, *each, own[name]) for name, each in methods.items() if each]


def ends(name):
    """Return the word after "forward" or "backward" in a name."""
    match = BACKWARD.fullmatch(name) or FORWARD.fullmatch(name)
    return match["end"] if match else ""


def methods_of(owner):
    """Return the names of a class's forward and backward, or None; those that only raise are none.
    """

    def method(names):
        found = ((name, inspect.getattr_static(owner, name, None)) for name in names)
        return next(
            (
                name
                for name, each in found
                if isinstance(each, FunctionType) and not is_abstract(each)
            ),
            None,
        )

    both = method(FORWARDS), method(BACKWARDS)
    return both if all(both) else None


def is_abstract(function):
    body = [
        each
        for each in tree_in_file(function.__code__).body
        if not isinstance(each, ast.Expr) or not isinstance(each.value, ast.Constant)
    ]
    return all(isinstance(each, ast.Raise | ast.Pass) for each in body) or getattr(
        function, "__isabstractmethod__", False
    )


def name_of(forward, backward, found):
    """Return how a pair is called: "swish", or "conv_fast" for the second backward of a forward."""
    match = FORWARD.fullmatch(forward)
    name = "_".join(filter(None, [match["start"], match["end"].strip("_")])) if match else forward
    if any(each.name == name or each.forward == forward for each in found):
        end = BACKWARD.fullmatch(backward)
        name = "_".join(filter(None, [end["start"], end["end"].strip("_")]))
    return name or forward


@functools.lru_cache
def run_file(path):
    """Run a file as its package would. Return its names, and the `Found` in it."""
    tree = read_python(path)[1]
    names = run_python(path, import_folders(Path(path), tree))[1]
    return names, passes_in(tree, names)


def import_folders(path, tree):
    """Let a file import what is beside it, in its package, and in the folders above it; return its
    package's name.
    """
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    levels = [node.level for node in nodes if isinstance(node, ast.ImportFrom)]
    wanted = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    wanted |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    wanted = {
        name
        for name in wanted
        if name.split(".")[0] not in {*sys.stdlib_module_names, "numpy", "scipy"}
    }
    root = path.resolve().parent
    package = []
    deep = max(levels, default=0) and max(levels) + DEEPER
    while (
        (root / "__init__.py").is_file()
        or len(package) < deep
        and root.name
        and "." not in root.name
    ):
        package.insert(0, root.name)
        root = root.parent
    for name in wanted:
        there = (
            folder
            for folder in path.resolve().parents
            if folder.joinpath(*name.split(".")).is_dir()
            or folder.joinpath(*name.split(".")).with_suffix(".py").is_file()
        )
        sys.path[:0] = map(str, itertools.islice(there, 1))
    sys.path[:0] = [str(root)] * bool(package)
    for i in range(bool(max(levels, default=0)) * len(package)):
        name = ".".join(package[: i + 1])
        try:
            importlib.import_module(name)
        except Exception:  # what the file imports may do without
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(root.joinpath(*package[: i + 1]))]
    return ".".join(package)


def split_target(what):
    """Return the name, the arguments' texts, and two methods or (), of "Affine(W=6 5, b=5) forward
    backward".
    """
    match = re.fullmatch(r"(\w+)\s*(\(.*\))?(?: (\w+) (\w+))?", what, re.DOTALL)
    if match is None:
        raise UserError(f'"{what}" is no name, and no call such as Affine(W=6 5, b=5)')
    pieces, depth = [""], 0
    for letter in (match[2] or "()")[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += letter
    return (
        match[1],
        [each.strip() for each in pieces if each.strip()],
        match.groups()[2:] if match[3] else (),
    )


def chosen(path, what):
    """Return the `Found` in a file that a text calls for, and the texts of its constructor's
    arguments.

    Raises UserError if there is none.
    """
    names, found = run_file(path)
    if match := re.fullmatch(r"(\w+) (\w+)", what):
        if missing := [
            each for each in match.groups() if not isinstance(names.get(each), FunctionType)
        ]:
            raise UserError(f"{path}: there is no function {missing[0]}")
        return Found(match[1], *match.groups()), []
    name, texts, methods = split_target(what)
    if methods and name in names:
        return Found(name, *methods, names[name]), texts
    fits = [each for each in found if name in (each.name, each.forward)]
    if not fits:
        raise UserError(
            f"{path}: there is no pair {name}_forward and {name}_backward, no class {name} with a forward "
            f"and a backward, and no function {name} that returns a loss and its gradients; it has "
            f"{', '.join(each.name for each in found) or 'none of them'}"
        )
    return fits[0], texts


def constructed(path, found, texts, names):
    """Return an object of a class, and `id` -> name of the arrays that it was given.

    texts: the constructor's arguments as written; an array by its shape, "W=6 5".
    """
    rng = np.random.default_rng(0)
    methods = [
        each
        for owner in found.owner.__mro__
        for each in vars(owner).values()
        if isinstance(each, FunctionType)
    ]
    computed = assigned_anywhere(ast.Module([tree_in_file(each.__code__) for each in methods], []))
    taken = [*inspect.signature(found.owner).parameters]
    arguments = []
    named = {}
    arrays = {}
    for text, name in zip(texts, taken + [""] * len(texts), strict=False):
        before, is_named, said = text.partition("=")
        keyword = (
            before.strip() if is_named and before.strip().isidentifier() and said[:1] != "=" else ""
        )
        said = said.strip() if keyword else text
        try:
            value = eval(compile(said, path, "eval"), names)
            shape = None
            if (
                type(value) is int
                and keyword
                and (VECTORS.fullmatch(keyword) or is_computed(keyword, computed))
            ):
                shape = str(value)
        except SyntaxError:
            shape = said if is_shape(said) else None
            if shape is None:
                raise UserError(
                    f"{path}: {found.name}({text}): write a Python value, or the shape of an array, "
                    "W=6 5"
                ) from None
        except Exception as error:
            raise UserError(f"{path}: {found.name}({text}): {describe(error)}") from None
        if shape is not None:
            value = drawn(shape, {}, rng)
            arrays[id(value)] = keyword or name
        if keyword:
            named[keyword] = value
        else:
            arguments.append(value)
    World({}).reset()
    if required(found.owner) and not texts:
        raise Missing(f"{path}: what are its arguments, as in {usage(path, found)}?")
    try:
        return found.owner(*arguments, **named), arrays
    except Exception as error:
        line = f", line {line}" if (line := raised_at(error, path)) else ""
        raise UserError(
            f"{path}{line}: {found.name}({', '.join(texts)}): {describe(error)}"
        ) from None


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
    name, forward = f"{path} {found.name}", run_file(path)[0].get(found.forward)
    if found.owner:
        arguments = ", ".join(f"{each}=…" for each in required(found.owner))
        name, forward = f'"{path}:{found.name}({arguments})"', getattr(found.owner, found.forward)
    return " ".join([name, *(f"--input {each}=…" for each in required(forward))])


@functools.lru_cache
def read_pair(path, what, given=()):
    """Return the `Pair` of a file that a text calls for. given: texts of --input, such as "x=4,5".

    Raises UserError if there is none, or nothing says what an input is; and what its functions
    raise.
    """
    found, texts = chosen(path, what)
    names, every = run_file(path)
    forward, backward = (
        inspect.getattr_static(found.owner, each) if found.owner else names[each]
        for each in (found.forward, found.backward)
    )
    layer, arrays = constructed(path, found, texts, names) if found.owner else (None, {})
    values = dict(map(input_of, given))
    lesson = names.get("LESSON", {})
    if not isinstance(lesson, dict):
        raise UserError(f"{path}: LESSON must be a dict such as {{'x': 'N D'}}")
    several = {each.name for each in every}
    said = {
        name: each
        for name, each in lesson.items()
        if name not in several or not isinstance(each, dict)
    }
    mine = lesson.get(found.name)
    said |= mine if isinstance(mine, dict) else {}
    known = {
        name
        for each in every
        for function in (each.forward, each.backward)
        for name in inspect.signature(
            getattr(each.owner, function) if each.owner else names[function]
        ).parameters
    }
    if unknown := [name for name in said if name not in known]:
        raise UserError(
            f"{path}: no forward has an argument {unknown[0]}: they have {', '.join(sorted(known))}"
        )
    return make_pair(
        forward,
        backward,
        layer,
        said | values,
        World(globals_of(forward, backward)),
        path,
        arrays,
        what=what or found.name,
        given=given,
    )


def pair_in_memory(forward, backward, inputs, constants):
    """Return the `Pair` of two functions, of one of a loss, or of an object. inputs, constants:
    name -> value.
    """
    layer = None
    methods = None if isinstance(forward, FunctionType) else methods_of(type(forward))
    if methods:
        layer = forward
        forward, backward = (inspect.getattr_static(type(layer), each) for each in methods)
    fixed = {}
    for name, value in inputs.items():
        for path, each in (
            [(name, value)]
            if not isinstance(value, dict)
            else [(f"{name}.{key}", each) for key, each in value.items()]
        ):
            if is_float_array(each):
                fixed[path] = each.astype(np.float64)
    if not fixed and layer is None:
        raise UserError(
            "verify needs an array of floating numbers: verify(f_forward, f_backward, x=np.ones(3))"
        )
    roots = {path.split(".")[0] for path in fixed}
    values = {
        name: Text(value) if isinstance(value, str) else value
        for name, value in (inputs | constants).items()
        if name not in roots
    }
    said = values | {path: " ".join(map(str, array.shape)) for path, array in fixed.items()}
    backward = backward or forward
    for each in (forward, backward):
        tree_in_file(getattr(each, "__code__", None))  # raises without the lines
    return make_pair(
        forward,
        backward,
        layer,
        said,
        World(globals_of(forward, backward)),
        fixed=fixed,
        what=type(layer).__name__ if methods else forward.__name__.removesuffix("_forward"),
    )


def make_pair(forward, backward, layer, said, world, path="", arrays=None, **fields):
    """Return a `Pair`. said: argument -> shape or value; path: for messages; arrays: `id` -> name,
    of the layer's.
    """
    parameters = [*inspect.signature(forward).parameters.values()][layer is not None :]
    computed = assigned_anywhere(tree_in_file(getattr(backward, "__code__", None)))
    said = as_shapes(said, computed)
    defaults = {each.name: each.default for each in parameters}
    also = inspect.signature(backward).parameters
    shapes, values = {}, {}
    for name, value in said.items():
        if "." in name:
            shapes[name] = value
        elif (
            isinstance(value, dict | list | tuple)
            and value
            and all(map(is_sizes, parts_of(value).values()))
        ):
            shapes |= {f"{name}.{key}": each for key, each in parts_of(value).items()}
        elif (
            isinstance(value, str)
            and not isinstance(defaults.get(name), str)
            and (not isinstance(value, Text) or isinstance(value, Word))
        ):
            if not is_shape(value):
                raise UserError(
                    f'{path}: {name} is "{value}", which is no shape such as "N D" or "N: 0..9"'
                )
            shapes[name] = str(value)
        elif name in defaults or name in also:
            values[name] = value
    order = [each.name for each in parameters]
    shapes = {name: shapes[name] for root in order for name in shapes if name.split(".")[0] == root}
    roots = {name.split(".")[0] for name in shapes} | values.keys()
    if missing := [name for name in required(forward) if name not in roots]:
        raise Missing(
            f"{path}: nothing says the shape of {missing[0]}: use --input {missing[0]}=4,5, or a "
            "dict LESSON (see npgpt gradcheck --help)"
        )
    return with_weights(
        Pair(
            "",
            forward,
            backward,
            shapes,
            values=values,
            file=path and Path(path),
            layer=layer,
            world=world,
            **fields,
        ),
        arrays or {},
    )


def with_weights(pair, arrays):
    """Return a `Pair` that knows its object's weights, and the globals that its functions change.

    Raises UserError if nothing has a gradient.
    """
    if pair.layer is not None:
        weights, others = find_weights(pair.at(), arrays)
        pair = dataclasses.replace(pair, weights=weights, buffers=tuple(others.items()))
    start = pair.at()
    if not start.inputs:
        raise UserError(
            f"{pair.file}: {pair.name} has no input of floating numbers, so nothing has a gradient"
        )
    y, cache = start.run_forward(start.inputs)
    start.run_backward(upstream(start, y), cache)
    pair.world.keep_changed()
    return pair

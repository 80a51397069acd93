"""A user's pair of functions as a lesson: in a file or a notebook, without a word of npgpt.

`swish_forward(x, beta)` returns the result and a cache, or several results and a cache; `swish_backward(dy, cache)`, or
with several gradients before the cache, returns a gradient for each input: an array, a tuple or a dict. A single
function `hinge_loss(…)` may return the loss and the gradients. What the inputs are, the file says
in a dict `LESSON`:

    LESSON = {"x": "N D", "w": "D 4H", "b": "4H",           # sizes by letters or numbers
              "y": "N: 0..C", "p": "N D: 0.1..0.9",         # integers below C, which are constant; numbers in a range
              "mask": "N D: constant", "eps": 1e-5}         # no gradient; any other Python value
"""

import ast
import dataclasses
import functools
import inspect
import random
import re
from pathlib import Path

import numpy as np

from npgpt.engine.watch import tree_in_file
from npgpt.errors import UserError
from npgpt.files import run_python
from npgpt.study.lessons.lesson import Lesson, as_tuple, map_arrays
from npgpt.study.lessons.setting import PLAIN, SIZE, shape_of

PLAIN_SIZES = 4, 5, 6, 3, 7, 8, 9, 2        # of the letters, in the order in which they are named
SHAPE = re.compile(r"((?:\w+\s*)*)(?::\s*(constant|(-?\w+|-?\d+\.\d+)\.\.(-?\w+|-?\d+\.\d+)))?")


@dataclasses.dataclass(frozen=True, eq=False)
class Pair(Lesson):
    """A user's pair. shapes: as in `LESSON`; values: the other constants; results: in order; file:
    or None.
    """

    values: dict = dataclasses.field(default_factory=dict)
    results: tuple[str, ...] = ()
    file: Path | None = None

    is_own = True
    is_one_function = property(lambda self: self.forward is self.backward)
    key = property(lambda self: f"{self.file}:{self.name}")
    derivation = property(lambda self: self.file.with_suffix(".md"))

    def sizes_at(self, setting):
        letters = dict.fromkeys(letter for spec in self.shapes.values() for each in parts(spec)[0].split()
                                if (letter := SIZE.fullmatch(each)[2]))
        sizes = [*PLAIN_SIZES, *range(10, 10 + len(letters))]
        if setting.seed:
            random.Random(setting.seed).shuffle(sizes)
        return dict(zip(letters, sizes, strict=False))

    def at(self, setting=PLAIN):
        rng = np.random.default_rng([setting.seed, *self.name.encode()])
        sizes = self.sizes_at(setting)
        inputs = {}
        constants = dict(self.values)
        for name, spec in self.shapes.items():
            letters, kind, limits = parts(spec)
            shape = shape_of(letters, sizes)
            if kind == "integers":
                array = rng.integers(*(shape_of(each, sizes)[0] for each in limits), shape)
            else:
                array = rng.uniform(*map(float, limits), shape) if limits else rng.standard_normal(shape)
            (inputs if kind == "input" else constants)[name] = np.asarray(array)
        return dataclasses.replace(self, inputs=inputs, constants=constants)

    def run_forward(self, inputs, forward=None):
        result = self.called(forward or self.forward, inputs)
        n = 1 if self.is_one_function else len(inspect.signature(self.backward).parameters) - 1
        if not isinstance(result, tuple) or len(result) < 2 or len(result) != n + 1 and not self.is_one_function:
            wanted = "the loss and its gradients" if self.is_one_function else (
                "the result and a cache")
            raise UserError(f"{self.forward.__name__} returned {kind_of(result)}, not {wanted}")
        return (result[0] if n == 1 else result[:n]), result[-1]

    def run_backward(self, dy, cache, backward=None):
        backward = backward or self.backward
        if self.is_one_function:
            _, *gradients = self.called(backward, self.inputs)
            return self.named(gradients[0] if isinstance(gradients[0], dict) else gradients)
        return self.named(backward(*as_tuple(dy), cache))

    def called(self, function, inputs):
        return function(**map_arrays(np.copy, inputs | self.constants))         # it may write to them

    def named(self, result):
        if isinstance(result, dict):
            return {f"d{name}": result.get(name, result.get(f"d{name}")) for name in self.inputs}
        values = result if isinstance(result, tuple | list) else (result,)
        if result is None or len(values) != len(self.results):
            raise UserError(f"{self.backward.__name__} returned {kind_of(result)}, not a gradient for each of "
                            f'{", ".join(self.results)}; what needs none is "constant", see npgpt gradcheck --help')
        return {f"d{name}": gradient for name, gradient in zip(self.results, values, strict=True)}


def kind_of(result):
    return f"{len(result)} results" if isinstance(result, tuple | list) else \
        {"NoneType": "nothing", "ndarray": "an array"}.get(type(result).__name__, f"a {type(result).__name__}")


def parts(spec):
    """Return the sizes of a shape, whether it is an "input", "integers" or "constant", and the limits or ()."""
    letters, kind, *limits = SHAPE.fullmatch(spec).groups()
    if not kind or kind == "constant":
        return letters, kind or "input", ()
    return letters, "input" if "." in "".join(limits) else "integers", limits


def pair_of(forward, backward, floating, **fields):
    """Return the `Pair` of two functions. floating: the inputs with a gradient.

    Raises UserError without the lines of both.
    """
    trees = [tree_in_file(getattr(each, "__code__", None)) for each in (forward, backward)]
    returns = [node.value for node in ast.walk(trees[1]) if isinstance(node, ast.Return)]
    items = getattr(returns[-1], "elts", returns[-1:])[forward is backward:] if returns else []
    named = [each.id[1:] for each in items if isinstance(each, ast.Name)]
    return Pair(forward.__name__.removesuffix("_forward"), forward, backward,
                results=tuple(named if sorted(named) == sorted(floating) else floating), **fields)


@functools.lru_cache
def read_pairs(path, name=None, given=()):
    """Run a file, and return its `Pair`s, or the one of a name. given: texts of --input, such as "x=4,5".

    Raises UserError, with the line, if it cannot be run, has no pair, or does not say what the inputs are.
    """
    tree, names = run_python(path)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names}
    found = [each[:-8] for each in functions if each.endswith("_forward") and f"{each[:-8]}_backward" in functions]
    found += [each for each, node in functions.items() if each.endswith("_loss") and any(
        isinstance(part, ast.Return) and isinstance(part.value, ast.Tuple) for part in ast.walk(node))]
    chosen = [each for each in found if name in (None, each)]
    if not chosen:
        raise UserError(f"{path}: there is no pair {name or 'x'}_forward and {name or 'x'}_backward, nor a function "
                        f"{name or 'x_loss'} that returns a loss and its gradients; it has "
                        f"{', '.join(found or functions) or 'no function'}")
    given = dict(map(input_of, given))
    lesson = names.get("LESSON", {})
    if not isinstance(lesson, dict):
        raise UserError(f"{path}: LESSON must be a dict such as {{'x': 'N D'}}")
    said = lesson | given
    known = set()
    for each in found:
        known |= inspect.signature(forward_in(names, each)).parameters.keys()
    if unknown := said.keys() - known:
        raise UserError(f"{path}: no forward has an argument {min(unknown)}: they have "
                        f"{', '.join(sorted(known))}")
    return [pair_in(path, names, each, said) for each in chosen]


def forward_in(names, name):
    """Return the forward of a pair, or the one function of a loss and its gradients."""
    return names.get(f"{name}_forward", names.get(name))


def pair_in(path, names, name, inputs):
    """Return a `Pair` of a file. inputs: argument -> shape or value; others have defaults."""
    forward = forward_in(names, name)
    shapes = {}
    values = {}
    backward = names.get(f"{name}_backward", forward)
    for each in inspect.signature(forward).parameters.values():
        said = inputs.get(each.name)
        if said is None and each.default is each.empty:
            raise UserError(f"{path}: nothing says the shape of {each.name}: use "
                            f"--input {each.name}=4,5, or a dict LESSON "
                            "(see npgpt gradcheck --help)")
        if isinstance(said, str):
            if not SHAPE.fullmatch(said):
                raise UserError(f'{path}: {each.name} is "{said}", which is no shape such as "N D" or "N: 0..9"')
            shapes[each.name] = said
        elif said is not None:
            values[each.name] = said
    floating = [each for each, spec in shapes.items() if parts(spec)[1] == "input"]
    if not floating:
        raise UserError(f"{path}: {name} has no input of floating numbers, so nothing has a gradient")
    return pair_of(forward, backward, floating, shapes=shapes, values=values, file=Path(path))


def input_of(text):
    """Return (name, shape or value) of an --input: "x=4,5", "y=4:0..9", "mask=4,5:constant", "eps=1e-5"."""
    name, is_given, said = text.partition("=")
    sizes, colon, kind = said.partition(":")
    if name.isidentifier() and is_given and re.fullmatch(r"[\w,]*", sizes):
        return name, sizes.replace(",", " ").strip() + colon + kind
    try:
        return name, ast.literal_eval(said)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise UserError(f"--input {text}: write x=4,5 for a shape, y=4:0..9 for integers, or eps=1e-5") from None

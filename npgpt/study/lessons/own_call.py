"""Find the arguments of a user's backward among what the forward takes, assigns and returns.

A parameter of the backward is what the forward takes under its name, or an upstream gradient (`dy`,
`grad_out`), or a cache: what else the forward returns, what it assigns under that name, its result
or its input; or a learning rate.
"""

import ast
import dataclasses
import functools
import inspect
import re
import sys

import numpy as np

from npgpt.errors import UserError
from npgpt.study.gradcheck.source import parsed, returned_value
from npgpt.study.gradcheck.spelling import variable_of
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.lessons.lesson import Lesson, as_tuple
from npgpt.study.lessons.own_state import parts_of

UPSTREAM = re.compile(r"d|grad|delta|g_|.*(grad|diff|error|upstream)$", re.IGNORECASE)
CACHE = re.compile(r"cache|ctx|context|memory|saved", re.IGNORECASE)
RATE = re.compile(r"lr|eta|alpha|step_?size|(learn(ing)?_?)?rate", re.IGNORECASE)
RESULT = re.compile(r"(.*_)?(out(put)?|y|y_?hat|a|s|p|probs?|act(ivation)?s?|z|h)", re.IGNORECASE)
# Kept by a forward that returns nothing.
RESULTS = "output out outputs y result a A z loss".split()


@dataclasses.dataclass(frozen=True, eq=False)
class Rest:
    """The backward's arguments besides the upstream gradients.

    before: (the object,) of a method; named: the others by name; local: the forward's local
    variables, if needed.
    """

    before: tuple = ()
    named: dict = dataclasses.field(default_factory=dict)
    local: dict = dataclasses.field(default_factory=dict)


class Call(Lesson):
    """A lesson that sorts its backward's parameters: gradients, caches, and those whose value is
    in `values`.
    """

    @functools.cached_property
    def parameters(self):
        """Those of the backward, but `self`, *args and **kwargs."""
        every = [*inspect.signature(self.backward).parameters.values()][self.layer is not None :]
        return [each for each in every if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]

    @functools.cached_property
    def gradients(self):
        """The names of the upstream gradients."""
        names = [name for name in self.free if not CACHE.search(name)]
        found = [name for name in names if UPSTREAM.match(name)] or names[:1]
        if not self.free and self.parameters and UPSTREAM.match(self.parameters[0].name):
            return [self.parameters[0].name]  # backward(self, dout=1)
        return found

    @functools.cached_property
    def free(self):
        """The names of the gradients and caches among the parameters."""
        taken = inspect.signature(self.forward).parameters
        return [
            each.name
            for each in self.parameters
            if each.name not in self.values
            and each.default is each.empty
            and not (each.name in taken and not CACHE.search(each.name))
            and not RATE.fullmatch(each.name)
        ]

    @property
    def caches(self):
        return [name for name in self.free if name not in self.gradients]

    @property
    def has_upstream(self):
        """Whether the backward takes a gradient; without one it undoes the result's sum."""
        first = next((each for each in self.parameters if each.name in self.gradients), None)
        return first is not None and not self.is_one_function and first.default not in (1, 1.0)

    def split(self, result, before, arguments, local):
        """Return the result, or a tuple of them, and the `Rest`. arguments, local: of the forward,
        by name.
        """
        y, more, caches = self.result_and_caches(result)
        labels = {}
        if len(more) == len(caches):
            labels = dict(zip(caches, more, strict=True))
        elif more:
            places = labels_of(self.forward).items()
            labels = {label: result[path[0]] for path, label in places if len(path) == 1}
        there = arguments | local | labels
        known = arguments | self.values | {name: there[name] for name in caches if name in there}
        lost = [name for name in caches if name not in known]
        if len(lost) == 1 and more:
            known[lost[0]] = more
        elif len(lost) == 1:
            known[lost[0]] = self.result_or_input(lost[0], y, arguments)
        elif lost:
            raise UserError(
                f"{self.forward.__name__} returned {kind_of(result)}, from which "
                f"{self.backward.__name__} gets no {lost[0]}: is it a number, as in --input "
                f"{lost[0]}=0.1?"
            )
        if y is None and before:  # it keeps its result
            kept = parts_of(before[0])
            y = next((kept[name] for name in RESULTS if is_number(kept.get(name))), None)
        if not all(map(is_number, as_tuple(y))):
            raise UserError(
                f"{self.forward.__name__} returned {kind_of(y)}, where an array of floating "
                "numbers is wanted"
            )
        for each in self.parameters:
            if RATE.fullmatch(each.name):
                known.setdefault(each.name, 0.1 if each.default is each.empty else each.default)
        return y, Rest(before, known, local)

    def result_and_caches(self, result):
        """Return the result, or a tuple of them; what else a forward returns; the caches' names.

        The last of the backward's gradients is a cache if the forward returns no array for it.
        """
        caches, n = self.caches, len(self.gradients)
        first = result[0] if isinstance(result, tuple) and result else None
        if isinstance(first, tuple) and len(first) == n > 1:  # return (h, c), cache
            return first, result[1:], caches
        is_list = isinstance(result, list) and len(result) == n + len(caches) > 1
        if not isinstance(result, tuple) and not is_list:
            return result, (), caches
        if n == len(result) > 1 and not caches and self.layer is None:
            last = labels_of(self.forward).get((n - 1,))
            if not last or not variable_of(self.gradients[-1], [last]):
                caches, n = self.gradients[-1:], n - 1
        if n == 0:  # a loss
            numbers = [i for i, each in enumerate(result) if np.size(each) == 1 and is_number(each)]
            at = numbers[0] if numbers else 0
            return result[at], (*result[:at], *result[at + 1 :]), caches
        return result[:n] if n > 1 else result[0], result[n:], caches

    def result_or_input(self, name, y, arguments):
        """Return what a cache is that the forward does not return: its result, or its input."""
        parameters = {each.name for each in self.parameters}
        for argument, value in arguments.items():
            if argument not in parameters and is_number(value) and not RESULT.fullmatch(name):
                return value
        return y

    @property
    def upstream(self):
        """The name of the first gradient, or ""."""
        return "".join(self.gradients[:1])

    def for_each(self, dy):
        """Return a gradient for each argument that takes one; a single one takes all, as in
        `dh, dc = dstate`.
        """
        return as_tuple(dy) if len(self.gradients) > 1 else (dy,)

    def arguments(self, dy, cache):
        """Return the backward's arguments, in order."""
        gradients = iter(self.for_each(dy))
        found = [*cache.before]
        for each in self.parameters:
            if each.name in cache.named:
                found.append(cache.named[each.name])
            else:
                found.append(next(gradients) if each.name in self.gradients else each.default)
        return found


class Locals:
    """A function that keeps the local variables it had when it returned, in `found`."""

    def __init__(self, function):
        self.function = function
        self.found = {}

    def __call__(self, *arguments, **named):
        code = getattr(self.function, "__code__", None)
        before = sys.getprofile()

        def profile(frame, event, _):
            if event == "return" and frame.f_code is code:
                self.found = dict(frame.f_locals)

        sys.setprofile(profile)
        try:
            return self.function(*arguments, **named)
        finally:
            sys.setprofile(before)


def is_number(value):
    """Return whether a value is a floating array or number, also of mpmath."""
    return isinstance(value, float) or is_floating(value)


def kind_of(result):
    """Return what a function returned, in words."""
    if isinstance(result, tuple | list):
        return f"{len(result)} results"
    if isinstance(result, np.ndarray):
        return "an array"
    return "nothing" if result is None else f"a {type(result).__name__}"


@functools.cache
def labels_of(function):
    """Return path -> name for the parts of what a function's last `return` returns."""

    def named(node):
        if isinstance(node, ast.Tuple | ast.List):
            return [*map(named, node.elts)]
        return ast.unparse(node).rpartition(".")[2]

    value = returned_value(parsed(function))
    return dict(leaves_of(named(value))) if value else {}


def leaves_of(result, path=()):
    """Return [(path, value), …] of the parts of nested tuples, lists and dicts."""
    if isinstance(result, dict):
        parts = result.items()
    elif isinstance(result, tuple | list):
        parts = enumerate(result)
    else:
        value = None if result is ... else result  # `dx = ...` is still to be written
        return [(path, value)] if value is not None or path else []
    return sum((leaves_of(each, (*path, key)) for key, each in parts), [])

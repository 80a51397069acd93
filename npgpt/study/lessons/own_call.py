"""How the arguments of other people's backward follow from what their forward takes and returns.

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
from npgpt.study.lessons.lesson import as_tuple
from npgpt.study.lessons.own_state import parts_of

UPSTREAM = re.compile(r"d|grad|delta|g_|.*(grad|diff|error|upstream)$", re.IGNORECASE)
CACHE = re.compile(r"cache|ctx|context|memory|saved", re.IGNORECASE)
RATE = re.compile(r"lr|eta|alpha|step_?size|(learn(ing)?_?)?rate", re.IGNORECASE)
RESULT = re.compile(r"(.*_)?(out(put)?|y|y_?hat|a|s|p|probs?|act(ivation)?s?|z|h)", re.IGNORECASE)
RESULTS = (
    "output",
    "out",
    "outputs",
    "y",
    "result",
    "a",
    "A",
    "z",
    "loss",
)  # kept by a forward that returns nothing


@dataclasses.dataclass(frozen=True, eq=False)
class Rest:
    """The backward's arguments besides the upstream gradients.

    before: (the object,) of a method; named: the others by name; local: the forward's local
    variables, if needed.
    """

    before: tuple = ()
    named: dict = dataclasses.field(default_factory=dict)
    local: dict = dataclasses.field(default_factory=dict)


class Call:
    """A backward's parameters, sorted: gradients, caches. values: name -> value of those that are
    given.
    """

    def __init__(self, forward, backward, values, is_method):
        self.forward, self.backward, self.values, self.is_method = (
            forward,
            backward,
            values,
            is_method,
        )
        self.parameters = [
            each
            for each in [*inspect.signature(backward).parameters.values()][is_method:]
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
        self.taken = [*inspect.signature(forward).parameters][is_method:]
        free = [
            each.name
            for each in self.parameters
            if each.default is each.empty
            and each.name not in values
            and (each.name not in self.taken or CACHE.search(each.name))
            and not RATE.fullmatch(each.name)
        ]
        self.gradients = [name for name in free if UPSTREAM.match(name) and not CACHE.search(name)]
        if not free and self.parameters and UPSTREAM.match(self.parameters[0].name):
            self.gradients = [self.parameters[0].name]  # backward(self, dout=1)
        elif not self.gradients:
            self.gradients = [name for name in free if not CACHE.search(name)][:1]
        self.caches = [name for name in free if name not in self.gradients]
        first = next((each for each in self.parameters if each.name in self.gradients), None)
        self.has_upstream = first is not None and first.default not in (1, 1.0)

    def split(self, result, before, arguments, local):
        """Return the result, or a tuple of them, and the `Rest`. arguments, local: of the forward,
        by name.
        """
        caches, n = self.caches, len(self.gradients)
        several = (
            isinstance(result, tuple)
            or isinstance(result, list)
            and len(result) == n + len(caches) > 1
        )
        last = [label for path, label in labels_of(self.forward).items() if path == (n - 1,)]
        is_cache = not caches and not self.is_method and not variable_of(
            (self.gradients or [""])[-1], last
        )
        if several and n == len(result) > 1 and is_cache:
            caches, n = self.gradients[-1:], n - 1
        y, more = result, ()
        if several and n == 0:
            at = next(
                (i for i, each in enumerate(result) if np.size(each) == 1 and is_number(each)), 0
            )
            y, more = result[at], (*result[:at], *result[at + 1 :])
        elif several:
            y, more = result[:n] if n > 1 else result[0], result[n:]
        labels = {
            label: result[path[0]]
            for path, label in labels_of(self.forward).items()
            if more and len(path) == 1
        }
        if len(more) == len(caches):
            labels = dict(zip(caches, more, strict=True))
        there = arguments | local | labels
        known = arguments | self.values | {name: there[name] for name in caches if name in there}
        lost = [name for name in caches if name not in known]
        if len(lost) == 1 and more:
            known[lost.pop()] = more
        if len(lost) == 1:
            unread = [
                value
                for name, value in arguments.items()
                if is_number(value) and all(each.name != name for each in self.parameters)
            ]
            known[lost[0]] = y if RESULT.fullmatch(lost[0]) or not unread else unread[0]
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
        known |= {
            each.name: 0.1 if each.default is each.empty else each.default
            for each in self.parameters
            if RATE.fullmatch(each.name) and each.name not in known
        }
        return y, Rest(before, known, local)

    @property
    def upstream(self):
        """The name of the first gradient, or ""."""
        return "".join(self.gradients[:1])

    def arguments(self, dy, cache):
        """Return the backward's arguments, in order."""
        gradients = iter(as_tuple(dy))
        return [
            *cache.before,
            *(
                cache.named[each.name]
                if each.name in cache.named
                else next(gradients)
                if each.name in self.gradients
                else each.default
                for each in self.parameters
            ),
        ]


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
    return (
        isinstance(value, float)
        or getattr(value, "dtype", np.dtype("U1")).kind in "fO"
        or hasattr(value, "_mpf_")
    )


def kind_of(result):
    return (
        f"{len(result)} results"
        if isinstance(result, tuple | list)
        else {"NoneType": "nothing", "ndarray": "an array"}.get(
            type(result).__name__, f"a {type(result).__name__}"
        )
    )


@functools.cache
def labels_of(function):
    """Return path -> name for the parts of what a function's last `return` returns."""

    def below(node, path):
        if isinstance(node, ast.Tuple | ast.List):
            return {
                key: name
                for i, each in enumerate(node.elts)
                for key, name in below(each, (*path, i)).items()
            }
        return {path: ast.unparse(node).rpartition(".")[2]}

    value = returned_value(parsed(function))
    return below(value, ()) if value else {}

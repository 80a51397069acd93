"""Trace successive lesson lines into a data-flow graph, whose nodes are values.

The lines run with `Traced` objects instead of arrays, as in JAX. A row lies along the last axis. A
value varies over the rows, over the columns, over both, or is a number. A mean, sum or maximum
along a row is known after a pass over its columns. So each value belongs to a pass, its `stage`.

A traced value has no truth, length or integer: NumPy runs a line that asks for one. Python computes
what depends on numbers alone.
"""

import ast
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partialmethod

import numpy as np

from npgpt.arrays import broadcasts

try:
    from scipy.special import erf
except ImportError:
    erf = None

# The rows of an array: broadcast over leading axes, such as a mask or a bias; one for each.
PART, FULL = 1, 2
SQUARE = "({0} * {0})"
TEMPLATES = {
    np.add: "({} + {})",
    np.subtract: "({} - {})",
    np.multiply: "({} * {})",
    np.divide: "({} / {})",
    np.negative: "(-{})",
    np.absolute: "abs({})",
    np.square: SQUARE,
    np.maximum: "maximum({}, {})",
    np.exp: "exp({})",
    np.tanh: "tanh({})",
    np.sqrt: "np.sqrt({})",
    np.log: "np.log({})",
    erf: "erf({})",
}
REDUCTIONS = {np.sum: "sum", np.mean: "mean", np.max: "max"}
FUNCTIONS = [each for each in (*TEMPLATES, *REDUCTIONS) if each]
KNOWN = {"abs", *(each.__name__ for each in FUNCTIONS)}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%"}


class UnfitError(Exception):
    """A line does not fit into a loop, so NumPy runs it."""


@dataclass(eq=False)
class Node:
    """A value. template: how it is computed from its arguments; None for an argument of the loop.

    name: its variable; of a number, its expression before the call.
    rows: 0, PART or FULL; columns: whether it varies over them; kind: of its dtype, "f" or "b";
    reduction: "sum", "mean" or "max" along a row, "rows" for a sum over all rows.
    """

    rows: int
    columns: bool
    template: str | None = None
    arguments: tuple = ()
    stage: int = 0
    kind: str = "f"
    reduction: str = ""
    name: str = ""

    @property
    def is_number(self):
        return not (self.rows or self.columns)


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array of the lines. Operations on it add nodes to the graph and compute
    nothing.

    node: its value, or None if it does not fit into the loop; a write in place replaces the node.
    like: an array of its dtype and number of axes, each of size 1: NumPy computes with it, so that
    the results' dtypes are NumPy's. home: the name of the argument whose array it is, if it is one.
    """

    def __init__(self, trace, node, like, home=""):
        self.trace, self.node, self.like, self.home = trace, node, like, home

    def undecided(self, *_):
        raise UnfitError

    # What else could decide something raises a TypeError by itself.
    __bool__ = __str__ = __format__ = undecided

    @property
    def is_flat(self):
        """Whether it has other axes than the loop's arrays."""
        return np.ndim(self.like) != len(self.trace.shape)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        if ufunc is np.power and type(inputs[1]) in (int, float) and inputs[1] == 2:
            ufunc, inputs = np.square, inputs[:1]
        if method != "__call__" or options or ufunc not in TEMPLATES:
            raise UnfitError
        new = self.trace.combined(TEMPLATES[ufunc], ufunc, *inputs)
        if ufunc is np.log and new.node.columns:  # NumPy's has vector instructions
            raise UnfitError
        if out is None:
            return new
        (target,) = out
        old, value = target.node, new.node
        same = (FULL, value.columns, new.like.dtype) == (old.rows, old.columns, target.like.dtype)
        if not same or value.rows != FULL or target.home and not old.columns:
            raise UnfitError
        target.node = value
        return target

    def __array_function__(self, function, types, arguments, options):
        if function not in REDUCTIONS:
            raise UnfitError
        return arguments[0].reduced(REDUCTIONS[function], *arguments[1:], **options)

    def reshape(self, *shape):
        """Return the rows of all leading axes as one axis: x.reshape(-1, C)."""
        first, last = shape
        is_last = last.home and type(last.like) is int and last.like == self.trace.shape[-1]
        is_whole = not self.is_flat and self.node.rows == FULL and self.node.columns
        if type(first) is not int or first != -1 or not is_last or not is_whole:
            raise UnfitError
        if np.ndim(self.like) == 2:
            return self
        return Traced(self.trace, self.node, self.like.reshape(-1, 1))

    def reduced(self, name, axis=None, *, keepdims=False):
        """Return the mean, sum or maximum along the rows, or the sum over all rows."""
        x, like = self.trace.node(self), getattr(self.like, name)(axis=axis, keepdims=keepdims)
        axes = {each % np.ndim(self.like) for each in np.ravel(axis).tolist()}
        last = np.ndim(self.like) - 1
        if x.rows != FULL or not x.columns or x.kind != "f":
            raise UnfitError
        if axes == {last} and keepdims is True and not self.is_flat:
            node = Node(FULL, False, "", (x,), x.stage + 1, reduction=name)
            return Traced(self.trace, node, like)
        if axes == {*range(last)} and axes and keepdims is False and name == "sum":
            return Traced(self.trace, Node(0, True, "", (x,), x.stage, reduction="rows"), like)
        raise UnfitError

    sum = partialmethod(reduced, "sum")
    mean = partialmethod(reduced, "mean")
    max = partialmethod(reduced, "max")


class Number(Traced):
    """Stands for a number, which may be another one in each call. like: its value in this call.

    Python's operators on it are Python's: before each call of the loop they are computed from the
    numbers of that call.
    """

    def computed(self, template, *others):
        operands = self, *others
        if any(isinstance(each, Traced) and not isinstance(each, Number) for each in operands):
            return NotImplemented  # the array's operator
        names = [f"operands[{i}]" for i in range(len(operands))]
        value = eval(template.format(*names), {"operands": [*map(like_of, operands)]})
        if not is_number(value):
            raise UnfitError
        text = template.format(*(self.trace.node(each).name for each in operands))
        return Number(self.trace, Node(0, False, name=text), value)

    __neg__ = partialmethod(computed, "(-{})")
    __abs__ = partialmethod(computed, "abs({})")


for name, sign in OPERATORS.items():
    forwards = partialmethod(Number.computed, f"({{0}} {sign} {{1}})")
    setattr(Number, f"__{name}__", forwards)
    setattr(Number, f"__i{name}__", forwards)
    setattr(Number, f"__r{name}__", partialmethod(Number.computed, f"({{1}} {sign} {{0}})"))


def is_constant(value):
    """Return whether the code of a loop depends on this None, flag, integer or function."""
    is_function = callable(value) and isinstance(value, Hashable)
    return value is None or isinstance(value, int) or is_function


def is_number(value):
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def as_real(node):
    """Return the node of a value in arithmetic: True is 1."""
    if node.kind != "b":
        return node
    return Node(node.rows, node.columns, "real({0})", (node,), node.stage)


def like_of(operand):
    return operand.like if isinstance(operand, Traced) else operand


def literal(number):
    """Return the text of a number or a constant of Python's."""
    text = repr(number).replace("inf", "np.inf").replace("nan", "np.nan")
    return f"({text})" if text[0] == "-" else text


class Trace:
    """The graph of the lines so far. values: name -> value of an argument; module: the lines'
    global names.

    Raises UnfitError if no value is an array of floats.
    """

    def __init__(self, values, module):
        arrays = [each for each in values.values() if isinstance(each, np.ndarray) and each.ndim]
        floats = [each for each in arrays if each.size and each.dtype in (np.float32, np.float64)]
        if not floats:
            raise UnfitError
        lead = max(floats, key=lambda each: (each.size, each.ndim))  # the loop is over its rows
        self.shape, self.dtype, self.module, self.values = lead.shape, lead.dtype, module, values
        self.names = {name: self.argument(name, value) for name, value in values.items()}
        self.cells = [value for value in self.names.values() if getattr(value, "node", None)]
        self.given = {value.node: value.home for value in self.cells}

    def argument(self, name, value):
        """Return the `Traced` of an array or a number, and a constant as it is."""
        if is_number(value):
            return Number(self, Node(0, False, name=f"{name}_"), value, name)
        if is_constant(value):
            return value
        if not isinstance(value, np.ndarray) or not value.ndim:
            return Traced(self, None, None, name)
        rows = FULL if value.shape[:-1] == self.shape[:-1] else PART
        columns = value.shape[-1] == self.shape[-1]
        readable = value.dtype in (self.dtype, bool) and broadcasts(value.shape, self.shape)
        node = Node(rows, columns, kind=value.dtype.kind, name=name) if readable else None
        return Traced(self, node, np.ones([1] * value.ndim, value.dtype), name)

    def node(self, value):
        """Return the node of an operand. Raises UnfitError if it has none that a loop can read."""
        if type(value) in (int, float):
            return Node(0, False, literal(value), name=literal(value))
        node = getattr(value, "node", None)
        if node is None or node.reduction == "rows":  # known after the loop
            raise UnfitError
        return node

    def combined(self, template, function, *operands):
        """Return the result of a NumPy function. Raises UnfitError if a loop's would differ."""
        nodes = tuple(as_real(self.node(each)) for each in operands)
        if any(each.kind != "f" for each in nodes):
            raise UnfitError
        with np.errstate(all="ignore"):
            like = function(*map(like_of, operands))
        rows, columns = max(each.rows for each in nodes), any(each.columns for each in nodes)
        node = Node(rows, columns, template, nodes, max(each.stage for each in nodes))
        pairs = zip(operands, nodes, strict=True)
        whole_ndims = {np.ndim(like_of(each)) for each, of_each in pairs if of_each.rows == FULL}
        with_part = any(each.rows == PART for each in nodes)
        is_flat = not whole_ndims <= {len(self.shape)}
        is_array = not node.is_number and like.dtype == self.dtype and whole_ndims <= {like.ndim}
        if not is_array or is_flat and with_part:
            raise UnfitError
        if template == SQUARE:  # its argument stands there twice
            nodes[0].name = nodes[0].name or "base"
        return Traced(self, node, like)

    def read(self, lines):
        """Run lines until one does not fit, which changes nothing. Return how many fitted."""
        for n, line in enumerate(lines):
            names = dict(self.names)
            before = [(value, value.node) for value in names.values() if isinstance(value, Traced)]
            try:
                exec(compile(ast.Module([line], []), "<line>", "exec"), self.module, names)
                for name, value in names.items():
                    if isinstance(value, Traced) and value.node:
                        self.bind(name, value)
            except Exception:  # whatever it is: NumPy's own line raises it, or does not
                for value, node in before:
                    value.node = node
                return n
            self.names = names
        return len(lines)

    def bind(self, name, value):
        """Note the name of a new value. Raises UnfitError if it is no array of the loop's."""
        node = value.node
        given = node.template is None and value.home
        known = given or node.is_number or node.reduction == "rows"
        if not known and (node.rows != FULL or value.is_flat):
            raise UnfitError
        if node.template is not None:
            node.name = node.name or name

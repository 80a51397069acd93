"""Trace successive lesson lines into a data-flow graph, whose nodes are values.

The lines run with `Traced` objects instead of arrays, as in JAX. A row lies along the last axis. A value varies over
the rows, over the columns, over both, or is a number. A mean, sum or maximum along a row is known after a pass over its
columns. So each value belongs to a pass, its `stage`.
"""

import ast
from dataclasses import dataclass
from functools import partialmethod

import numpy as np

try:
    from scipy.special import erf
except ImportError:
    erf = None

PART, FULL = 1, 2       # rows of an array: one for several of the loop's, such as a mask for all heads; one for each
SQUARE, WHERE = "({0} * {0})", "({1} if {0} else {2})"
TEMPLATES = {np.add: "({} + {})", np.subtract: "({} - {})", np.multiply: "({} * {})", np.divide: "({} / {})",
             np.negative: "(-{})", np.square: SQUARE, np.absolute: "abs({})", np.maximum: "maximum({}, {})",
             np.exp: "exp({})", np.tanh: "tanh({})", np.sqrt: "np.sqrt({})", np.log: "np.log({})", erf: "erf({})",
             np.less: "({} < {})", np.less_equal: "({} <= {})", np.greater: "({} > {})",
             np.greater_equal: "({} >= {})", np.equal: "({} == {})", np.not_equal: "({} != {})"}
REDUCTIONS = {np.sum: "sum", np.mean: "mean", np.max: "max"}
KNOWN = {function.__name__ for function in (*TEMPLATES, *REDUCTIONS, np.where, np.take_along_axis, np.put_along_axis)
         if function} | {"abs"}


class UnfitError(Exception):
    """A line does not fit into a loop, so NumPy runs it."""


@dataclass(eq=False)
class Node:
    """A value. template: how it is computed from its arguments; None for an argument of the loop.

    rows: 0, PART or FULL; columns: whether it varies over them; kind: of its dtype, "f", "b", or "i" of an index;
    reduction: "sum", "mean" or "max" along a row, "rows" for a sum over all rows, "take" for one value of each row;
    put: (index, value), which replaces the value of one column.
    """

    rows: int
    columns: bool
    template: str | None = None
    arguments: tuple = ()
    stage: int = 0
    kind: str = "f"
    reduction: str = ""
    name: str = ""
    put: tuple = ()


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array or a number of the lines. Operations on it add nodes to the graph and compute nothing.

    node: its value, or None if it does not fit into the loop; a write in place replaces the node. home: the name of the
    argument whose array it is, if it is one.
    """

    def __init__(self, trace, node, home="", ndim=None, value=None):
        self.trace, self.node, self.home, self.value = trace, node, home, value
        self.ndim = len(trace.shape) if ndim is None else ndim

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        if ufunc is np.power and inputs[1] == 2:
            ufunc, inputs = np.square, inputs[:1]
        if method != "__call__" or options or ufunc not in TEMPLATES:
            raise UnfitError
        new = self.trace.combined(TEMPLATES[ufunc], *inputs)
        if ufunc is np.log and new.columns:             # NumPy's has vector instructions
            raise UnfitError
        if out is None:
            return Traced(self.trace, new)
        target, = out
        old = target.node
        if (new.rows, new.columns, old.rows) != (old.rows, old.columns, FULL) or target.home and not old.columns:
            raise UnfitError
        target.node = new
        return target

    def __array_function__(self, function, types, arguments, options):
        if function is np.where and len(arguments) == 3 and not options:
            return Traced(self.trace, self.trace.combined(WHERE, *arguments))
        if function in REDUCTIONS and isinstance(arguments[0], Traced):
            return arguments[0].reduced(REDUCTIONS[function], *arguments[1:], **options)
        if options == {"axis": -1} and function in (np.take_along_axis, np.put_along_axis):
            x, index, *value = arguments
            if not all(isinstance(each, Traced) for each in (x, index)) or (
                    not x.node.columns or x.node.rows + index.node.rows != 2 * FULL or index.node.columns
                    or index.node.kind != "i" or x.node.put):
                raise UnfitError
            if function is np.take_along_axis:
                return Traced(self.trace, Node(FULL, False, "", (x.node, index.node), x.node.stage, reduction="take"))
            value = self.trace.node(*value)
            if x.home or value.columns or x.node.template is None:
                raise UnfitError
            x.node = Node(FULL, True, "{}", (x.node,), x.node.stage, put=(index.node, value))
            return None
        raise UnfitError

    def reshape(self, *shape):
        """Return the rows of all leading axes as one axis: x.reshape(-1, C)."""
        if shape[0] != -1 or [getattr(each, "value", None) for each in shape[1:]] != [self.trace.shape[-1]]:
            raise UnfitError
        return self if self.ndim == 2 else Traced(self.trace, self.node, ndim=2)

    def reduced(self, name, axis=None, keepdims=False):
        """Return the mean, sum or maximum along the rows, or the sum over all rows."""
        x, axes = self.trace.node(self), {each % self.ndim for each in np.ravel(axis).tolist()}
        if x.rows == FULL and x.columns and x.kind == "f" and not x.put:
            if axes == {self.ndim - 1} and keepdims is True and self.ndim == len(self.trace.shape):
                return Traced(self.trace, Node(FULL, False, "", (x,), x.stage + 1, reduction=name))
            if axes == {*range(self.ndim - 1)} and axes and keepdims is False and name == "sum":
                return Traced(self.trace, Node(0, True, "", (x,), x.stage, reduction="rows"))
        raise UnfitError

    sum, mean, max = partialmethod(reduced, "sum"), partialmethod(reduced, "mean"), partialmethod(reduced, "max")


class Trace:
    """The graph of the lines so far. values: name -> value of an argument; module: the lines' global names.

    Raises UnfitError if no value is an array of floats.
    """

    def __init__(self, values, module):
        floats = [each for each in values.values() if isinstance(each, np.ndarray) and each.ndim and each.size
                  and each.dtype.isnative and each.dtype in (np.float32, np.float64)]
        if not floats:
            raise UnfitError
        lead = max(floats, key=lambda each: (each.size, each.ndim))         # the loop is over its rows
        self.shape, self.dtype, self.module, self.arguments = lead.shape, lead.dtype, module, list(values)
        self.names = {name: self.argument(name, value) for name, value in values.items()}
        self.cells = [value for value in self.names.values() if isinstance(value, Traced) and value.node]
        self.given = {value.node: value.home for value in self.cells}

    def argument(self, name, value):
        """Return the `Traced` of an array or a number; None, a bool and a function are returned as they are."""
        if value is None or isinstance(value, bool) or callable(value):
            return value
        if not isinstance(value, np.ndarray) or not value.ndim:
            number = isinstance(value, int | float | np.number | np.ndarray)
            fits = number and np.result_type(self.dtype, value) == self.dtype
            return Traced(self, Node(0, False, name=name) if fits else None, name, value=value)
        *leading, columns = (1,) * (len(self.shape) - value.ndim) + value.shape
        rows = FULL if value.shape[:-1] == self.shape[:-1] else PART if max(leading, default=1) > 1 else 0
        fits = (len(leading) + 1 == len(self.shape) and value.dtype.isnative and columns in (1, self.shape[-1])
                and all(size in (1, whole) for size, whole in zip(leading, self.shape, strict=False))
                and (value.dtype == self.dtype or value.dtype.kind in "biu") and (rows or columns == self.shape[-1]))
        node = Node(rows, columns == self.shape[-1], kind=value.dtype.kind.replace("u", "i"), name=name)
        return Traced(self, node if fits else None, name, value.ndim)

    def node(self, value):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Node(0, False, repr(value))
        node = getattr(value, "node", None)
        if node is None or node.reduction == "rows" or node.put:        # these are known after the loop
            raise UnfitError
        return node

    def combined(self, template, *operands):
        nodes = tuple(map(self.node, operands))
        if [each.kind for each in nodes] != ["f" if template != WHERE or i else "b" for i in range(len(nodes))]:
            raise UnfitError
        kind = "b" if any(sign in template for sign in "<>=!") else "f"
        return Node(max(each.rows for each in nodes), any(each.columns for each in nodes), template, nodes,
                    max(each.stage for each in nodes), kind)

    def read(self, lines):
        """Run lines until one does not fit, which changes nothing. Return how many fitted."""
        for n, line in enumerate(lines):
            names = dict(self.names)
            before = {name: (value, value.node) for name, value in names.items() if isinstance(value, Traced)}
            try:
                exec(compile(ast.Module([line], []), "<line>", "exec"), self.module, names)
                for name, value in names.items():
                    if isinstance(value, Traced) and before.get(name, (0, 0))[1] is not value.node:
                        node = value.node
                        if node.kind != "f" or node.template is not None and (
                                node.rows != FULL and node.reduction != "rows" or value.ndim != len(self.shape)):
                            raise UnfitError        # another shape than the loop's
                        node.name = node.name or name
            except Exception:               # whatever it is: NumPy's own line raises it, or does not
                for value, node in before.values():
                    value.node = node
                return n
            self.names = names
        return len(lines)

"""A segment: successive lines of a function that may become loops.

When it is first called with arguments of some shapes and dtypes, as many of the first lines as
possible become one loop over the rows. NumPy runs the next line, and the rest is a segment again.
"""

import ast
import contextlib
import functools
import itertools
import threading

import numpy as np
from numba.core.errors import NumbaError

from npgpt.engine.loops import vectors
from npgpt.engine.loops.check import Checked
from npgpt.engine.loops.jit import jit
from npgpt.engine.loops.statements import generated, in_user, names_in, reads, with_names
from npgpt.engine.loops.trace import Trace, UnfitError, is_constant
from npgpt.engine.loops.write import Loop
from npgpt.engine.row_blocks import row_blocks
from npgpt.engine.threads import free_cores, spread

LOCK = threading.RLock()
MOST_KINDS = 128  # of arguments: with more, NumPy runs the lines


class Segment:
    """Lines that may be loops: a function of the names that they read, which returns `results`.

    donated: names whose arrays nobody reads after these lines; module: their global names; file:
    where they stand; checked: whether results are compared with NumPy's, see check.py.
    """

    def __init__(self, lines, names, results, donated, module, file, checked=True):
        self.lines, self.names, self.results, self.donated = lines, names, results, donated
        self.module, self.file, self.checked = module, file, checked
        self.known = {}  # kinds of arguments -> function
        self.patterns = {}  # patterns of kinds -> function
        self.plain = self.function(lines, self.returned())

    def __call__(self, *values):
        key = tuple(map(kind, values))
        function = self.known.get(key)
        if function is None:
            with LOCK:
                function = self.function_for(key, values)
        try:
            return function(*values)
        except NumbaError:  # it cannot be compiled
            self.replace(function, self.plain)
            return self.plain(*values)

    def replace(self, function, by):
        """Call another function from now on for the kinds of arguments that have this one."""
        for each in (self.known, self.patterns):
            each.update({key: by for key, value in list(each.items()) if value is function})

    def function_for(self, key, values):
        """Return the function for values of these kinds.

        Other sizes need no other loop if equal ones stay equal and different ones different.
        """
        alike = pattern(key)
        if alike not in self.patterns and len(self.patterns) < MOST_KINDS:
            function = self.build(dict(zip(self.names, values, strict=True)))
            checked = self.checked and function is not self.plain
            self.patterns[alike] = Checked(self, function) if checked else function
        return self.known.setdefault(key, self.patterns.get(alike, self.plain))

    def build(self, values):
        """Return the function for such values: a loop of the first lines and the rest."""
        try:
            n = Trace(values, self.module).read(self.lines)
        except UnfitError:  # there are no arrays
            return self.plain
        for m in range(n, 0, -1):  # as many lines as fit into one loop
            with contextlib.suppress(UnfitError):
                return self.loop_of(values, m)
        n = max(n, 1)
        lines, rest = self.lines[:n], self.lines[n:]
        return self.followed(lines, rest, {}) if rest else self.plain

    def loop_of(self, values, n):
        """Return the function whose first n lines are a loop. Raises UnfitError if they cannot."""
        trace = Trace(values, self.module)
        trace.read(self.lines[:n])
        rest = self.lines[n:]
        later = {*self.results} | reads(rest)
        loop = Loop(trace, later, self.donated)
        source = loop.source()
        results = {name: loop.result(value) for name, value in loop.needed.items()}
        text = "\n".join(loop.call())
        if results:
            names = "".join(f"{name}, " for name in in_user(results))
            text += f"\n{names} = {', '.join(results.values())},"
        more = {f".{each.__name__}": each for each in HELPERS}
        more |= {".loop": kernel(source, trace.dtype), ".plain": self.plain, ".np": np}
        return self.followed(generated(text, self.lines[0].lineno), rest, more)

    def followed(self, body, rest, more):
        """Return the function with a body for its first lines; the rest is a part.

        more: what the body reads besides: name -> value.
        """
        if not rest:
            return self.function(body, self.returned(), more)
        known = {*self.names} | names_in(body, ast.Store)
        names = sorted((reads(rest) | {*self.results}) & known)
        rest = Segment(rest, names, self.results, (), self.module, self.file, checked=False)
        more[".rest"] = rest
        return self.function(body, f"rest({', '.join(in_user(names))})", more)

    def function(self, body, result, more=()):
        arguments = ast.parse(f"def part({', '.join(self.names)}): pass").body[0].args
        last = generated(f"return {result}", self.lines[0].lineno)
        tree = ast.FunctionDef("part", arguments, [*body, *last], [])
        return with_names(tree, self.module, dict(more), self.file)

    def returned(self):
        return f"({''.join(f'{name}, ' for name in in_user(self.results))})"

    def call(self, name):
        arguments = ", ".join(in_user(self.names))
        text = f"{self.returned()} = {name}({arguments})"
        return generated(text, self.lines[0].lineno)[0]


def kind(value):
    """Return what the code of a loop depends on: shape and dtype, a constant, or the type."""
    if type(value) is np.ndarray:
        return value.shape, value.dtype
    if type(value) is float:
        return float
    if hasattr(value, "shape"):
        return value.shape, value.dtype, type(value)
    return (type(value), value) if is_constant(value) else type(value)


def pattern(key):
    """Return the kinds with sizes replaced by labels: 0, 1, and equal labels for equal sizes."""
    labels = {0: 0, 1: 1}

    def label(size):
        return labels.setdefault(size, len(labels))

    def labelled(each):
        match each:
            case (tuple(shape), *others):
                return (*map(label, shape), *others)
            case (type() as of, size) if of is int:
                return of, label(size)
        return each

    return tuple(map(labelled, key))


@functools.cache
def kernel(source, dtype):
    names = {**vars(vectors), "real": dtype.type}  # with its name: Numba imports the module by it
    exec(source, names)
    return jit(names["loop"], source)


# What the call of a loop needs.


def as_rows(array):
    """Return the array viewed as (rows, last axis), or a contiguous copy."""
    return np.ascontiguousarray(array).reshape(-1, array.shape[-1])


def in_order(*arrays):
    """Return whether the axes are in memory in their order: then those of NumPy's results are."""
    for each in arrays:
        if not each.flags.c_contiguous:
            steps = zip(each.strides, each.shape, strict=True)
            strides = [abs(step) for step, size in steps if size > 1 and step]
            if strides != sorted(strides, reverse=True):
                return False
    return True


@functools.lru_cache(256)
def row_numbers(shape, whole):
    """Return which row of an array of this shape is broadcast to each row of an array `whole`."""
    numbers = np.arange(np.prod(shape[:-1], dtype=int)).reshape(shape[:-1])
    return np.broadcast_to(numbers, whole[:-1]).ravel()


def alone(written, read):
    """Return whether a loop may write to some of the arrays that it reads: contiguous ones that
    share no memory.
    """
    return all(each.flags.c_contiguous and each.flags.writeable for each in written) and not any(
        np.may_share_memory(*each) for each in itertools.combinations(read, 2)
    )


def over_blocks(loop, arrays, others, n_sums):
    """Call a loop on blocks of the arrays' rows, on all free cores; return the row sums."""

    def run_block(block):
        sums = [np.zeros(arrays[0].shape[1], arrays[0].dtype) for _ in range(n_sums)]
        loop(*(each[block] for each in arrays), *others, *sums)
        return sums

    blocks = row_blocks(arrays[0])
    if len(blocks) == 1:
        return run_block(slice(None))
    return [functools.reduce(np.add, each) for each in zip(*spread(run_block, blocks), strict=True)]


HELPERS = as_rows, in_order, row_numbers, alone, over_blocks, free_cores, float, abs

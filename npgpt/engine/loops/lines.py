"""Compile lesson lines: lines that treat all rows alike become a loop, and NumPy runs the others.

In a function, successive lines of this form are a `Segment`. When a segment is first called with
arguments of some shapes and dtypes, it becomes a loop over the rows, as far as its lines fit into
one. NumPy runs the next line, and the rest is a segment again.
"""

import contextlib
import functools
import itertools

import numpy as np
from numba.core.errors import NumbaError

from npgpt.engine.loops import vectors
from npgpt.engine.loops.check import Checked
from npgpt.engine.loops.jit import jit
from npgpt.engine.loops.trace import KNOWN, Trace, UnfitError
from npgpt.engine.loops.write import Loop
from npgpt.engine.row_blocks import row_blocks
from npgpt.engine.statements import Part, compiled, generated, in_user, is_simple, reads
from npgpt.engine.threads import free_cores, spread

METHODS = {"sum", "mean", "max", "reshape"}


@functools.cache
def compile_lines(function, donated=()):
    """Return a function with the same arguments and results, which calls compiled loops.

    donated: names of arguments that the caller does not need any more; results may take their
    memory. What cannot be compiled runs as it stands. If the function gets other code, that is
    compiled. The loops are compared with NumPy: see check.py.
    """
    fits = functools.partial(is_simple, functions=KNOWN, methods=METHODS)
    return compiled(function, donated, fits, CheckedSegment, compile_lines)


class Segment(Part):
    """Lines that may be a loop."""

    refusal = NumbaError  # raised before the loop begins

    def build(self, values):
        """Return the function for such values: a loop of the first lines, or NumPy, and the rest.
        """
        try:
            n = Trace(values, self.module, self.deciding).read(self.lines)
        except UnfitError:  # there are no arrays
            return self.plain
        for m in range(n, 0, -1):  # as many lines as fit into one loop
            with contextlib.suppress(UnfitError):
                return self.loop_of(values, m)
        n = max(n, 1)
        lines, rest = self.lines[:n], self.lines[n:]
        self.parts = [(lines, None)]
        return self.followed(lines, rest, {}) if rest else self.plain

    def loop_of(self, values, n):
        """Return the function whose first n lines are a loop. Raises UnfitError if they cannot be.
        """
        trace = Trace(values, self.module, self.deciding)
        trace.read(self.lines[:n])
        rest = self.lines[n:]
        later = {*self.results} | reads(rest)
        loop = Loop(trace, [name for name in trace.names if name in later], self.donated)
        source, results = loop.source(), loop.results()
        text = "\n".join(loop.call())
        if results:
            names = "".join(f"{name}, " for name in in_user(results))
            text += f"\n{names} = {', '.join(results.values())},"
        more = {f".{each.__name__}": each for each in HELPERS}
        more |= {".loop": kernel(source, trace.dtype), ".plain": self.plain, ".np": np}
        self.parts = [(self.lines[:n], source)]
        return self.followed(generated(text, self.lines[0].lineno), rest, more)


class CheckedSegment(Segment):
    """Lines of a function, which may be loops and lines in turn, compared with NumPy: see check.py.
    """

    rest_type = Segment

    def build(self, values):
        function = super().build(values)
        return function if function is self.plain else Checked(self, function)


@functools.cache
def kernel(source, dtype):
    names = {**vars(vectors), "real": dtype.type}   # with its name: Numba imports the module by it
    exec(source, names)
    return jit(names["loop"], source)


# What the call of a loop needs.


def contiguous(array, *shape):
    return np.ascontiguousarray(array).reshape(shape)


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
    return contiguous(np.broadcast_to(numbers, whole[:-1]), -1)


def alone(written, read):
    """Return whether a loop may write to some of the arrays that it reads: contiguous ones that
    share no memory.
    """
    return all(each.flags.c_contiguous and each.flags.writeable for each in written) and not any(
        np.may_share_memory(*each) for each in itertools.combinations(read, 2)
    )


def over_blocks(loop, arrays, others, n_sums, axis):
    """Call a loop on blocks of arrays along an axis, on all free cores; return the row sums."""

    def run(block):
        sums = [np.zeros(arrays[0].shape[1], arrays[0].dtype) for _ in range(n_sums)]
        cut = [each[:, block] for each in arrays] if axis else [each[block] for each in arrays]
        loop(*cut, *others, *sums)
        return sums

    blocks = row_blocks(arrays[0].T if axis else arrays[0])
    if len(blocks) == 1:
        return run(slice(None))
    return [functools.reduce(np.add, each) for each in zip(*spread(run, blocks), strict=True)]


HELPERS = contiguous, in_order, row_numbers, alone, over_blocks, free_cores, float, abs, IndexError

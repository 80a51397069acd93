"""Matmuls of a few rows, as in generation: their time is that of reading the weights once from memory.

For one row OpenBLAS reaches that. For two rows it takes two to four times as long.
"""

import inspect

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from npgpt.engine.loops.jit import jit
from npgpt.engine.loops.segment import contiguous
from npgpt.engine.row_blocks import BLOCK_BYTES
from npgpt.engine.threads import even_parts, free_cores, spread

MOST = 8        # rows; with more, BLAS is faster


def loop(function):
    """Compile a loop whose sums may be added in any order."""
    return jit(function, inspect.getsource(function), fastmath=frozenset({"contract", "nsz", "reassoc"}))


@intrinsic
def prefetch(typing, row):
    """Start loading the first 64 bytes of an array into the cache, so that reading them later need not wait."""
    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        whole = ir.IntType(32)
        pointer = builder.bitcast(array.data, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), (pointer.type, whole, whole, whole))
        to_read_soon = [whole(0), whole(3), whole(1)]       # not to write, in the nearest cache, data and not code
        builder.call(builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind), [pointer, *to_read_soon])
        return context.get_dummy_value()

    return types.void(row), generate


@loop
def _times(x, weight, first, last, y):
    """Compute columns first to last of y (R, N) = x (R, K) @ weight (K, N): R even, K a multiple of 8."""
    R, K = x.shape
    y[:, first:last] = x.dtype.type(0)
    for k in range(0, K, 8):
        w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        w4, w5, w6, w7 = weight[k + 4], weight[k + 5], weight[k + 6], weight[k + 7]
        for r in range(0, R, 2):
            a0, a1, a2, a3, a4, a5, a6, a7 = (x[r, k], x[r, k + 1], x[r, k + 2], x[r, k + 3],
                                              x[r, k + 4], x[r, k + 5], x[r, k + 6], x[r, k + 7])
            b0, b1, b2, b3, b4, b5, b6, b7 = (x[r + 1, k], x[r + 1, k + 1], x[r + 1, k + 2], x[r + 1, k + 3],
                                              x[r + 1, k + 4], x[r + 1, k + 5], x[r + 1, k + 6], x[r + 1, k + 7])
            ya, yb = y[r], y[r + 1]
            for n in range(np.uint64(first), np.uint64(last)):
                ya[n] += (a0 * w0[n] + a1 * w1[n] + a2 * w2[n] + a3 * w3[n]
                          + a4 * w4[n] + a5 * w5[n] + a6 * w6[n] + a7 * w7[n])
                yb[n] += (b0 * w0[n] + b1 * w1[n] + b2 * w2[n] + b3 * w3[n]
                          + b4 * w4[n] + b5 * w5[n] + b6 * w6[n] + b7 * w7[n])


@loop
def _times_transposed(x, weight, first, last, y):
    """Compute columns first to last of y (R, V) = x (R, C) @ weight.T, weight (V, C), at least four of them.

    While four rows of the weight are multiplied, the next four are prefetched. The last columns may be computed twice.
    """
    R, C = x.shape
    for start in range(first, last, 4):
        v = min(start, last - 4)
        w0, w1, w2, w3 = weight[v], weight[v + 1], weight[v + 2], weight[v + 3]
        for r in range(R):
            if v + 8 <= last:
                for i in range(4 * r // R, 4 * (r + 1) // R):
                    for c in range(0, C, 16):
                        prefetch(weight[v + 4 + i, c:])
            row = x[r]
            y0 = y1 = y2 = y3 = x.dtype.type(0)
            for c in range(C):
                y0 += row[c] * w0[c]
                y1 += row[c] * w1[c]
                y2 += row[c] * w2[c]
                y3 += row[c] * w3[c]
            y[r, v], y[r, v + 1], y[r, v + 2], y[r, v + 3] = y0, y1, y2, y3


def times(x, weight):
    """Compute x @ weight on the cores that are free."""
    even = np.concatenate([x, np.zeros_like(x[:len(x) % 2])])
    y = np.empty((len(even), weight.shape[1]), x.dtype)
    spread(lambda part: _times(even, weight, part.start, part.stop, y), even_parts(weight.shape[1], free_cores()))
    return y[:len(x)]


def times_transposed(x, weight):
    """Compute x @ weight.T on the cores that are free."""
    y = np.empty((len(x), len(weight)), x.dtype)
    spread(lambda part: _times_transposed(x, weight, part.start, part.stop, y), even_parts(len(weight), free_cores()))
    return y


def by_loops(multiply, forward):
    """Wrap a forward of `linear` or `head`: multiply(x, weight) computes few rows, forward the others."""
    def few_or_many(x, weight, bias=None):
        rows = contiguous(x, -1, x.shape[-1])
        fits = rows.shape[1] % 8 == 0 and min(weight.shape) >= 4 and weight.nbytes > BLOCK_BYTES
        if not (2 <= len(rows) <= MOST and fits):
            return forward(x, weight, bias)
        y = multiply(rows, weight)
        if bias is not None:
            y += bias
        return y.reshape(*x.shape[:-1], -1), (x, weight, bias is not None)

    return few_or_many

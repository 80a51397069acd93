"""Matmuls by Intel's MKL (extra `mkl`). On a Xeon (Emerald Rapids) NumPy's OpenBLAS was about as fast or faster.

The lesson's `a @ b` calls MKL if one of its factors is `Intel`, a view of an array: the line stays the same.
"""

import ctypes
import functools
import importlib.metadata
import itertools
import re

import numpy as np

from npgpt.engine.blas import blas_matrices, layout
from npgpt.engine.threads import free_cores

ROWS, AS_IT_IS, TRANSPOSED = 101, 111, 112      # CblasRowMajor, CblasNoTrans, CblasTrans


class Intel(np.ndarray):
    """An array whose matmuls are MKL's, and plain arrays: `x.view(Intel) @ weight`."""

    def __matmul__(self, other):
        return matmul(self, other)

    def __rmatmul__(self, other):
        return matmul(other, self)


@functools.cache
def library():
    """Load the package's library, `mkl_rt`, which chooses its instructions by the CPU."""
    found = next(file for file in importlib.metadata.files("mkl") if re.fullmatch(r"(lib)?mkl_rt\b.*", file.name))
    mkl = ctypes.CDLL(str(found.locate().resolve()))
    mkl.MKL_CBWR_Set(2)         # equal bits wherever in memory the arrays lie
    n, pointer = ctypes.c_int, ctypes.c_void_p
    for name, real in (("s", ctypes.c_float), ("d", ctypes.c_double)):
        # layout, transpositions, m, n, k, alpha; a, b, beta, c with leading dimensions; for many: distances, how many
        getattr(mkl, f"cblas_{name}gemm").argtypes = [*[n] * 6, real, pointer, n, pointer, n, real, pointer, n]
        getattr(mkl, f"cblas_{name}gemm_batch_strided").argtypes = [
            *[n] * 6, real, pointer, n, n, pointer, n, n, real, pointer, n, n, n]
    return mkl


def matmul(a, b):
    """Compute a (..., m, k) @ b (..., k, n), of equal leading axes and float dtypes, on all free cores."""
    a, b = blas_matrices(np.asarray(a)), blas_matrices(np.asarray(b))
    (*leading, m, k), n, mkl = a.shape, b.shape[-1], library()
    letter, c = "s" if a.dtype == np.float32 else "d", np.empty((*leading, m, n), a.dtype)
    if 0 in (*c.shape, k):
        return np.zeros_like(c)
    before = mkl.MKL_Set_Num_Threads_Local(free_cores())
    if leading:
        gemm = getattr(mkl, f"cblas_{letter}gemm_batch_strided")
        for i in itertools.product(*map(range, leading[:-1])):
            (ta, *of_a), (tb, *of_b), (_, *of_c) = (
                (*form(each[i]), each.strides[-3] // each.itemsize) for each in (a, b, c))
            gemm(ROWS, ta, tb, m, n, k, 1.0, *of_a, *of_b, 0.0, *of_c, leading[-1])
    else:
        (ta, *of_a), (tb, *of_b), (_, *of_c) = map(form, (a, b, c))
        getattr(mkl, f"cblas_{letter}gemm")(ROWS, ta, tb, m, n, k, 1.0, *of_a, *of_b, 0.0, *of_c)
    mkl.MKL_Set_Num_Threads_Local(before)
    return c


def form(array):
    """Return what BLAS is told of the matrices of an array: transposed or not, address, leading dimension."""
    transposed, leading = layout(array)
    return TRANSPOSED if transposed else AS_IT_IS, array.ctypes.data, leading

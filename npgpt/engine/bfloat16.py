"""Matmuls of bfloat16 factors on a CPU (extra `bfloat16`), by oneDNN, the library behind PyTorch's.

The lesson's `a @ b` rounds its factors to bfloat16, which has 8 significant bits, and adds up the
products in float32, if one factor is `Rounding`, a view of an array: the line stays the same. Small
matmuls stay float32: rounding would take longer than they do.
"""

import ctypes
import functools
import importlib.metadata
import inspect

import numba
import numpy as np

from npgpt.engine.blas import blas_matrices, layout
from npgpt.engine.loops.jit import jit
from npgpt.engine.threads import even_parts, free_cores, spread
from npgpt.errors import UserError

LEAST = 1 << 22  # products of a matmul, and
NARROWEST = 32  # rows or columns: with fewer it stays float32
SLICE = 1 << 18  # numbers, at least, that a thread rounds
MULTIPLIES_BFLOAT16 = 0x80  # oneDNN's bit of CPUs with AVX512_BF16 or AMX_BF16
LETTER, SIZE, REAL = ctypes.c_int8, ctypes.c_int64, ctypes.c_float


class Rounding(np.ndarray):
    """An array whose matmuls are rounded, and plain arrays: `x.view(Rounding) @ weight`.

    bits: the numbers as bfloat16, rounded once for all views. So nobody may write to the array
    after a matmul. source: of a view, its array and the function that makes the view.
    """

    bits = source = None

    def viewed(self, how):
        view = how(np.asarray(self))
        if isinstance(view, np.ndarray):
            view = view.view(type(self))
            view.source = self, how
        return view

    def __getitem__(self, key):
        return self.viewed(lambda array: array[key])

    def reshape(self, *shape):
        return self.viewed(lambda array: array.reshape(*shape))

    def swapaxes(self, *axes):
        return self.viewed(lambda array: array.swapaxes(*axes))

    @property
    def T(self):
        return self.viewed(lambda array: array.T)

    def __matmul__(self, other):
        return matmul(self, other)

    def __rmatmul__(self, other):
        return matmul(other, self)

    def as_bits(self):
        if self.bits is None and self.source:
            array, how = self.source
            self.bits = how(array.as_bits())
        elif self.bits is None:
            self.bits = rounded(np.asarray(self))
        return self.bits


class Forgetful(Rounding):
    """An array that is rounded for each matmul, because edited lines may write to it."""

    def as_bits(self):
        return rounded(np.asarray(self))


def matmul(a, b):
    """Compute a (..., m, k) @ b (..., k, n) on all free cores, rounded if it is large enough."""
    m, n = a.shape[-2:][0], b.shape[-1]
    alike = a.ndim == b.ndim > 1 and a.shape[:-2] + a.shape[-1:] == b.shape[:-1]
    is_float32 = a.dtype == b.dtype == np.float32
    if not alike or not is_float32 or a.size * n < LEAST or min(m, n) < NARROWEST:
        return np.asarray(a) @ np.asarray(b)
    bits = (each.as_bits() if isinstance(each, Rounding) else rounded(each) for each in (a, b))
    a, b = map(blas_matrices, bits)
    c = np.empty((*a.shape[:-1], n), np.float32)
    if a.ndim > 2:
        multiply(a, b, c)
    elif m > n:
        spread(lambda rows: multiply(a[rows], b, c[rows]), even_parts(m, free_cores()))
    else:
        parts = even_parts(n, free_cores())
        spread(lambda columns: multiply(a, b[:, columns], c[:, columns]), parts)
    return c


def multiply(a, b, c):
    """Let oneDNN compute c = a b, of matrices of bits, on this thread alone."""
    parts = []
    for array in (a, b, c):
        transposed, leading = layout(array)
        first = array.__array_interface__["data"][0]
        starts = first + offsets(array.shape[:-2], array.strides[:-2])
        parts += b"NT"[transposed], starts, leading
    if library()(*c.shape[-2:], a.shape[-1], *parts):
        raise RuntimeError("oneDNN's matmul failed")


@functools.lru_cache(256)
def offsets(shape, strides):
    """Return where each matrix of an array begins, in bytes after the first."""
    axes = [step * np.arange(size) for size, step in zip(shape, strides, strict=True)]
    return np.ravel(functools.reduce(np.add.outer, axes, 0))


def rounded(array):
    """Round float32 to the nearest bfloat16, ties to even.

    Returns the bits, uint16, in the memory order of the array.
    """
    bits = np.empty_like(array, np.uint16)
    flat, flat_bits = array.ravel("K").view(np.uint32), bits.ravel("K")
    cores = min(free_cores(), 1 + array.size // SLICE)
    spread(lambda part: round_bits(flat[part], flat_bits[part]), even_parts(array.size, cores))
    return bits


def round_bits(numbers, bits):
    """Add half of the last place, or one bit less if that is even, and cut. uint32 -> uint16."""
    for i in range(np.uint64(numbers.size)):
        number = numbers[i]
        odd = (number >> np.uint32(16)) & np.uint32(1)
        nearest = (number + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        is_nan = (number & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        bits[i] = np.uint32(0x7FC0) if is_nan else nearest


round_bits = jit(round_bits, inspect.getsource(round_bits))


@functools.cache
def library():
    """Load oneDNN; return its matmul of many matrices.

    Its arguments: m, n, k, and of each of a, b and c a letter, addresses, leading dimension.
    Raises UserError if it is not installed, or if it would be slower than float32 on this CPU.
    """
    try:
        files = importlib.metadata.files("onednn-cpu-gomp") or ()
        (file,) = (str(each.locate().resolve()) for each in files if each.name == "libdnnl.so.3")
        dnnl = ctypes.CDLL(file)
    except (ImportError, OSError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UserError(
            f"dtype bfloat16 needs oneDNN on a CPU ({why}): pip install "
            '"npgpt[bfloat16]", or use --kernels xla or --dtype float32'
        ) from None
    if not dnnl.dnnl_get_effective_cpu_isa() & MULTIPLIES_BFLOAT16:
        raise UserError(
            "dtype bfloat16 gains nothing on this CPU, which has neither AVX512_BF16 "
            "nor AMX_BF16: use --dtype float32, or --kernels xla"
        )
    gemm, threads = dnnl.dnnl_gemm_bf16bf16f32, dnnl.omp_get_max_threads
    set_threads = dnnl.omp_set_num_threads
    # Transposed or not; m, n, k, alpha; a, b, beta, c, addresses with leading dimensions.
    gemm.argtypes = [LETTER, LETTER, *[SIZE] * 3, REAL, *[SIZE] * 4, REAL, SIZE, SIZE]
    set_threads.argtypes, set_threads.restype = [ctypes.c_int], None
    threads.argtypes = []

    @numba.njit(nogil=True)  # one call without Python's lock for all matrices
    def multiply_all(m, n, k, of_a, a, lda, of_b, b, ldb, _, c, ldc):
        before, failed = threads(), 0
        set_threads(1)
        for i in range(len(c)):
            failed |= gemm(of_a, of_b, m, n, k, 1.0, a[i], lda, b[i], ldb, 0.0, c[i], ldc)
        set_threads(before)
        return failed

    return multiply_all

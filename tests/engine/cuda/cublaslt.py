"""cublasLt without a GPU: what a matmul's descriptions ask for, computed by NumPy by the rules of cublasLt's manual."""

import ctypes
import functools
from ctypes import CFUNCTYPE, POINTER, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

SUCCESS, INVALID_VALUE = 0, 7
STATUS_NAMES = {INVALID_VALUE: b"CUBLAS_STATUS_INVALID_VALUE", 14: b"CUBLAS_STATUS_INTERNAL_ERROR"}
HANDLE = 0xACCE55

# number: type and default of each attribute that cublasLt.h has and we use or rely on
DESCRIPTION = {0: (c_int32, None), 1: (c_int32, None), 2: (c_int32, 0), 3: (c_int32, 0), 4: (c_int32, 0),
               7: (c_uint32, 1), 8: (c_uint64, 0), 26: (c_int32, -1)}
LAYOUT = {0: (c_uint32, None), 1: (c_int32, 0), 2: (c_uint64, None), 3: (c_uint64, None), 4: (c_int64, None)}
PREFERENCE = {1: (c_uint64, 0), 3: (c_uint32, 0xFFFFFFFF), **dict.fromkeys((5, 6, 7, 8), (c_uint32, 256))}

DTYPES = {0: np.dtype(np.float32), 14: np.dtype(np.uint16)}     # CUDA_R_32F, CUDA_R_16BF


def round_to_bfloat16(values):
    """The bits of the bfloat16 that is nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widen(array):
    """The values of an array, of bfloat16 if it holds those bits."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array


class Library:
    """Functions go through ctypes with the prototypes of the header, so that a wrong number or kind of argument shows.

    run: does a matmul, given as a function, or records it.
    """

    HANDLE_OUT, SET = POINTER(c_void_p), (c_void_p, c_int, c_void_p, c_size_t)
    PROTOTYPES = {
        "cublasLtCreate": (HANDLE_OUT,),
        "cublasLtDestroy": (c_void_p,),
        "cublasLtMatmulDescCreate": (HANDLE_OUT, c_int, c_int),
        "cublasLtMatrixLayoutCreate": (HANDLE_OUT, c_int, c_uint64, c_uint64, c_int64),
        "cublasLtMatmulPreferenceCreate": (HANDLE_OUT,),
        **dict.fromkeys(("cublasLtMatmulDescDestroy", "cublasLtMatrixLayoutDestroy", "cublasLtMatmulPreferenceDestroy"),
                        (c_void_p,)),
        "cublasLtMatmulDescSetAttribute": SET,
        "cublasLtMatmulPreferenceSetAttribute": SET,
        "cublasLtMatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, c_void_p, POINTER(c_int)),
        "cublasLtMatmul": (*[c_void_p] * 14, c_size_t, c_void_p),
    }

    def __init__(self, run=lambda work: work()):
        self.run = run
        self.calls = []             # the matmuls made: what their descriptions said
        self.heuristics = []        # what each question for an algorithm said
        self.heuristic_status, self.algorithms_found, self.algorithm_state = SUCCESS, 1, SUCCESS
        self.objects, self._chosen, self._raised, self._next = {}, {}, None, HANDLE
        for name, arguments in self.PROTOTYPES.items():
            method = getattr(self, "_" + name.removeprefix("cublasLt"))
            setattr(self, name, CFUNCTYPE(c_int, *arguments)(self._reporting(method)))

    def _reporting(self, function):
        def call(*arguments):
            try:
                return function(*arguments) or SUCCESS
            except BaseException as error:      # ctypes would print it and go on
                self._raised = error
                return INVALID_VALUE
        return call

    def cublasLtGetStatusName(self, status):
        if self._raised:
            raise self._raised
        return STATUS_NAMES[status]

    def _Create(self, out):
        self._make(out, {}, {})

    def _MatmulDescCreate(self, out, compute, scale):
        self._make(out, DESCRIPTION, {0: compute, 1: scale})

    def _MatrixLayoutCreate(self, out, kind, rows, cols, leading_dimension):
        self._make(out, LAYOUT, {0: kind, 2: rows, 3: cols, 4: leading_dimension})

    def _MatmulPreferenceCreate(self, out):
        self._make(out, PREFERENCE, {})

    def _destroy(self, handle):
        del self.objects[handle]

    _Destroy = _MatmulDescDestroy = _MatrixLayoutDestroy = _MatmulPreferenceDestroy = _destroy

    def _make(self, out, attributes, values):
        out[0] = handle = self._next
        self._next += 8
        self.objects[handle] = {number: kind(values.get(number, default))
                                 for number, (kind, default) in attributes.items()}

    def _set(self, handle, attribute, buffer, size):
        value = self.objects[handle][attribute]
        assert ctypes.sizeof(value) == size
        ctypes.memmove(ctypes.addressof(value), buffer, size)

    _MatmulDescSetAttribute = _MatmulPreferenceSetAttribute = _set

    def _read(self, handle):
        return {number: value.value for number, value in self.objects[handle].items()}

    def _MatmulAlgoGetHeuristic(self, handle, description, A, B, C, D, preference, count, results, found):
        assert handle in self.objects and count == 1
        asked = self._read(preference)
        asked["bias"] = _alignment(self._read(description)[8])
        self.heuristics.append(asked)
        # 96 bytes: the algorithm (64), its workspace's size (8), state (4), waves (4), four reserved numbers
        algorithm = len(self.heuristics).to_bytes(64, "little")
        ctypes.memmove(results, algorithm, 64)
        ctypes.memmove(results + 72, ctypes.byref(c_int(self.algorithm_state)), 4)
        found[0] = self.algorithms_found
        self._chosen[algorithm] = (description, A, B, C, D), asked
        return self.heuristic_status

    def _Matmul(self, handle, description, alpha, A, layout_A, B, layout_B, beta, C, layout_C, D, layout_D, algorithm,
                workspace, workspace_size, stream):
        said = self._read(description)
        descriptions, asked = self._chosen[ctypes.string_at(algorithm, 64)]
        assert descriptions == (description, layout_A, layout_B, layout_C, layout_D)    # the algorithm is for these
        assert all(_alignment(address) >= asked[number] for number, address in ((5, A), (6, B), (7, C), (8, D)))
        assert workspace_size == asked[1] and _alignment(said[8]) >= asked["bias"]
        alpha, beta = (c_float.from_address(factor).value for factor in (alpha, beta))
        layouts = [self._read(layout) for layout in (layout_A, layout_B, layout_C, layout_D)]
        self.run(functools.partial(_multiply, said, layouts, alpha, A, B, beta, C, D))
        self.calls.append({"compute": said[0], "scale": said[1], "stream": stream, "handle": handle,
                           "workspace": workspace, "pointer mode": said[2], "bias type": said[26],
                           "transposed": (said[3], said[4]), "beta": beta})


def _multiply(said, layouts, alpha, A, B, beta, C, D):
    """D = alpha op(A) op(B) + beta C + bias."""
    left, right = _operand(A, layouts[0], said[3]), _operand(B, layouts[1], said[4])
    before, out = _matrix(C, layouts[2]), _matrix(D, layouts[3])
    product = alpha * (left.astype(np.float64) @ right.astype(np.float64))
    assert product.shape == out.shape == before.shape
    if beta != 0:                           # with 0, C is not read at all: it may hold NaN
        product += beta * widen(before)
    if said[7] == 4:                        # CUBLASLT_EPILOGUE_BIAS: an entry for each row, to all columns
        product += widen(_memory(said[8], len(product), out.dtype))[:, None]
    else:
        assert said[7] == 1                 # CUBLASLT_EPILOGUE_DEFAULT
    out[...] = round_to_bfloat16(product) if out.dtype == np.uint16 else product


def _matrix(address, layout):
    """Column-major, as cublasLt.h says: element (i, j) is i + j * leading dimension elements from the start."""
    kind, order, rows, cols, leading_dimension = (layout[number] for number in range(5))
    dtype = DTYPES[kind]
    assert order == 0 and leading_dimension >= rows > 0 and address % dtype.itemsize == 0
    flat = _memory(address, (cols - 1) * leading_dimension + rows, dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (dtype.itemsize, leading_dimension * dtype.itemsize))


def _operand(address, layout, operation):
    assert operation in (0, 1)              # CUBLAS_OP_N, CUBLAS_OP_T
    matrix = widen(_matrix(address, layout))
    return matrix.T if operation == 1 else matrix


def _memory(address, elements, dtype):
    return np.frombuffer((ctypes.c_char * (elements * dtype.itemsize)).from_address(address), dtype)


def _alignment(address):
    return min(address & -address, 256)

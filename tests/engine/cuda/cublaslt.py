"""cublasLt without a card: the products that its descriptions say, made on the CPU by the rules of its manual."""

import ctypes
import functools
from ctypes import CFUNCTYPE, POINTER, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

SUCCESS, INVALID_VALUE, NOT_SUPPORTED = 0, 7, 15
HANDLE = 0xACCE55
VOID, HANDLE_OUT, SIZE_OUT = c_void_p, POINTER(c_void_p), POINTER(c_size_t)

# number: type and default of each attribute that cublasLt.h has and we use or rely on
DESCRIPTION = {0: (c_int32, None), 1: (c_int32, None), 2: (c_int32, 0), 3: (c_int32, 0), 4: (c_int32, 0),
               7: (c_uint32, 1), 8: (c_uint64, 0), 26: (c_int32, -1)}
LAYOUT = {0: (c_uint32, None), 1: (c_int32, 0), 2: (c_uint64, None), 3: (c_uint64, None), 4: (c_int64, None)}
PREFERENCE = {1: (c_uint64, 0), 5: (c_uint32, 256), 6: (c_uint32, 256), 7: (c_uint32, 256), 8: (c_uint32, 256)}

DTYPES = {0: np.dtype(np.float32), 14: np.dtype(np.uint16)}     # CUDA_R_32F, CUDA_R_16BF


class Device:
    """A NumPy array that looks like an array on a card: its library has an address, a shape and strides, no more."""

    def __init__(self, array):
        self.array, self.shape, self.strides, self.dtype = array, array.shape, array.strides, array.dtype
        self.nbytes = array.nbytes
        self.data = type("Memory", (), {"ptr": array.ctypes.data})

    @property
    def T(self):
        return Device(self.array.T)


def to_bfloat16(a):
    """Bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_float(a):
    return (a.astype(np.uint32) << 16).view(np.float32) if a.dtype == np.uint16 else a


class Descriptors:
    """The part of cublasLt that needs no card, in Python: objects with attributes, written and read as bytes."""

    def __init__(self):
        self.objects = {}

    def cublasLtMatmulDescCreate(self, out, compute, scale):
        return self._create(out, DESCRIPTION, {0: compute, 1: scale})

    def cublasLtMatrixLayoutCreate(self, out, kind, rows, cols, leading_dimension):
        return self._create(out, LAYOUT, {0: kind, 2: rows, 3: cols, 4: leading_dimension})

    def cublasLtMatmulPreferenceCreate(self, out):
        return self._create(out, PREFERENCE, {})

    def cublasLtMatmulPreferenceDestroy(self, handle):
        del self.objects[handle]
        return SUCCESS

    def _create(self, out, attributes, values):
        handle = 1000 + 8 * len(self.objects)
        self.objects[handle] = {number: kind(values.get(number, default))
                                for number, (kind, default) in attributes.items()}
        out[0] = handle
        return SUCCESS

    def set(self, handle, attribute, buffer, size):
        value = self.objects[handle].get(attribute)
        if value is None or ctypes.sizeof(value) != size:
            return INVALID_VALUE
        ctypes.memmove(ctypes.addressof(value), buffer, size)
        return SUCCESS

    def get(self, handle, attribute, buffer, size, written):
        value = self.objects[handle][attribute]
        assert size == ctypes.sizeof(value)
        ctypes.memmove(buffer, ctypes.addressof(value), size)
        return SUCCESS

    cublasLtMatmulDescSetAttribute = cublasLtMatrixLayoutSetAttribute = cublasLtMatmulPreferenceSetAttribute = set
    cublasLtMatmulDescGetAttribute = cublasLtMatrixLayoutGetAttribute = cublasLtMatmulPreferenceGetAttribute = get


class Library:
    """cublasLt: descriptors by `descriptors` (those above, or the true library), products by NumPy.

    Functions go through ctypes with the prototypes of the header, so that a wrong number or kind of argument shows.
    """

    SET, GET = (VOID, c_int, VOID, c_size_t), (VOID, c_int, VOID, c_size_t, SIZE_OUT)
    PROTOTYPES = {
        "cublasLtMatmulDescCreate": (HANDLE_OUT, c_int, c_int),
        "cublasLtMatrixLayoutCreate": (HANDLE_OUT, c_int, c_uint64, c_uint64, c_int64),
        "cublasLtMatmulPreferenceCreate": (HANDLE_OUT,),
        "cublasLtMatmulPreferenceDestroy": (VOID,),
        "cublasLtMatmulDescSetAttribute": SET,
        "cublasLtMatmulPreferenceSetAttribute": SET,
        "cublasLtMatmulDescGetAttribute": GET,
        "cublasLtMatrixLayoutGetAttribute": GET,
        "cublasLtMatmulPreferenceGetAttribute": GET,
    }
    ON_THE_CARD = {
        "cublasLtCreate": (HANDLE_OUT,),
        "cublasLtMatmulAlgoGetHeuristic": (*[VOID] * 7, c_int, VOID, POINTER(c_int)),
        "cublasLtMatmul": (*[VOID] * 14, c_size_t, VOID),
    }

    def __init__(self, descriptors):
        self.calls = []             # the products made: what their descriptions said
        self.heuristics = []        # what each question for an algorithm said
        self.run = lambda product: product()        # what a graph records instead
        self.heuristic_status, self.algorithms_found, self.algorithm_state = SUCCESS, 1, SUCCESS
        self._chosen = {}
        self._raised = None
        for name, arguments in self.PROTOTYPES.items():
            function = getattr(descriptors, name)
            if isinstance(descriptors, Descriptors):
                function = CFUNCTYPE(c_int, *arguments)(self._reporting(function))
            elif name.endswith("GetAttribute"):         # the others have the prototypes that npgpt gave them
                function.argtypes, function.restype = arguments, c_int
            setattr(self, name, function)
        for name, arguments in self.ON_THE_CARD.items():
            setattr(self, name, CFUNCTYPE(c_int, *arguments)(self._reporting(getattr(self, "_" + name))))

    def _reporting(self, function):
        def call(*arguments):
            try:
                return function(*arguments)
            except BaseException as error:      # ctypes would print it and go on
                self._raised = error
                return INVALID_VALUE
        return call

    def cublasLtGetStatusName(self, status):
        if self._raised:
            raise self._raised
        return {INVALID_VALUE: b"CUBLAS_STATUS_INVALID_VALUE", NOT_SUPPORTED: b"CUBLAS_STATUS_NOT_SUPPORTED",
                14: b"CUBLAS_STATUS_INTERNAL_ERROR"}[status]

    def read(self, kind, handle, attributes):
        """{number: value} of all attributes of a description, a layout or a preference."""
        values = {}
        for number, (attribute_type, _) in attributes.items():
            value = attribute_type()
            status = getattr(self, f"cublasLt{kind}GetAttribute")(
                handle, number, ctypes.addressof(value), ctypes.sizeof(value), ctypes.byref(c_size_t()))
            assert status == SUCCESS, (kind, number)
            values[number] = value.value
        return values

    def _cublasLtCreate(self, out):
        out[0] = HANDLE
        return SUCCESS

    def _cublasLtMatmulAlgoGetHeuristic(self, handle, description, A, B, C, D, preference, count, results, found):
        assert handle == HANDLE and count == 1
        asked = self.read("MatmulPreference", preference, PREFERENCE)
        asked["bias"] = _alignment(self.read("MatmulDesc", description, DESCRIPTION)[8])
        self.heuristics.append(asked)
        # 96 bytes: the algorithm (64), its workspace's size (8), state (4), waves (4), four reserved numbers
        algorithm = bytes([len(self.heuristics)] * 64)
        ctypes.memmove(results, algorithm, 64)
        ctypes.memmove(results + 72, ctypes.byref(c_int(self.algorithm_state)), 4)
        found[0] = self.algorithms_found
        self._chosen[algorithm] = (description, A, B, C, D), asked
        return self.heuristic_status

    def _cublasLtMatmul(self, handle, description, alpha, A, layout_A, B, layout_B, beta, C, layout_C, D, layout_D,
                        algorithm, workspace, workspace_size, stream):
        said = self.read("MatmulDesc", description, DESCRIPTION)
        descriptions, asked = self._chosen[ctypes.string_at(algorithm, 64)]
        assert descriptions == (description, layout_A, layout_B, layout_C, layout_D)    # the algorithm is for these
        assert all(_alignment(address) >= asked[number] for number, address in ((5, A), (6, B), (7, C), (8, D)))
        assert workspace_size == asked[1] and _alignment(said[8]) >= asked["bias"]
        alpha, beta = (c_float.from_address(factor).value for factor in (alpha, beta))

        layouts = [self.read("MatrixLayout", layout, LAYOUT) for layout in (layout_A, layout_B, layout_C, layout_D)]
        self.run(functools.partial(_product, said, layouts, alpha, A, B, beta, C, D))
        self.calls.append({"compute": said[0], "scale": said[1], "stream": stream, "handle": handle,
                           "workspace": workspace, "pointer mode": said[2], "bias type": said[26],
                           "transposed": (said[3], said[4]), "beta": beta})
        return SUCCESS


def _product(said, layouts, alpha, A, B, beta, C, D):
    """D = alpha op(A) op(B) + beta C + bias."""
    left, right = _operand(A, layouts[0], said[3]), _operand(B, layouts[1], said[4])
    before, out = _matrix(C, layouts[2]), _matrix(D, layouts[3])
    product = alpha * (left.astype(np.float64) @ right.astype(np.float64))
    assert product.shape == out.shape == before.shape
    if beta != 0:                           # with 0, C is not read at all: it may hold NaN
        product += beta * to_float(before)
    if said[7] == 4:                        # CUBLASLT_EPILOGUE_BIAS: an entry for each row, to all columns
        product += to_float(_memory(said[8], len(product), out.dtype))[:, None]
    else:
        assert said[7] == 1                 # CUBLASLT_EPILOGUE_DEFAULT
    out[...] = to_bfloat16(product) if out.dtype == np.uint16 else product


def _matrix(address, layout):
    """Column-major, as cublasLt.h says: element (i, j) is i + j * leading dimension elements from the start."""
    kind, order, rows, cols, leading_dimension = (layout[number] for number in range(5))
    dtype = DTYPES[kind]
    assert order == 0 and leading_dimension >= rows > 0 and address % dtype.itemsize == 0
    flat = _memory(address, (cols - 1) * leading_dimension + rows, dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (dtype.itemsize, leading_dimension * dtype.itemsize))


def _operand(address, layout, operation):
    matrix = to_float(_matrix(address, layout))
    assert operation in (0, 1)              # CUBLAS_OP_N, CUBLAS_OP_T
    return matrix.T if operation == 1 else matrix


def _memory(address, elements, dtype):
    return np.frombuffer((ctypes.c_char * (elements * dtype.itemsize)).from_address(address), dtype)


def _alignment(address):
    return min(address & -address, 256)

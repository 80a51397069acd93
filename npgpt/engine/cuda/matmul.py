"""Matmuls on the GPU by NVIDIA's cublasLt, called through ctypes.

    matmul = Matmul(cupy.cuda.get_current_stream, workspace)
    matmul(x, weight, y, bias=b)                    # y = x @ weight + b
    matmul(x.T, dy, dweight, add=True)              # dweight += x.T @ dy

CuPy's own matmul cannot add to its output, add a bias on the way, or be recorded in a CUDA graph.
Names and numbers below are those of cublasLt.h, the same in CUDA 12 and 13.
"""

import ctypes
import functools
import weakref
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

from npgpt.errors import UserError

CUDA_R_32F, CUDA_R_16BF = 0, 14
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 77
CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUBLAS_STATUS_NOT_SUPPORTED = 15
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8             # CUBLASLT_MATMUL_DESC_…
EPILOGUE_BIAS = 4                                               # CUBLASLT_EPILOGUE_…
# CUBLASLT_MATMUL_PREF_…, the last of A, B, C and D
MAX_WORKSPACE_BYTES, REDUCTION_SCHEME_MASK, MIN_ALIGNMENT_BYTES = 1, 3, (5, 6, 7, 8)
REDUCTION_SCHEME_COMPUTE_TYPE = 2                               # CUBLASLT_…

TYPES = {np.dtype(np.float32): CUDA_R_32F, np.dtype(np.uint16): CUDA_R_16BF}    # NumPy has no bfloat16: we keep bits


class Algorithm(ctypes.Structure):
    _fields_ = (("data", c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    _fields_ = (("algorithm", Algorithm), ("workspace_size", c_size_t), ("state", c_int), ("waves_count", c_float),
                ("reserved", c_int * 4))


_SET_ATTRIBUTE = (c_void_p, c_int, c_void_p, c_size_t)
PROTOTYPES = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtDestroy": (c_void_p,),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatmulDescSetAttribute": _SET_ATTRIBUTE,
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": _SET_ATTRIBUTE,
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, POINTER(HeuristicResult), POINTER(c_int)),
    "cublasLtMatmul": (*[c_void_p] * 12, POINTER(Algorithm), c_void_p, c_size_t, c_void_p),
}


@functools.cache
def load_cublaslt():
    """The library, found where CuPy finds its own: in the wheels of its extra "ctk", or in an installed toolkit."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
        library = ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (ImportError, OSError, RuntimeError) as error:       # pathfinder's own exceptions are RuntimeErrors
        raise UserError("cannot load cublasLt, NVIDIA's library of matmuls: pip install 'npgpt[cuda12]' or "
                        "'npgpt[cuda13]', whichever your driver supports") from error
    for name, arguments in PROTOTYPES.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = c_int
    library.cublasLtGetStatusName.argtypes = (c_int,)
    library.cublasLtGetStatusName.restype = ctypes.c_char_p
    return library


class Matmul:
    """Matmuls of 2-D device arrays on CuPy's current stream; see `__call__`.

    current_stream: a function that returns that stream. workspace: a device array of bytes for use while a matmul runs;
    32 MiB allow all fast algorithms of a Hopper GPU. Matmuls share it, and so must run one after the other. tf32:
    matmuls of float32 arrays round their operands to tf32 (10 bits of mantissa), for the tensor cores.

    A CUDA graph may hold matmuls, but no plan may be made during its capture (CUDA 13.3 refuses). `GPU.capture` sets
    `frozen` meanwhile, so that every version of CUDA refuses.
    """

    def __init__(self, current_stream, workspace, tf32=False):
        self.frozen = False
        self._library = load_cublaslt()
        self._current_stream, self._workspace = current_stream, workspace
        self._float32_compute = CUBLAS_COMPUTE_32F_FAST_TF32 if tf32 else CUBLAS_COMPUTE_32F
        self._plans = {}
        self._handle = self._create("cublasLt")

    def __call__(self, a, b, out, bias=None, add=False):
        """Compute out (M, N) = a (M, K) @ b (K, N), plus bias (N,) in every row, plus out itself if `add` is true.

        Arrays are CuPy's, row-major with any row stride, or the transpose (`.T`) of such an array. a and b are both
        float32 or both bfloat16 (as uint16); out is float32, or of their dtype. The bias is of out's dtype. Sums are
        accumulated in float32 and rounded once, at the end.
        """
        if _is_transposed(out):         # out.T = b.T @ a.T, and out.T is row-major
            if bias is not None:
                raise ValueError("no bias for an output that is a transpose: it would run down the columns")
            a, b, out = b.T, a.T, out.T
        _check(a, b, out, bias)

        # cublasLt is column-major: it reads our row-major (M, N) array as the (N, M) transpose, at no cost. So we ask
        # for out^T = b^T a^T, which it calls D = op(A) op(B): b comes first. It also has row-major matrices
        # (CUBLASLT_ORDER_ROW), but fewer algorithms and no bias for them. Its bias has an entry for each row of D, so
        # for each column of out: what we need.
        key = tuple((x.shape, x.strides, x.dtype, _alignment(x)) for x in (a, b, out))
        key += (None if bias is None else _alignment(bias),)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make_plan(a, b, out, bias)
        description, (layout_b, layout_a, layout_out), algorithm = plan
        if bias is not None:
            self._set("cublasLtMatmulDesc", description, BIAS_POINTER, c_void_p(bias.data.ptr))
        # D = alpha A B + beta C with C = D. The factors are read on the host, now: beta is no part of the plan.
        self._call("cublasLtMatmul", self._handle, description, byref(c_float(1)), b.data.ptr, layout_b,
                   a.data.ptr, layout_a, byref(c_float(add)), out.data.ptr, layout_out, out.data.ptr, layout_out,
                   byref(algorithm), self._workspace.data.ptr, self._workspace.nbytes,
                   self._current_stream().ptr)

    def _make_plan(self, a, b, out, bias):
        """Make a description of the matmul, layouts of b, a and out, and choose the algorithm cublasLt ranks first.

        Plans are kept: a few dozen, one for each kind of matmul of a model.
        """
        if self.frozen:
            raise RuntimeError(f"a new matmul {a.shape} @ {b.shape} inside a CUDA graph: run it once before")
        compute = self._float32_compute if a.dtype == np.float32 else CUBLAS_COMPUTE_32F
        description = self._create("cublasLtMatmulDesc", compute, CUDA_R_32F)     # alpha and beta are float32
        for attribute, x in ((TRANSA, b), (TRANSB, a)):
            operation = CUBLAS_OP_T if _is_transposed(x) else CUBLAS_OP_N
            self._set("cublasLtMatmulDesc", description, attribute, c_int32(operation))
        if bias is not None:
            self._set("cublasLtMatmulDesc", description, EPILOGUE, c_uint32(EPILOGUE_BIAS))
            # The choice below depends on the alignment of the bias, not on its values.
            self._set("cublasLtMatmulDesc", description, BIAS_POINTER, c_void_p(bias.data.ptr))
        layouts = tuple(self._layout(x) for x in (b, a, out))

        preference = c_void_p()
        self._call("cublasLtMatmulPreferenceCreate", byref(preference))
        self._set("cublasLtMatmulPreference", preference, MAX_WORKSPACE_BYTES, c_uint64(self._workspace.nbytes))
        if out.dtype != np.float32:     # else, where K is split, the sums of the parts may be rounded to bfloat16
            self._set("cublasLtMatmulPreference", preference, REDUCTION_SCHEME_MASK,
                      c_uint32(REDUCTION_SCHEME_COMPUTE_TYPE))
        for attribute, x in zip(MIN_ALIGNMENT_BYTES, (b, a, out, out), strict=True):
            self._set("cublasLtMatmulPreference", preference, attribute, c_uint32(_alignment(x)))
        result, found = HeuristicResult(), c_int(0)
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, description, *layouts, layouts[-1], preference, 1, byref(result), byref(found))
        self._call("cublasLtMatmulPreferenceDestroy", preference)
        if status == CUBLAS_STATUS_NOT_SUPPORTED or (status == 0 and (found.value == 0 or result.state != 0)):
            raise UserError(f"cublasLt has no algorithm on this GPU for a matmul {a.shape} @ {b.shape} of "
                            f"{_name(a)} to {_name(out)}: use --dtype float32, or --device cpu")
        self._check_status("cublasLtMatmulAlgoGetHeuristic", status)
        return description, layouts, result.algorithm

    def _layout(self, x):
        """Our row-major array (rows, cols) is cublasLt's column-major (cols, rows), of the same leading dimension."""
        rows, cols = x.T.shape if _is_transposed(x) else x.shape
        return self._create("cublasLtMatrixLayout", TYPES[x.dtype], cols, rows, _leading_dimension(x))

    def _create(self, kind, *arguments):
        """Make one of cublasLt's objects, which is destroyed with this one, and before what was made earlier."""
        handle = c_void_p()
        self._call(f"{kind}Create", byref(handle), *arguments)
        weakref.finalize(self, getattr(self._library, f"{kind}Destroy"), handle).atexit = False
        return handle

    def _set(self, kind, handle, attribute, value):
        self._call(f"{kind}SetAttribute", handle, attribute, byref(value), ctypes.sizeof(value))

    def _call(self, function, *arguments):
        self._check_status(function, getattr(self._library, function)(*arguments))

    def _check_status(self, function, status):
        if status != 0:
            raise RuntimeError(f"{function}: {self._library.cublasLtGetStatusName(status).decode()}")


def _is_transposed(x):
    """Whether x is the transpose of a row-major array, and not one itself. Neither is an error."""
    rows, cols = x.shape
    down, right = x.strides
    if right == x.dtype.itemsize and down >= cols * right:
        return False
    if down == x.dtype.itemsize and right >= rows * down:
        return True
    raise ValueError(f"an array of shape {x.shape} and strides {x.strides} is neither row-major nor a transpose")


def _leading_dimension(x):
    """The row stride of the row-major array, in elements."""
    return x.strides[1 if _is_transposed(x) else 0] // x.dtype.itemsize


def _alignment(x):
    """The largest power of two that divides the array's address, 256 at most: more changes nothing for cublasLt."""
    return min(x.data.ptr & -x.data.ptr, 256)


def _check(a, b, out, bias):
    (M, K), (K_b, N) = a.shape, b.shape
    if K != K_b or out.shape != (M, N) or (bias is not None and bias.shape != (N,)):
        raise ValueError(f"shapes do not fit: {a.shape} @ {b.shape} -> {out.shape}"
                         + ("" if bias is None else f" with a bias {bias.shape}"))
    if a.dtype != b.dtype or a.dtype not in TYPES or out.dtype not in (np.float32, a.dtype):
        raise ValueError(f"no matmul of {a.dtype} and {b.dtype} to {out.dtype}")
    if bias is not None and (bias.dtype != out.dtype or bias.strides != (bias.dtype.itemsize,)):
        raise ValueError(f"the bias is not contiguous, or {bias.dtype} for an output of {out.dtype}")


def _name(x):
    return "float32" if x.dtype == np.float32 else "bfloat16"

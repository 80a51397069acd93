"""The GPUs of the stand-in for CuPy: devices, memory, cuBLAS, and what was recorded. See
strict_cupy.py.
"""

import ctypes
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np

STATUS = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    15: "NOT_SUPPORTED",
}  # of cuBLAS
CUBLAS_TF32_TENSOR_OP_MATH = 3  # a math mode of cuBLAS that CuPy has no name for
FIRST_HANDLE = 1000  # of cuBLAS, on device 0
HERE = __file__.removesuffix("gpu.py")


OutOfMemoryError = type("OutOfMemoryError", (MemoryError,), {})
CUDARuntimeError = type("CUDARuntimeError", (RuntimeError,), {})  # the driver reports an error
ILLEGAL_ADDRESS = "cudaErrorIllegalAddress: an illegal memory access was encountered"


class CUBLASError(RuntimeError):
    def __init__(self, status):
        self.status = status
        super().__init__(f"CUBLAS_STATUS_{STATUS[status]}")


class State:
    """The state of the GPUs. A place is "file:line", outside of this file."""

    def __init__(self):
        self.devices = 1
        self.compute_capability = "90"
        self.thread = threading.local()  # each thread has its own current device
        self.memory = 80 << 30  # bytes: OutOfMemoryError if more would be used
        self.live = {}  # id of an array that owns memory -> its address, bytes and device
        self.peak = 0  # the most bytes that were used, without matmuls' copies
        self.waits = []  # places that waited for the GPU
        self.copies = []  # places of matmuls, one for each operand that CuPy copies before
        self.atomics = []  # places that sum in any order
        self.math_modes = {}  # handle -> cuBLAS's math mode
        self.cublas_status = 0  # with which the next matmul fails
        self.compute_type = linalg.COMPUTE_TYPE_DEFAULT  # CuPy's, for 2-D matmuls of float32
        self.precisions = set()  # of matmuls of float32: ("float32" or "tf32", 2, or 3 if batched)

    current = property(lambda self: getattr(self.thread, "device", 0))
    used = property(lambda self: sum(nbytes for _, nbytes, _ in list(self.live.values())))

    def allocate(self, owner):
        used = self.used + owner.nbytes
        if used > self.memory:
            raise OutOfMemoryError(
                f"Out of memory allocating {owner.nbytes:,} bytes "
                f"(allocated so far: {used - owner.nbytes:,} bytes)."
            )
        self.live[id(owner)], self.peak = (
            (owner.ctypes.data, owner.nbytes, self.current),
            max(self.peak, used),
        )
        weakref.finalize(owner, self.live.pop, id(owner), None)

    def holds(self, address, nbytes):
        """Return whether memory belongs to one array of the current device."""
        return any(
            begin <= address and address + nbytes <= begin + size and device == self.current
            for begin, size, device in list(self.live.values())
        )


def place():
    frame = sys._getframe()
    while frame.f_code.co_filename.startswith((HERE, *np.__path__)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Awaited:
    """A stream, an event or a device."""

    def synchronize(self):
        gpu.waits.append(place())


class Device(Awaited):
    compute_capability = property(lambda self: gpu.compute_capability)
    cublas_handle = property(lambda self: FIRST_HANDLE + self.id)

    def __init__(self, device=None):
        self.id = gpu.current if device is None else int(device)

    def __int__(self):
        return self.id

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def use(self):
        if not 0 <= self.id < gpu.devices:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        gpu.thread.device = self.id
        return self

    def __enter__(self):
        gpu.thread.__dict__.setdefault("before", []).append(gpu.current)
        return self.use()

    def __exit__(self, *error):
        gpu.thread.device = gpu.thread.before.pop()


def record_precision(handle, compute_type, ndim):
    tf32 = (
        compute_type == cublas.CUBLAS_COMPUTE_32F_FAST_TF32
        or get_math_mode(handle) == CUBLAS_TF32_TENSOR_OP_MATH
    )
    gpu.precisions.add(("tf32" if tf32 and int(gpu.compute_capability) >= 80 else "float32", ndim))


def start_cublas(handle):
    """Fail if this matmul has to, or if the handle is not the current device's."""
    status, gpu.cublas_status = gpu.cublas_status, 0
    if status or handle != FIRST_HANDLE + gpu.current:
        raise CUBLASError(status or 1)


def memory_at(address, dtype, shape, strides):
    """Return the current device's memory at an address as a NumPy array. strides: in elements."""
    nbytes = (
        1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    ) * dtype.itemsize
    if not gpu.holds(address, nbytes):
        raise CUDARuntimeError(ILLEGAL_ADDRESS)
    memory = np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(
        memory, shape, [stride * dtype.itemsize for stride in strides]
    )


def gemm_strided_batched_ex(
    handle,
    transa,
    transb,
    m,
    n,
    k,
    alpha,
    A,
    Atype,
    lda,
    strideA,
    B,
    Btype,
    ldb,
    strideB,
    beta,
    C,
    Ctype,
    ldc,
    strideC,
    batchCount,
    computeType,
    algo,
):
    """C = alpha op(A) op(B) + beta C for each matrix of a batch, in column-major order."""
    start_cublas(handle)
    if lda < max(1, k if transa else m) or ldb < max(1, n if transb else k) or ldc < max(1, m):
        raise CUBLASError(7)
    if not Atype == Btype == Ctype or computeType not in COMPUTE_TYPES.get(Ctype, ()):
        raise CUBLASError(15)
    number = ctypes.c_double if Ctype == runtime.CUDA_R_64F else ctypes.c_float
    a, b, c = (
        memory_at(address, np.dtype(number), (batchCount, rows, columns), (stride, 1, ld))
        for address, rows, columns, ld, stride in (
            (A, *((k, m) if transa else (m, k)), lda, strideA),
            (B, *((n, k) if transb else (k, n)), ldb, strideB),
            (C, m, n, ldc, strideC),
        )
    )
    if gpu.holds(alpha, 1) or gpu.holds(beta, 1):  # cuBLAS reads the two on the host
        raise CUDARuntimeError(ILLEGAL_ADDRESS)
    product = (a.swapaxes(1, 2) if transa else a) @ (b.swapaxes(1, 2) if transb else b)
    alpha, beta = (number.from_address(address).value for address in (alpha, beta))
    c[...] = alpha * product + beta * c if beta else alpha * product  # if beta is 0, C may hold NaN
    if Ctype == runtime.CUDA_R_32F:
        record_precision(handle, computeType, 3)


def get_math_mode(handle):
    if not FIRST_HANDLE <= handle < FIRST_HANDLE + gpu.devices:
        raise CUBLASError(1)
    return gpu.math_modes.get(handle, cublas.CUBLAS_DEFAULT_MATH)


def set_math_mode(handle, mode):
    get_math_mode(handle)
    gpu.math_modes[handle] = mode


def set_compute_type(dtype, compute_type):
    gpu.compute_type = compute_type


runtime = SimpleNamespace(
    getDeviceCount=lambda: gpu.devices,
    CUDARuntimeError=CUDARuntimeError,
    getDeviceProperties=lambda device: {"name": b"a stand-in for a GPU"},
    CUDA_R_32F=0,
    CUDA_R_64F=1,
)
cublas = SimpleNamespace(
    CUBLASError=CUBLASError,
    gemmStridedBatchedEx=gemm_strided_batched_ex,
    setMathMode=set_math_mode,
    getMathMode=get_math_mode,
    CUBLAS_DEFAULT_MATH=0,
    CUBLAS_GEMM_DEFAULT=-1,
    CUBLAS_COMPUTE_32F=68,
    CUBLAS_COMPUTE_64F=70,
    CUBLAS_COMPUTE_32F_FAST_TF32=77,
)
linalg = SimpleNamespace(
    get_compute_type=lambda dtype: gpu.compute_type,
    set_compute_type=set_compute_type,
    COMPUTE_TYPE_DEFAULT=1,
    COMPUTE_TYPE_FP32=4,
    COMPUTE_TYPE_TF32=7,
)
COMPUTE_TYPES = {0: (0, 68, 77), 1: (1, 70)}  # a type of C -> the types that it can be computed in
gpu = State()

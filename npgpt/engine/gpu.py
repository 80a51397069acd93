"""The engine of a GPU: the lesson's lines by CuPy, on whole arrays, with cuBLAS's matmuls.

Attention's `@` is not CuPy's, which copies all strided matrices before a batched one. The
embedding's gradient is replaced, because np.add.at adds in any order on a GPU.
"""

import contextlib

import numpy as np

from npgpt import layers
from npgpt.arrays import DTYPES
from npgpt.devices import check_tf32, number_of
from npgpt.engine.blas import blas_matrices, layout
from npgpt.engine.embedding import sorted_embedding_backward
from npgpt.engine.ops import seen_as, table, without_frozen
from npgpt.engine.reference import DROPOUT, ReferenceEngine
from npgpt.engine.sources import as_tested
from npgpt.model.parameters import Parameters

TF32_TENSOR_OP_MATH = 3  # CUBLAS_TF32_TENSOR_OP_MATH in cublas_api.h; CuPy has no name for it


def on_gpu(config, dtype, device, kernels, frozen):
    """Return the parameters of a model, zero, and its engine, on the GPU of a device: "gpu" is
    CuPy's current one.
    """
    import cupy

    with cupy.cuda.Device(number_of(device)):
        params = Parameters(config, DTYPES[dtype], cupy, frozen)
    return params, GPUEngine(params, kernels, dtype == "tf32")


class GPUEngine(ReferenceEngine):
    """Runs the model by CuPy, on the GPU that has its parameters. Equal arguments give equal bits.

    kernels: "auto", or "reference", which replaces nothing. tf32: whether matmuls round their
    factors to 10 bits of mantissa. Raises UserError if the GPU cannot do that.
    """

    synchronous = False

    def __init__(self, params, kernels="auto", tf32=False):
        super().__init__(params, 1)
        self.device, self.kernels, self.tf32 = params.flat.device, kernels, tf32
        if tf32:
            *major, minor = self.device.compute_capability  # "75"
            check_tf32(self.name, f"{''.join(major)}.{minor}")
        if kernels == "reference":
            return
        pair = seen_as(array_type(), layers.attention_forward, layers.attention_backward)
        replaced = dict(zip(("attention_forward", "attention_backward"), pair, strict=True))
        if as_tested("embedding_backward"):
            replaced["embedding_backward"] = sorted_embedding_backward
        self.ops = without_frozen(table(layers, **replaced), params)

    @property
    def name(self):
        return self.params.xp.cuda.runtime.getDeviceProperties(self.device.id)["name"].decode()

    @property
    def description(self):
        return f"{self.name}, by CuPy" + f", {self.kernels} lines" * (self.kernels != "auto")

    @contextlib.contextmanager
    def running(self):
        """Arrays are made on this engine's GPU, and float32 matmuls have its precision."""
        # CuPy's setting for two matrices is of the whole process; cuBLAS's, for many, of this
        # thread and GPU.
        from cupy._core import _routines_linalg as linalg
        from cupy.cuda import cublas

        compute, mode = linalg.COMPUTE_TYPE_FP32, cublas.CUBLAS_DEFAULT_MATH
        if self.tf32:
            compute, mode = linalg.COMPUTE_TYPE_TF32, TF32_TENSOR_OP_MATH
        with self.device:
            handle = self.device.cublas_handle
            before = linalg.get_compute_type(np.float32), cublas.getMathMode(handle)
            linalg.set_compute_type(np.float32, compute)
            cublas.setMathMode(handle, mode)
            try:
                yield
            finally:
                linalg.set_compute_type(np.float32, before[0])
                cublas.setMathMode(handle, before[1])

    def dropout_rng(self, seed, step, micro_batch):
        random = self.params.xp.random
        with self.device:
            return random.Generator(random.Philox4x3210([seed, DROPOUT, step, micro_batch]))


def array_type():
    """Return the type of arrays with this `@`."""
    import cupy

    class Array(cupy.ndarray):
        def __matmul__(self, other):
            return matmul(self, other)

        def __rmatmul__(self, other):
            return matmul(other, self)

    return Array


def matmul(a, b):
    """Compute a @ b; of (B, H, m, k) and (B, H, k, n), as in attention, without copies of strided
    matrices.
    """
    import cupy
    from cupy.cuda import cublas, runtime

    a, b = a.view(type=cupy.ndarray), b.view(type=cupy.ndarray)
    kinds = {
        "f": (runtime.CUDA_R_32F, cublas.CUBLAS_COMPUTE_32F),
        "d": (runtime.CUDA_R_64F, cublas.CUBLAS_COMPUTE_64F),
    }
    batched = a.ndim == b.ndim == 4 and (*a.shape[:2], a.shape[3]) == b.shape[:3]
    if not batched or a.dtype != b.dtype or a.dtype.char not in kinds or 0 in a.shape + b.shape:
        return a @ b
    a, b, c = blas_matrices(a), blas_matrices(b), cupy.empty((*a.shape[:3], b.shape[3]), a.dtype)
    kind, compute = kinds[a.dtype.char]
    one, zero = np.array([[1.0], [0.0]], a.dtype)
    # The longer axis first: (n, m, k), (n, k, l), (n, m, l)
    batches = [each.swapaxes(0, 1) if len(c) > c.shape[1] else each for each in (a, b, c)]
    for x, y, z in zip(*batches, strict=True):
        (n, m, k), width = x.shape, y.shape[2]
        # cuBLAS's matrices have columns without gaps: it reads each of these as its transpose.
        # z^T = y^T x^T
        cublas.gemmStridedBatchedEx(
            cupy.cuda.Device().cublas_handle,
            *(layout(y)[0], layout(x)[0], width, m, k, one.ctypes.data),
            *(y.data.ptr, kind, layout(y)[1], y.strides[0] // y.itemsize),
            *(x.data.ptr, kind, layout(x)[1], x.strides[0] // x.itemsize, zero.ctypes.data),
            *(z.data.ptr, kind, z.shape[2], z.strides[0] // z.itemsize),
            *(n, compute, cublas.CUBLAS_GEMM_DEFAULT),
        )
    return c

"""The GPU's kernels without a GPU: run on the CPU by the emulator, in the place of `GPU` or under CuPy's stand-in."""

import contextlib
import re
from types import SimpleNamespace

import numpy as np

from npgpt.engine.cuda import matmul
from tests import strict_cupy
from tests.cuda.emulate import compile_kernels
from tests.engine.cuda.cublaslt import Library, round_to_bfloat16, widen


def install_emulated_gpu(monkeypatch):
    """Put CuPy's stand-in in the place of CuPy, with emulated kernels and NumPy's matmuls; returns the module."""
    cupy = strict_cupy.install(monkeypatch)
    strict_cupy.gpu.run_kernel = run_kernel
    library = emulated_library()
    monkeypatch.setattr(matmul, "load_cublaslt", lambda: library)
    return cupy


def emulated_library():
    """cublasLt whose matmuls are NumPy's, in the order of the stand-in's other work."""
    return Library(run=lambda work: strict_cupy.order(("matmul",), work))


def run_kernel(options, name, grid, block, arguments):
    """Run a `RawKernel` of the stand-in. options: the compiler's."""
    defines = dict(re.findall(r"-D(\w+)=(\d+)", " ".join(options)))
    kernels = compile_kernels(defines["BFLOAT16"] == "1", False, int(defines["HEAD_SIZE"]), int(defines["TF32"]))
    kernels.launch(name, grid, block, *(getattr(each, "_array", each) for each in arguments))


class EmulatedGPU:
    """What `GPU` does, on NumPy arrays, and also with "float64" as precision: there float is double.

    Its graphs hold the launches as they were recorded, arguments and all, as a CUDA graph does. So a test sees a step
    that reads Python's variables only when it is recorded. Memory that nobody has written to is NaN.
    """

    xp = np

    def __init__(self, precision, head_size):
        self.precision = precision
        self.real = np.dtype({"float64": np.float64, "bfloat16": np.uint16}.get(precision, np.float32))
        self._kernels = compile_kernels(precision == "bfloat16", precision == "float64", head_size,
                                        int(precision == "tf32"))
        self._recording = None
        self.launched = []      # the names of kernels, and "matmul", as they ran

    def working(self):
        return contextlib.nullcontext()

    def empty(self, shape, dtype):
        array = np.empty(shape, dtype)
        array.view(np.uint8)[...] = 0xFF        # NaN, and an index out of any range
        return array

    def zero(self, array):
        self._do("zero", array.fill, 0)

    def upload(self, array, host):
        assert self._recording is None, "a copy from the host would be recorded with what is there now"
        assert array.shape == host.shape and array.dtype == host.dtype
        array[...] = host

    def launch(self, name, grid, block, *arguments):
        self._do(name, self._kernels.launch, name, grid, block, *arguments)

    def matmul(self, a, b, out, bias=None, add=False):
        self._do("matmul", self._matmul, a, b, out, bias, add)

    def capture(self, step):
        self._recording = []
        step()
        recorded, self._recording = self._recording, None
        return SimpleNamespace(launch=lambda: [call() for call in recorded])

    def _do(self, name, function, *arguments):
        def call():
            self.launched.append(name)
            function(*arguments)

        if self._recording is None:
            call()
        else:
            self._recording.append(call)

    def _matmul(self, a, b, out, bias, add):
        product = widen(a) @ widen(b)
        if bias is not None:
            assert bias.dtype == out.dtype, "cublasLt takes a bias of the output's type"
            product += widen(bias)
        if add:
            product += widen(out)
        assert a.dtype == b.dtype and out.shape == product.shape
        out[...] = round_to_bfloat16(product) if out.dtype == np.uint16 else product

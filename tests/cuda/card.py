"""A card that is not there: what `Card` does, with the same kernels run on the CPU by the emulator.

Its graphs hold the launches as they were recorded, arguments and all, as a CUDA graph does: what a step reads from
Python's variables only when it is recorded, and should have read again, shows.
"""

import numpy as np

from tests.cuda.emulate import compile_kernels


class EmulatedCard:
    """precision: "float64", where float is double, else as `Card`'s. What is not written yet is NaN.

    xp: whose arrays it makes and takes, NumPy's or those of the stand-in for CuPy.
    """

    def __init__(self, precision, head_size, xp=np):
        self.precision, self.xp = precision, xp
        self.real = np.dtype({"float64": np.float64, "bfloat16": np.uint16}.get(precision, np.float32))
        self._kernels = compile_kernels(precision == "bfloat16", precision == "float64", head_size,
                                        int(precision == "tf32"))
        self._recording = None
        self.launched = []      # the names of kernels, and "matmul", as they ran

    def empty(self, shape, dtype):
        array = self.xp.empty(shape, dtype)
        memory(array).view(np.uint8)[...] = 0xFF        # NaN, and an index out of any range
        return array

    def zero(self, array):
        self._do("zero", array.fill, 0)

    def upload(self, array, host):
        assert self._recording is None, "a copy from the host would be recorded with what is there now"
        assert array.shape == host.shape and array.dtype == host.dtype
        memory(array)[...] = host

    def launch(self, name, grid, block, *arguments, shared=0):
        self._do(name, self._kernels.launch, name, grid, block, *map(memory, arguments), shared=shared)

    def matmul(self, a, b, out, bias=None, add=False):
        self._do("matmul", self._matmul, *map(memory, (a, b, out, bias)), add)

    def capture(self, step):
        self._recording = []
        step()
        recorded, self._recording = self._recording, None
        return Graph(recorded)

    def _do(self, name, function, *arguments, **named):
        def call():
            self.launched.append(name)
            function(*arguments, **named)

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


class Graph:
    def __init__(self, recorded):
        self.recorded = recorded

    def launch(self):
        for call in self.recorded:
            call()


def memory(value):
    """The NumPy array behind one of the stand-in's; anything else as it is."""
    return getattr(value, "_array", value)


def widen(array):
    """The values of an array, of bfloat16 where it holds those bits."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array


def round_to_bfloat16(values):
    """The bits of the bfloat16 that is nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)

"""A GPU as the CUDA engine uses it: kernels by name, matmuls, buffers, and steps recorded as CUDA graphs."""

import collections
import contextlib
import operator
import re
import weakref

import numpy as np

from npgpt.arrays import import_cupy
from npgpt.engine.cuda.matmul import Matmul
from npgpt.engine.cuda.source import defines, source
from npgpt.errors import UserError

WORKSPACE = 32 << 20        # bytes for cublasLt, as NVIDIA advises for Hopper
OLDEST = 80                 # compute capability 8.0: the first GPUs with bfloat16 and asynchronous copies

KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\(([^()]*)\)")
PARAMETER = re.compile(r"(?:const )?([\w ]+?) ?(\*?) ?(\w+)$")
SCALARS = {"float": np.float32, "int": np.int32, "unsigned": np.uint32, "long long": np.int64}


class GPU:
    """The GPU that CuPy works on, for kernels of one precision ("float32", "tf32" or "bfloat16") and head size.

    real: the dtype of activations, uint16 for the bits of bfloat16. xp: CuPy.

    Kernels, matmuls and uploads go to CuPy's current stream, as CuPy's own lines do, and nothing here waits for it. So
    whoever uses this does it within `working`.
    """

    def __init__(self, precision, head_size):
        self.xp = cupy = import_cupy()
        self.device = cupy.cuda.Device()
        capability = int(self.device.compute_capability)
        if capability < OLDEST:
            raise UserError(f"the fused kernels need a GPU of compute capability 8.0 or more (A100, RTX 30), and this "
                            f"one has {capability / 10}: use --kernels reference")
        self.precision = precision
        self.real = np.dtype(np.uint16 if precision == "bfloat16" else np.float32)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        # CuPy's pool gives what this stream had to the next one at the same address, which would not wait for it.
        weakref.finalize(self, self.stream.synchronize).atexit = False
        self._before, self._after = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self.matmul = Matmul(cupy.cuda.get_current_stream, self.empty(WORKSPACE, np.uint8), tf32=precision == "tf32")
        text = source()
        self._module = cupy.RawModule(code=text, options=("--std=c++17", *defines(precision, head_size)))
        self._parameters = kernel_parameters(text)
        self._kernels = {}
        self._copying = collections.deque()     # (event, pinned memory) of uploads that may still be under way
        self._dtypes = {**SCALARS, "real": self.real, "bfloat16": np.uint16, "unsigned short": np.uint16}

    @contextlib.contextmanager
    def working(self):
        """Within it CuPy works on this GPU and on a stream of its own.

        That stream waits for what the caller's stream was told before, and what the caller's stream is told afterwards
        waits for it. So there any line of CuPy may fill parameters, or read a loss.
        """
        with self.device:
            callers = self.xp.cuda.get_current_stream()
            self.stream.wait_event(callers.record(self._before))
            try:
                with self.stream:
                    yield
            finally:
                callers.wait_event(self.stream.record(self._after))

    def empty(self, shape, dtype):
        return self.xp.empty(shape, dtype)

    def zero(self, array):
        array.fill(0)

    def launch(self, name, grid, block, *arguments):
        """Run a kernel: `grid` blocks of `block` threads, each a number or a tuple of up to three.

        A pointer parameter takes a device array or None, any other a number. NVRTC compiles all kernels at the first
        launch, which takes seconds; CuPy keeps the result on disk.
        """
        if name not in self._kernels:
            self._kernels[name] = self._module.get_function(name)
        kernel, parameters = self._kernels[name], self._parameters[name]
        if len(arguments) != len(parameters):
            raise TypeError(f"{name} takes {len(parameters)} arguments, not {len(arguments)}")
        values = tuple(self._value(f"{name}: {parameter}", kind, pointer, argument)
                       for (kind, pointer, parameter), argument in zip(parameters, arguments, strict=True))
        grid, block = ((size,) if isinstance(size, int) else size for size in (grid, block))
        kernel(grid, block, values)

    def _value(self, what, kind, pointer, argument):
        """Check and convert an argument: CuPy does not know the parameters, and passes a Python int as 64 bits."""
        dtype = self._dtypes[kind]
        if pointer:
            if argument is not None and (argument.dtype != dtype or not argument.flags.c_contiguous):
                raise TypeError(f"{what} takes a contiguous array of {np.dtype(dtype)}, not one of {argument.dtype} "
                                f"and strides {argument.strides}")
            return argument                                         # None becomes a null pointer
        return dtype(float(argument) if kind == "float" else operator.index(argument))

    def upload(self, array, host):
        """Copy a NumPy array into a device array of the same shape and dtype; `host` may be changed right afterwards.

        The GPU copies later, from pinned memory. That memory goes back to CuPy's pool only after an event has said
        that the copy is done.
        """
        while self._copying and self._copying[0][0].done:
            self._copying.popleft()
        memory = self.xp.cuda.alloc_pinned_memory(host.nbytes)
        staged = np.frombuffer(memory, host.dtype, host.size).reshape(host.shape)       # the pool rounds sizes up
        staged[...] = host
        array.set(staged)
        copied = self.xp.cuda.Event(disable_timing=True)
        copied.record()
        self._copying.append((copied, staged))

    def capture(self, step):
        """Record what `step` launches, without running it. The graph's `launch()` runs it, any number of times.

        The graph holds the addresses and numbers that step passed. So step must read what changes from arrays, and
        those arrays must stay. Call step once before: the first use compiles kernels and makes matmul plans, and
        neither can be recorded. Nor can uploads, allocations (later arrays would get the memory, while the graph still
        writes there), or anything that waits for the GPU. Most of these raise here.
        """
        cupy, stream = self.xp, self.xp.cuda.get_current_stream()
        stream.begin_capture()
        self.matmul.frozen = True
        try:
            with cupy.cuda.using_allocator(_refuse):
                step()
        except BaseException:
            try:
                stream.end_capture()
            except cupy.cuda.runtime.CUDARuntimeError:      # it says that the recording failed; step's error says why
                pass
            raise
        finally:
            self.matmul.frozen = False
        return stream.end_capture()


def kernel_parameters(text):
    """{kernel: [(type without const, "*" or "", name), ...]} of CUDA source."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    return {name: [PARAMETER.match(" ".join(parameter.split())).groups() for parameter in inside.split(",")]
            for name, inside in KERNEL.findall(text)}


def _refuse(size):
    raise RuntimeError(f"{size} bytes allocated inside a CUDA graph: make all arrays before")

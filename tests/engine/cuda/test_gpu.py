"""`GPU` on CuPy's stand-in, which logs what it is told to do."""

import contextlib
import gc
import sys
import weakref

import numpy as np
import pytest

from npgpt.engine.cuda import gpu as module
from npgpt.engine.cuda import matmul
from npgpt.engine.cuda.gpu import GPU, kernel_parameters
from npgpt.engine.cuda.memory import out_of_memory
from npgpt.engine.cuda.source import source
from npgpt.errors import UserError
from tests import strict_cupy
from tests.engine.cuda.cublaslt import Library

SOURCE = """
// extern "C" __global__ void not_a_kernel(int n) {}
/* nor is
extern "C" __global__ void this_one(int n) {} */
extern "C" __global__ void scale(
        real* y, const float* x, const unsigned short* bits, const unsigned* stream,    // a comment, with a comma
        int n, long long size, unsigned site, float p) {
    helper(y, n);
}
__device__ void helper(real* y, int n) {}
extern "C" __global__ void __launch_bounds__(128, 2) count(int* out, bfloat16 *copy) { out[0] = f(1); }
"""


@pytest.fixture
def cupy(monkeypatch):
    monkeypatch.setattr(module, "source", lambda: SOURCE)
    monkeypatch.setattr(matmul, "load_cublaslt", Library)
    return strict_cupy.install(monkeypatch)


def launches():
    return [entry[1:] for entry in strict_cupy.gpu.log if entry[0] == "launch"]


@pytest.mark.parametrize(("precision", "real", "defines"), [
    ("float32", np.float32, ("-DBFLOAT16=0", "-DTF32=0")), ("tf32", np.float32, ("-DBFLOAT16=0", "-DTF32=1")),
    ("bfloat16", np.uint16, ("-DBFLOAT16=1", "-DTF32=0"))])
def test_each_precision(cupy, precision, real, defines):
    gpu, compiled = GPU(precision, 64), []
    assert (gpu.precision, gpu.real, gpu.xp) == (precision, real, cupy)
    strict_cupy.gpu.run_kernel = lambda options, name, *_: compiled.append((options, name))
    gpu.launch("count", 1, 32, cupy.zeros(1, np.int32), None)
    assert compiled == [(("--std=c++17", *defines, "-DHEAD_SIZE=64"), "count")]
    gpu.matmul(*(cupy.zeros((4, 4), np.float32) for _ in range(3)))
    call, = gpu.matmul._library.calls
    assert (call["compute"], call["stream"]) == (77 if precision == "tf32" else 68, None)
    with gpu.working():
        gpu.matmul(*(cupy.zeros((4, 4), np.float32) for _ in range(3)))
    assert gpu.matmul._library.calls[1]["stream"] == gpu.stream.ptr != 0
    assert gpu.matmul._workspace.nbytes == 32 << 20


def test_what_the_kernels_need(cupy):
    strict_cupy.gpu.capability = "75"
    with pytest.raises(UserError, match="capability 8.0 or more .* this one has 7.5: use --kernels reference$"):
        GPU("float32", 64)
    strict_cupy.gpu.capability = "100"
    GPU("float32", 64)


def test_arguments_get_the_types_of_the_kernels_parameters(cupy):
    gpu = GPU("bfloat16", 64)
    arrays = [cupy.zeros(3, dtype) for dtype in (np.uint16, np.float32, np.uint16, np.uint32)]
    gpu.launch("scale", (7, 2), 32, *arrays, True, 1 << 40, 0xFFFFFFFF, 1)
    gpu.launch("scale", 5, (32, 4, 2), None, None, None, None, np.int64(-3), -1, 0, np.float64(0.1))
    (name, grid, block, first, _), (_, grid_2, block_2, second, _) = launches()
    assert (name, grid, block) == ("scale", (7, 2), (32,))
    assert (grid_2, block_2) == ((5,), (32, 4, 2))
    assert all(a is b for a, b in zip(first, arrays, strict=False)) and second[:4] == (None,) * 4
    for values, expected in ((first, (1, 1 << 40, 0xFFFFFFFF, 1.0)), (second, (-3, -1, 0, np.float32(0.1)))):
        assert [type(value) for value in values[4:]] == [np.int32, np.int64, np.uint32, np.float32]
        assert values[4:] == expected


@pytest.mark.parametrize(("position", "wrong", "error"), [
    (0, lambda cupy: cupy.zeros(3, np.float32), TypeError),             # float32 for real, of bfloat16
    (1, lambda cupy: cupy.zeros(3, np.float64), TypeError),
    (1, lambda cupy: cupy.zeros((3, 4), np.float32).T, TypeError),      # a kernel does not know of strides
    (3, lambda cupy: cupy.zeros(4, np.int32), TypeError),
    (4, lambda cupy: 1.5, TypeError),
    (4, lambda cupy: 1 << 31, OverflowError),
    (4, lambda cupy: None, TypeError),
    (6, lambda cupy: -1, OverflowError),
    (7, lambda cupy: None, TypeError),
], ids=range(9))
def test_arguments_that_a_kernel_would_misread(cupy, position, wrong, error):
    gpu = GPU("bfloat16", 64)
    arguments = [None, None, None, None, 1, 1, 1, 1.0]
    arguments[position] = wrong(cupy)
    with pytest.raises(error):
        gpu.launch("scale", 1, 32, *arguments)
    with pytest.raises(TypeError, match="scale takes 8 arguments, not 7"):
        gpu.launch("scale", 1, 32, *[None] * 7)
    assert not launches()


def test_parameters_of_the_kernels():
    assert kernel_parameters(SOURCE) == {
        "scale": [("real", "*", "y"), ("float", "*", "x"), ("unsigned short", "*", "bits"), ("unsigned", "*", "stream"),
                  ("int", "", "n"), ("long long", "", "size"), ("unsigned", "", "site"), ("float", "", "p")],
        "count": [("int", "*", "out"), ("bfloat16", "*", "copy")]}
    assert len(kernel_parameters(source())) == source().count("__global__ ") > 20


def test_uploads_may_follow_each_other_and_the_host_change_its_array(cupy, monkeypatch):
    """The stream copies when it gets there, from pinned memory that is kept until then, and no longer."""
    gpu, host, pinned, allocate = GPU("float32", 64), np.zeros((2, 3), np.int32), [], cupy.cuda.alloc_pinned_memory

    def alloc_pinned_memory(size):
        memory = allocate(size)
        pinned.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", alloc_pinned_memory)
    arrays = [cupy.zeros((2, 3), np.int32) for _ in range(4)]
    for i in range(3):
        host[...] = i + 1
        gpu.upload(arrays[i], host)
        host[...] = -1
    assert not arrays[0]._array.any() and all(memory() is not None for memory in pinned)
    strict_cupy.finish_copies()
    gpu.upload(arrays[3], np.full((3, 2), 4, np.int32).T)                       # of any strides
    assert [memory() is not None for memory in pinned] == [False, False, False, True]
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(array.get(), np.full((2, 3), i + 1))


def test_the_callers_stream_and_the_gpus_own_wait_for_each_other(cupy):
    """The stand-in raises at work on a stream that has not waited for the others."""
    gpu, array = GPU("float32", 64), cupy.zeros(3)
    with gpu.working():                             # the caller's is the null stream
        gpu.zero(array)
        assert cupy.cuda.get_current_stream() is gpu.stream
    array.fill(1.0)
    callers = cupy.cuda.Stream(non_blocking=True)
    callers.wait_event(cupy.cuda.get_current_stream().record())
    with callers:
        array.fill(2.0)
        with gpu.working():
            gpu.zero(array)
        assert array.tolist() == [0.0] * 3
        with contextlib.suppress(KeyboardInterrupt), gpu.working():
            gpu.zero(array)
            raise KeyboardInterrupt
        array.fill(3.0)


def test_it_stays_on_its_gpu(cupy):
    strict_cupy.gpu.devices = 2
    with cupy.cuda.Device(1):
        gpu, array = GPU("float32", 64), cupy.zeros(3, np.int32)
    for use in (lambda: gpu.launch("count", 1, 32, array, None), lambda: gpu.zero(array)):
        with pytest.raises(ValueError, match="array device = 1 while current = 0"):
            use()
        with gpu.working():
            use()


def test_it_leaves_nothing_behind(cupy):
    """Nor is anything in a circle, which would keep memory until the collector runs."""
    gpu = GPU("float32", 64)
    gpu.matmul(*(cupy.zeros((4, 4), np.float32) for _ in range(3)))
    objects, workspace = gpu.matmul._library.objects, weakref.ref(gpu.matmul._workspace._array)
    assert len(objects) == 5 and workspace() is not None        # a handle, a description, three layouts
    gc.disable()
    try:
        del gpu
        assert not objects and workspace() is None and len(strict_cupy.gpu.waits) == 1      # for what was under way
    finally:
        gc.enable()


def test_a_step_is_recorded_and_replayed(cupy):
    gpu, array, a = GPU("float32", 64), cupy.zeros(3), cupy.zeros((4, 4), np.float32)

    def step():
        with pytest.raises(RuntimeError, match="inside a CUDA graph: run it once before"):
            gpu.matmul(a, a, a)             # no new plan now
        gpu.launch("count", 1, 32, None, None)
        gpu.zero(array)

    with gpu.working():
        graph = gpu.capture(step)
        gpu.matmul(a, a, a)
        assert strict_cupy.gpu.log == []
        graph.launch()
        graph.launch()
    assert [entry[0] for entry in strict_cupy.gpu.log] == ["replay", "launch", "fill"] * 2
    assert strict_cupy.gpu.waits == []


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_step_that_allocates_is_not_recorded(cupy, monkeypatch, spoilt):
    """What the end of the recording says is less than what step says. The GPU can be used again afterwards."""
    gpu, end = GPU("float32", 64), strict_cupy.Stream.end_capture

    def end_capture(self):
        end(self)
        if spoilt:
            raise cupy.cuda.runtime.CUDARuntimeError("cudaErrorStreamCaptureInvalidated")

    monkeypatch.setattr(strict_cupy.Stream, "end_capture", end_capture)
    with pytest.raises(RuntimeError, match="^24 bytes allocated inside a CUDA graph: make all arrays before$"):
        with gpu.working():
            gpu.capture(lambda: gpu.empty((2, 3), np.float32))
    assert not gpu.matmul.frozen and gpu.empty((2, 3), np.float32) is not None
    gpu.launch("count", 1, 32, None, None)
    assert len(launches()) == 1


class CUDARuntimeError(RuntimeError):
    """As CuPy's, which knows CUDA's number of the error."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def test_full_memory_is_one_line(cupy):
    strict_cupy.gpu.memory = 3 << 20
    with pytest.raises(UserError) as error, out_of_memory("lower --batch-size, or use --dtype bfloat16"):
        cupy.zeros(3 << 30, np.uint8)
    assert str(error.value) == ("the GPU's memory is full: an array needs 3.00 GiB, and 3.0 MiB of 80.00 GiB are "
                                "free: lower --batch-size, or use --dtype bfloat16")
    with pytest.raises(UserError, match=r"is full \(cudaErrorMemoryAllocation: out of memory\): advice$"):
        with out_of_memory("advice"):       # what is no array
            raise CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory")


@pytest.mark.parametrize("there", [True, False])
def test_other_exceptions_pass(cupy, monkeypatch, there):
    if not there:
        monkeypatch.delitem(sys.modules, "cupy")
    for error in (MemoryError("the host's"), ValueError("another"), CUDARuntimeError(1, "invalid argument")):
        with pytest.raises(type(error), match=str(error)), out_of_memory("advice"):
            raise error

"""`Card` against a stand-in for CuPy that notes what it is asked for, and that CuPy itself takes what it is asked."""

import contextlib
import ctypes
import gc
import inspect
import sys
import types
import weakref

import numpy as np
import pytest

from npgpt.engine.cuda import card as module
from npgpt.engine.cuda.card import Card, kernel_parameters
from npgpt.engine.cuda.memory import out_of_memory
from npgpt.engine.cuda.source import source
from npgpt.errors import UserError

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


class Array:
    """A device array: NumPy's in secret."""

    def __init__(self, cupy, array):
        self.cupy, self.array, self.dtype, self.shape = cupy, array, array.dtype, array.shape
        self.strides, self.flags, self.nbytes = array.strides, array.flags, array.nbytes
        self.data = types.SimpleNamespace(ptr=array.ctypes.data)

    def fill(self, value):
        self.cupy.log.append(("fill", self, value, self.cupy.current))

    def set(self, host, stream):
        """Like CuPy's, this copies later; see `finish_a_copy`."""
        assert host.shape == self.shape and host.dtype == self.dtype and host.flags.c_contiguous
        self.cupy.pending.append((self, host.ctypes.data, host.nbytes))
        self.cupy.log.append(("set", stream))


class Kernel:
    """48 KiB of shared memory at first, less what the kernel has as static arrays; as RawKernel, no more unasked."""

    def __init__(self, cupy, name):
        self.cupy, self.name, self.attributes_set = cupy, name, []
        self.maximum = 48 * 1024 - 16

    @property
    def max_dynamic_shared_size_bytes(self):
        return self.maximum

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size):
        self.maximum = size
        self.attributes_set.append(size)

    def __call__(self, grid, block, args, shared_mem=0, stream=None):
        assert type(grid) is type(block) is tuple and shared_mem <= self.maximum
        self.cupy.log.append(("launch", self.name, grid, block, args, shared_mem, stream))


class FakeCuPy(types.ModuleType):
    """As much of CuPy as a card needs. `log`: what was done."""

    def __init__(self):
        super().__init__("cupy")
        cupy = self
        self.log, self.pending, self.events, self.pinned = [], [], [], []
        self.current, self.capability, self.compiled = None, "90", []
        self.allocator = None
        self.spoilt = False         # whether the end of a recording says so

        class RuntimeFailure(RuntimeError):
            pass

        class OutOfMemory(MemoryError):
            pass

        class Event:
            def __init__(self, disable_timing=False):
                assert disable_timing
                self.done = False

        class Stream:
            ptr = 0x57EA

            def __enter__(self):
                cupy.current = self

            def __exit__(self, *error):
                cupy.current = None

            def record(self, event):
                cupy.events.append(event)
                return event

            def begin_capture(self):
                cupy.log.append("begin")

            def end_capture(self):
                cupy.log.append("end")
                if cupy.spoilt:
                    raise RuntimeFailure("cudaErrorStreamCaptureInvalidated")
                return types.SimpleNamespace(launch=lambda stream: cupy.log.append(("replay", stream)))

            def synchronize(self):
                cupy.log.append("synchronize")

        def alloc_pinned_memory(size):
            memory = bytearray(-(-size // 512) * 512)       # in multiples of 512, like CuPy's pool
            array = np.frombuffer(memory, np.uint8)
            cupy.pinned.append(weakref.ref(array))
            return array

        @contextlib.contextmanager
        def using_allocator(allocator):
            cupy.allocator = allocator
            try:
                yield
            finally:
                cupy.allocator = None

        self.cuda = types.SimpleNamespace(
            Stream=Stream, Event=Event, alloc_pinned_memory=alloc_pinned_memory, using_allocator=using_allocator,
            Device=lambda: types.SimpleNamespace(compute_capability=self.capability, mem_info=(3 << 20, 80 << 30)),
            runtime=types.SimpleNamespace(CUDARuntimeError=RuntimeFailure),
            memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemory))

    def RawModule(self, *, code, options):
        return types.SimpleNamespace(
            get_function=lambda name: self.compiled.append((name, code, options)) or Kernel(self, name))

    def empty(self, shape, dtype):
        if self.allocator:
            self.allocator(np.prod(shape) * np.dtype(dtype).itemsize)
        return Array(self, np.empty(shape, dtype))

    def finish_a_copy(self):
        """The card gets to the oldest copy, and reads what is in the pinned memory now."""
        array, address, size = self.pending.pop(0)
        memory = (ctypes.c_char * size).from_address(address)
        array.array[...] = np.frombuffer(memory, array.dtype).reshape(array.shape)
        self.events.pop(0).done = True

    def launches(self):
        return [entry[1:] for entry in self.log if entry[0] == "launch"]


@pytest.fixture
def cupy(monkeypatch):
    cupy = FakeCuPy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(module, "import_cupy", lambda: cupy)
    monkeypatch.setattr(module, "source", lambda: SOURCE)
    monkeypatch.setattr(module, "Matmul", lambda *arguments, **named: types.SimpleNamespace(
        arguments=arguments, named=named, frozen=False))
    return cupy


def on_card(cupy, *shape, dtype=np.float32):
    return Array(cupy, np.zeros(shape, dtype))


@pytest.mark.parametrize(("precision", "real", "defines"), [
    ("float32", np.float32, ("-DBFLOAT16=0", "-DTF32=0")), ("tf32", np.float32, ("-DBFLOAT16=0", "-DTF32=1")),
    ("bfloat16", np.uint16, ("-DBFLOAT16=1", "-DTF32=0"))])
def test_each_precision(cupy, precision, real, defines):
    card = Card(precision, 64)
    assert (card.precision, card.real, card.xp) == (precision, real, cupy)
    assert card.empty((2, 3), real).array.shape == (2, 3)
    stream, workspace = card.matmul.arguments
    assert stream == card.stream.ptr and workspace.nbytes == 32 << 20 and card.matmul.named == {
        "tf32": precision == "tf32"}
    assert cupy.compiled == []
    for _ in range(2):
        card.launch("count", 1, 32, on_card(cupy, 1, dtype=np.int32), None)
    assert cupy.compiled == [("count", SOURCE, ("--std=c++17", *defines, "-DHEAD_SIZE=64"))]    # once


def test_kernels_of_cards_that_are_too_old(cupy):
    cupy.capability = "75"
    with pytest.raises(UserError, match="capability 8.0 or more .* this one has 7.5: use --kernels reference$"):
        Card("float32", 64)
    cupy.capability = "100"
    Card("float32", 64)


def test_arguments_get_the_types_of_the_kernels_parameters(cupy):
    card = Card("bfloat16", 64)
    y, bits = (on_card(cupy, 3, dtype=np.uint16) for _ in range(2))
    x, stream = on_card(cupy, 3), on_card(cupy, 4, dtype=np.uint32)
    card.launch("scale", (7, 2), 32, y, x, bits, stream, True, 1 << 40, 0xFFFFFFFF, 1)
    card.launch("scale", 5, (32, 4, 2), None, None, None, None, np.int64(-3), -1, 0, np.float64(0.1))

    (name, grid, block, first, shared, on), (_, grid_2, block_2, second, _, _) = cupy.launches()
    assert (name, grid, block, shared, on) == ("scale", (7, 2), (32,), 0, card.stream)
    assert (grid_2, block_2) == ((5,), (32, 4, 2))
    assert first[:4] == (y, x, bits, stream) and second[:4] == (None,) * 4
    for values, expected in ((first, (1, 1 << 40, 0xFFFFFFFF, 1.0)), (second, (-3, -1, 0, np.float32(0.1)))):
        assert [type(value) for value in values[4:]] == [np.int32, np.int64, np.uint32, np.float32]
        assert values[4:] == expected


@pytest.mark.parametrize(("position", "wrong", "error"), [
    (0, lambda cupy: on_card(cupy, 3), TypeError),                              # float32 for real, of bfloat16
    (1, lambda cupy: on_card(cupy, 3, dtype=np.float64), TypeError),
    (1, lambda cupy: Array(cupy, np.zeros((3, 4), np.float32).T), TypeError),   # a kernel does not know of strides
    (3, lambda cupy: on_card(cupy, 4, dtype=np.int32), TypeError),
    (4, lambda cupy: 1.5, TypeError),
    (4, lambda cupy: 1 << 31, OverflowError),
    (4, lambda cupy: None, TypeError),
    (6, lambda cupy: -1, OverflowError),
    (7, lambda cupy: None, TypeError),
], ids=range(9))
def test_arguments_that_a_kernel_would_misread(cupy, position, wrong, error):
    card = Card("bfloat16", 64)
    arguments = [None, None, None, None, 1, 1, 1, 1.0]
    arguments[position] = wrong(cupy)
    with pytest.raises(error):
        card.launch("scale", 1, 32, *arguments)
    with pytest.raises(TypeError, match="scale takes 8 arguments, not 7"):
        card.launch("scale", 1, 32, *[None] * 7)
    assert not cupy.launches()


def test_much_shared_memory_is_asked_for_once(cupy):
    card = Card("float32", 64)
    sizes = [0, 1024, 48 * 1024, 100 * 1024, 64 * 1024, 100 * 1024]     # 48 KiB and the static arrays are too much
    for shared in sizes:
        card.launch("count", 1, 32, None, None, shared=shared)
    assert card._kernels["count"].attributes_set == [48 * 1024, 100 * 1024]
    assert [launch[4] for launch in cupy.launches()] == sizes


def test_parameters_of_the_kernels():
    assert kernel_parameters(SOURCE) == {
        "scale": [("real", "*", "y"), ("float", "*", "x"), ("unsigned short", "*", "bits"), ("unsigned", "*", "stream"),
                  ("int", "", "n"), ("long long", "", "size"), ("unsigned", "", "site"), ("float", "", "p")],
        "count": [("int", "*", "out"), ("bfloat16", "*", "copy")]}


def test_every_kernel_of_the_package_can_be_called(cupy, monkeypatch):
    monkeypatch.setattr(module, "source", source)
    card = Card("bfloat16", 64)
    names = [*kernel_parameters(source())]
    assert len(names) == source().count("__global__ ") > 20
    for name in names:
        card.launch(name, 1, 32, *(None if pointer else 1 for _, pointer, _ in kernel_parameters(source())[name]))
    assert [launch[0] for launch in cupy.launches()] == names


def test_zero(cupy):
    card, array = Card("float32", 64), on_card(cupy, 3)
    card.zero(array)
    assert cupy.log == [("fill", array, 0, card.stream)] and cupy.current is None


def test_uploads_may_follow_each_other_and_the_host_change_its_array(cupy):
    card, host = Card("float32", 64), np.zeros((2, 3), np.int32)
    arrays = [on_card(cupy, 2, 3, dtype=np.int32) for _ in range(5)]
    for i in range(3):
        host[...] = i + 1
        card.upload(arrays[i], host)
        host[...] = -1
    assert len(cupy.pinned) == 3 and all(memory() is not None for memory in cupy.pinned)
    assert cupy.log == [("set", card.stream)] * 3
    cupy.finish_a_copy()
    card.upload(arrays[3], np.full((2, 3), 4, np.int32))
    assert [memory() is not None for memory in cupy.pinned] == [False, True, True, True]    # what is done is given back
    cupy.finish_a_copy()
    cupy.finish_a_copy()
    cupy.finish_a_copy()
    card.upload(arrays[4], np.full((3, 2), 5, np.int32).T)                                  # of any strides
    cupy.finish_a_copy()
    assert [memory() is not None for memory in cupy.pinned] == [False, False, False, False, True]
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(array.array, np.full((2, 3), i + 1))


def test_a_step_is_recorded_and_replayed(cupy):
    card = Card("float32", 64)

    def step():
        assert card.matmul.frozen           # no new plan now
        card.launch("count", 1, 32, None, None)

    graph = card.capture(step)
    assert [entry[0] if type(entry) is tuple else entry for entry in cupy.log] == ["begin", "launch", "end"]
    assert not card.matmul.frozen
    cupy.log.clear()
    graph.launch()
    graph.launch()
    card.synchronize()
    assert cupy.log == [("replay", card.stream)] * 2 + ["synchronize"]


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_step_that_allocates_is_not_recorded(cupy, spoilt):
    card = Card("float32", 64)
    cupy.spoilt = spoilt                    # what the end of the recording says is less than what step says
    with pytest.raises(RuntimeError, match="^24 bytes allocated inside a CUDA graph: make all arrays before$"):
        card.capture(lambda: card.empty((2, 3), np.float32))
    assert cupy.log == ["begin", "end"]     # the stream can be used again, and memory allocated
    assert not card.matmul.frozen and card.empty((2, 3), np.float32) is not None


def test_a_full_card_is_one_line(cupy):
    with pytest.raises(UserError) as error, out_of_memory("lower --batch-size, or use --dtype bfloat16"):
        raise cupy.cuda.memory.OutOfMemoryError(
            "Out of memory allocating 3,221,225,472 bytes (allocated so far: 84,000,000,000 bytes).")
    assert str(error.value) == ("the card's memory is full: an array needs 3.00 GiB, and 3.0 MiB of 80.00 GiB are "
                                "free: lower --batch-size, or use --dtype bfloat16")


class CUDARuntimeError(RuntimeError):
    """As CuPy's, which knows CUDA's number of the error."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def test_what_is_no_array_may_find_the_memory_full_too():
    with pytest.raises(UserError, match=r"is full \(cudaErrorMemoryAllocation: out of memory\): advice$"):
        with out_of_memory("advice"):
            raise CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory")
    with pytest.raises(CUDARuntimeError, match="invalid"), out_of_memory("advice"):
        raise CUDARuntimeError(1, "cudaErrorInvalidValue: invalid argument")


def test_a_default_stream_for_each_thread_is_refused(cupy, monkeypatch):
    monkeypatch.setenv("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "1")
    with pytest.raises(UserError, match="unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM.*--kernels reference$"):
        Card("float32", 64)
    monkeypatch.setenv("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "0")
    Card("float32", 64)


@pytest.mark.parametrize("there", [True, False])
def test_other_exceptions_pass(cupy, monkeypatch, there):
    if not there:
        monkeypatch.delitem(sys.modules, "cupy")
    for error in (MemoryError("the host's"), ValueError("another"), RuntimeError("a third")):
        with pytest.raises(type(error), match=str(error)), out_of_memory("advice"):
            raise error
    with out_of_memory("advice"):
        pass


class Memory:
    """Of PinnedMemory, what the pointer to it uses."""

    def __init__(self, size):
        self.buffer, self.size = ctypes.create_string_buffer(size), size
        self.ptr = ctypes.addressof(self.buffer)


def test_cupy_takes_what_it_is_asked():
    """CuPy itself, as far as it goes without a card: names, parameters and types."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    for function, wanted in (
            (cupy.cuda.Stream.__init__, []), (cupy.cuda.Stream.record, ["event"]), (cupy.cuda.Stream.begin_capture, []),
            (cupy.cuda.Stream.end_capture, []), (cupy.cuda.Stream.synchronize, []),
            (cupy.cuda.Event.__init__, ["disable_timing"]), (cupy.cuda.using_allocator, ["allocator"])):
        parameters = list(inspect.signature(function).parameters.values())
        names = [parameter.name for parameter in parameters]
        assert set(wanted) <= set(names), function
        required = [p.name for p in parameters if p.default is p.empty and p.name not in ("self", *wanted)]
        assert not required, function
    for owner, names in ((cupy.cuda.Stream, ["__enter__", "__exit__"]), (cupy.cuda.Event, ["done"]),
                         (cupy.cuda.Graph, ["launch"]), (cupy.ndarray, ["set", "fill", "flags"]),
                         (cupy.cuda.Device, ["compute_capability", "mem_info"]),
                         (cupy.cuda, ["alloc_pinned_memory"]), (cupy.cuda.runtime, ["CUDARuntimeError"])):
        assert all(hasattr(owner, name) for name in names), owner

    kernel_module = cupy.RawModule(code=SOURCE, options=("--std=c++17", "-DHEAD_SIZE=64"))
    assert callable(kernel_module.get_function)
    assert isinstance(vars(cupy.RawKernel)["max_dynamic_shared_size_bytes"], type(vars(cupy.RawKernel)["kernel"]))
    for scalar in (np.int32(1), np.int64(1), np.uint32(1), np.float32(1)):
        assert cupy._core._scalar.CScalar(scalar).dtype == type(scalar)     # a kernel's argument is of these bytes

    with pytest.raises(UserError, match="an array needs 1.0 MiB, and 3.0 MiB of 80.00 GiB are free: advice"):
        with pytest.MonkeyPatch.context() as patch, out_of_memory("advice"):
            patch.setattr(cupy.cuda, "Device", lambda: types.SimpleNamespace(mem_info=(3 << 20, 80 << 30)))
            raise cupy.cuda.memory.OutOfMemoryError(1 << 20, 5)


def test_arrays_of_cupys_pinned_memory_keep_it():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    memory = Memory(1024)
    alive = weakref.ref(memory)
    pointer = cupy.cuda.PinnedMemoryPointer(memory, 0)
    array = np.frombuffer(pointer, np.int32, 6).reshape(2, 3)       # as Card.upload does
    array[...] = 7
    assert list(memory.buffer[:24]) == [7, 0, 0, 0] * 6 and array.flags.c_contiguous
    del memory, pointer
    gc.collect()
    assert alive() is not None
    del array
    gc.collect()
    assert alive() is None

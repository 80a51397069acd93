"""A strict stand-in for CuPy 14.2, so that tests without a GPU can show that lines stay on one.

Its arrays hold NumPy arrays, but do only what CuPy's do. It has no function that CuPy lacks, and only those that npgpt
needs. What goes wrong silently on a GPU is refused, counted, or goes wrong here too: a NumPy array in an operation
raises; a wait for the GPU is noted (`gpu.waits`); an index out of range wraps; new memory is NaN; an
assignment to a repeated index raises; a copy from pinned memory happens late; work on a stream that has not waited for
the other streams raises, and so does work on arrays of a GPU that is not the current one.

>>> xp = strict_cupy.install(monkeypatch)       # from now on `import cupy` gives the stand-in
"""

import collections
import contextlib
import ctypes
import sys
import threading
import time
import types
import weakref

import numpy as np
import scipy.special


class State(threading.local):
    """The state of the GPU; each thread has one of its own, as if it were a process."""

    def __init__(self):
        self.waits = []                     # "file:line" of who waited for the GPU
        self.log = []                       # what it was told to do: tuples, the kind first
        self.pending = collections.deque()  # copies and events that the GPU has not come to yet: functions
        self.may_wait = True                # False: a wait raises
        self.streams = {}                   # GPU -> its current stream
        self.told = collections.Counter()   # stream -> how much it was told to do
        self.recording = None               # what is recorded as a CUDA graph: (its stream, a list)
        self.allocator = None               # set by using_allocator
        self.memory = 80 << 30              # bytes: a larger array raises OutOfMemoryError
        self.capability = "90"
        self.run_kernel = None              # (options, name, grid, block, arguments): runs a RawKernel
        self.devices, self.device = 1, 0    # how many GPUs there are, and which one CuPy works on
        self.first = 0                      # the number of the first one on the bus
        self.memory_of = weakref.WeakValueDictionary()  # address -> the NumPy array that owns the memory there
        self.device_of = {}                 # address -> the GPU whose memory it is


gpu = State()


def install(monkeypatch):
    """Put the stand-in in the place of CuPy until the test ends, and nothing on the GPU; returns the module."""
    gpu.__init__()
    for name, stand_in in MODULES.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    return cupy


def wait():
    """Note the line outside this file that makes the host wait for the GPU."""
    frame = sys._getframe()
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    gpu.waits.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
    if not gpu.may_wait:
        raise RuntimeError("Device synchronization was detected while disallowed.")
    finish_copies()


def current_stream():
    return gpu.streams.setdefault(gpu.device, Stream(null=True))


def work():
    """The current stream is told to do something. Any array may be in use: it must have waited for other streams."""
    stream = current_stream()
    for other, n in gpu.told.items():
        if other is not stream and other._device == gpu.device and stream.seen[other] < n:
            raise RuntimeError(f"a race: {stream} has not waited for {other}")
    gpu.told[stream] += 1


def finish_copies():
    """The GPU comes to the copies that were asked for, and reads what is in the pinned memory now."""
    while gpu.pending:
        gpu.pending.popleft()()


def order(entry, run):
    """Tell the GPU to do something; while a graph is recorded, keep it for the graph."""
    if gpu.recording is not None:
        stream, recorded = gpu.recording
        assert stream is current_stream(), "this would run now, and not with the graph"
        return recorded.append((entry, run))
    work()
    finish_copies()
    gpu.log.append(entry)
    run()


class OutOfMemoryError(MemoryError):
    pass


class CUDARuntimeError(RuntimeError):
    """What CuPy raises if the driver reports an error."""


def on_gpu(value):
    """Wrap what a NumPy function returned: 0-d arrays too, since CuPy never returns a scalar."""
    array = ndarray.__new__(ndarray)
    array._array = owner = np.asarray(value)
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if owner.ctypes.data not in gpu.memory_of:
        gpu.device_of[owner.ctypes.data] = gpu.device
    gpu.memory_of[owner.ctypes.data] = owner
    array._device = gpu.device_of[owner.ctypes.data]
    if array._array.base is None:               # no view: it takes memory
        if gpu.allocator is not None:
            gpu.allocator(array.nbytes)
        if array.nbytes > gpu.memory:
            raise OutOfMemoryError(f"Out of memory allocating {array.nbytes:,} bytes (allocated so far: 0 bytes).")
    return array


def _from_gpu(value):
    """Unwrap an argument for NumPy. A NumPy array is refused, as CuPy refuses it, whatever its size."""
    if isinstance(value, ndarray):
        if value._device != gpu.device:
            raise ValueError(f"Array device must be same as the current device: array device = {value._device} while "
                             f"current = {gpu.device}")
        return value._array
    if isinstance(value, tuple | list):
        return type(value)(map(_from_gpu, value))
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


class ndarray:
    """An array on the GPU. Operators and most methods are added below, from tables."""

    __hash__ = None
    shape, ndim, size, dtype, itemsize, nbytes, strides, flags = (
        property(lambda self, name=name: getattr(self._array, name))
        for name in ("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides", "flags"))
    T = property(lambda self: on_gpu(self._array.T))
    data = property(lambda self: types.SimpleNamespace(ptr=self._array.ctypes.data))

    def __array__(self, dtype=None, copy=None):     # NumPy asks for this wherever it wants an array of its own
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if "out" in kwargs:
            kwargs["out"], = kwargs["out"]
        function = getattr(cupy, ufunc.__name__, None) or SPECIAL.get(ufunc.__name__)
        function = function if method == "__call__" else getattr(function, method, None)
        return NotImplemented if function is None else function(*inputs, **kwargs)

    def __array_function__(self, function, kinds, args, kwargs):
        ours = getattr(cupy, function.__name__, None) if function.__module__ == "numpy" else None
        known = ours is not None and all(issubclass(kind, ndarray | np.ndarray) for kind in kinds)
        return ours(*args, **kwargs) if known else NotImplemented       # NumPy's TypeError then names the function

    def __len__(self):
        return len(self._array)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key):
        key, advanced = _host_key(key, self.shape)
        return on_gpu(self._array[key].copy() if advanced else self._array[key])

    def __setitem__(self, key, value):
        key, advanced = _host_key(key, self.shape)
        if not isinstance(value, ndarray) and np.ndim(value):
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        work()
        if advanced and np.size(getattr(value, "_array", value)) > 1:
            written = np.arange(self.size).reshape(self.shape)[key]
            if np.unique(written).size < written.size:
                raise ValueError("an index repeats: which of its values is stored is undefined on a GPU")
        self._array[key] = getattr(value, "_array", value)

    def get(self, stream=None, order="C", out=None, blocking=True):
        work()
        wait()
        return self._array.copy(order)

    def set(self, arr, stream=None):
        """Copy a NumPy array here: later, from the same memory."""
        if not isinstance(arr, np.ndarray) or arr.dtype != self.dtype:
            raise TypeError(f"only a NumPy array of {self.dtype} can be set")
        if arr.shape != self.shape or not self.flags.c_contiguous or not arr.flags.c_contiguous:
            raise ValueError("only an array of the same shape can be set, and to a contiguous one")
        if gpu.recording is not None:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")
        assert stream is None, "on the current stream, like everything else"
        work()
        address = arr.ctypes.data
        gpu.pending.append(lambda: ctypes.memmove(self._array.ctypes.data, address, self.nbytes))

    def fill(self, value):
        _from_gpu(self)
        order(("fill", self, value), lambda: self._array.fill(value))


def _host_key(key, shape):
    """Return an index for NumPy that reads what CuPy would, and whether it holds an array; out of range it wraps."""
    keys = key if isinstance(key, tuple) else (key,)
    n_axes = sum(k is not None and k is not Ellipsis for k in keys)
    axis, host_keys = 0, []
    for k in keys:
        if isinstance(k, list | np.ndarray | bool | np.bool_) or getattr(k, "dtype", None) == np.bool_:
            raise TypeError("an index that CuPy would copy to the GPU, or whose number of True it would wait for")
        host_keys.append(k._array % shape[axis] if isinstance(k, ndarray) else k)
        axis += len(shape) - n_axes if k is Ellipsis else k is not None
    return tuple(host_keys), any(isinstance(k, ndarray) for k in keys)


class ufunc:
    """An elementwise function of arrays on the GPU and scalars, Python's or NumPy's; of no NumPy array, 0-d or not."""

    def __init__(self, function, name):
        self._function, self.__name__ = function, name

    def __call__(self, *args, out=None, dtype=None, casting="same_kind"):
        for arg in args:
            if not isinstance(arg, ndarray | np.generic) and type(arg) not in (bool, int, float, complex):
                raise TypeError(f"Unsupported type {type(arg)}")
        work()
        with np.errstate(all="ignore"):         # a GPU warns of nothing
            result = self._function(*map(_from_gpu, args), out=_from_gpu(out), dtype=dtype, casting=casting)
        return on_gpu(result) if out is None else out

    def at(self, a, indices, b=None):
        if self.__name__ not in ("add", "maximum", "minimum"):      # of floats
            raise NotImplementedError(f"`cupy_{self.__name__}.at` is not supported yet")
        work()
        key, _ = _host_key(indices, a.shape)
        self._function.at(a._array, key, _from_gpu(b))


def matmul(a, b):
    if not isinstance(a, ndarray) or not isinstance(b, ndarray):
        raise TypeError(f"Unsupported type {type(a)} or {type(b)}")
    work()
    return on_gpu(np.matmul(_from_gpu(a), _from_gpu(b)))


def asarray(a, dtype=None, order=None):
    work()
    return on_gpu(np.array(getattr(a, "_array", a), dtype))


def take_along_axis(a, indices, axis):
    work()
    return on_gpu(np.take_along_axis(a._array, indices._array % a.shape[axis], axis))


def put_along_axis(arr, indices, values, axis):
    work()
    np.put_along_axis(arr._array, indices._array % arr.shape[axis], _from_gpu(values), axis)


def where(condition, x, y):                     # without x and y it would wait
    work()
    return on_gpu(np.where(condition._array, _from_gpu(x), _from_gpu(y)))


def empty(shape, dtype=float, order="C"):
    array = on_gpu(np.empty(shape, dtype, order))
    array._array.view(np.uint8)[...] = 0xFF     # NaN, and an index out of any range
    return array


def _wrapped(name, parameters):
    """NumPy's function of a name, for arrays on the GPU and with the parameters that CuPy's has."""
    parameters, numpys = parameters.split(), getattr(np, name)

    def function(*args, **named):
        if len(args) > len(parameters) or not named.keys() <= set(parameters):
            raise TypeError(f"cupy.{name} takes only {', '.join(parameters)}")
        work()
        result = numpys(*map(_from_gpu, args), **{key: _from_gpu(value) for key, value in named.items()})
        return named["out"] if named.get("out") is not None else on_gpu(result)
    return function


class Device:
    """A GPU."""

    mem_info = property(lambda self: (gpu.memory, 80 << 30))
    compute_capability = property(lambda self: gpu.capability)

    def __init__(self, device=None):
        self.id, self._before = gpu.device if device is None else device, []
        assert self.id < gpu.devices

    def use(self):
        gpu.device = self.id
        return self

    def synchronize(self):
        wait()

    def __enter__(self):
        self._before.append(gpu.device)
        return self.use()

    def __exit__(self, *error):
        gpu.device = self._before.pop()


class Event:
    """A place in a stream's work."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self.done = False

    def record(self, stream=None):
        (stream or current_stream()).record(self)

    def synchronize(self):
        wait()


class Stream:
    """A queue of the GPU's work; also the null stream, which here waits for no other and no other for it."""

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        self.ptr, self._device, self._before = 0 if null else 0x57EA, gpu.device, []
        self.seen = collections.Counter()       # stream -> how much of what it was told this one waits for

    def __enter__(self):
        assert gpu.device == self._device, "the stream is another GPU's"
        self._before.append(current_stream())
        gpu.streams[gpu.device] = self
        return self

    def __exit__(self, *error):
        gpu.streams[self._device] = self._before.pop()

    def record(self, event=None):
        event = event or Event()
        event.time = time.perf_counter()
        event.after = self.seen | collections.Counter({self: gpu.told[self]})
        gpu.pending.append(lambda: setattr(event, "done", True))
        return event

    def synchronize(self):
        wait()

    def wait_event(self, event):
        self.seen |= event.after

    def begin_capture(self, mode=None):
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        gpu.recording = self, []

    def end_capture(self):
        (_, recorded), gpu.recording = gpu.recording, None

        def launch(stream=None):
            gpu.log.append(("replay", stream or current_stream()))
            for entry, run in recorded:
                order(entry, run)
        return types.SimpleNamespace(launch=launch)


class MemoryPool:
    def free_all_blocks(self):
        pass

    def set_limit(self, size=None, fraction=None):
        gpu.memory = size or State().memory


class RawKernel:
    """A kernel, which `run_kernel` runs if a test has set it."""

    def __init__(self, options, name):
        self._options, self._name = options, name

    def __call__(self, grid, block, args, stream=None):
        assert type(grid) is type(block) is tuple and stream is None
        for arg in args:
            _from_gpu(arg)
        order(("launch", self._name, grid, block, args, current_stream()),
              lambda: gpu.run_kernel and gpu.run_kernel(self._options, self._name, grid, block, args))


@contextlib.contextmanager
def using_allocator(allocator):
    before, gpu.allocator = gpu.allocator, allocator
    try:
        yield
    finally:
        gpu.allocator = before


# CuPy's parameters, in its order.
METHODS = {"sum": "a axis dtype out keepdims", "mean": "a axis dtype out keepdims", "max": "a axis out keepdims",
           "min": "a axis out keepdims", "swapaxes": "a axis1 axis2"}
FUNCTIONS = {"transpose": "a axes", "vdot": "a b", "stack": "tup axis out", "concatenate": "tup axis out",
             "triu": "m k", "zeros": "shape dtype order", "full": "shape fill_value dtype order",
             "arange": "start stop step dtype", "zeros_like": "a dtype order subok shape",
             "full_like": "a fill_value dtype order subok shape", **METHODS}
UFUNCS = "exp log sqrt tanh maximum minimum isfinite".split()
OPERATORS = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "and": "bitwise_and",
             "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift"}
COMPARISONS = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
               "ne": "not_equal", "neg": "negative"}
READS = {"item": np.ndarray.item, "tolist": np.ndarray.tolist, "__float__": float, "__int__": int, "__bool__": bool,
         "__repr__": repr, "__format__": format}
VIEWS = "astype view reshape transpose copy".split()

SPECIAL = {"erf": ufunc(scipy.special.erf, "erf")}      # where CuPy looks for functions that are not its own
runtime = types.SimpleNamespace(getDeviceCount=lambda: gpu.devices, CUDARuntimeError=CUDARuntimeError,
                                deviceGetPCIBusId=lambda device: f"0000:{gpu.first + device:02d}:00.0",
                                getDeviceProperties=lambda device: {"name": b"a stand-in for a GPU"},
                                memGetInfo=lambda: Device().mem_info, runtimeGetVersion=lambda: 13020)
cuda = types.SimpleNamespace(
    Device=Device, Stream=Stream, Event=Event, get_current_stream=current_stream,
    get_elapsed_time=lambda begin, end: 1000 * (end.time - begin.time),
    runtime=runtime, memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError), cublas=None,
    nvrtc=types.SimpleNamespace(getVersion=lambda: (13, 0)), using_allocator=using_allocator,
    set_allocator=lambda allocator=None: None,
    alloc_pinned_memory=lambda size: np.zeros(-(-size // 512) * 512, np.uint8))
cupy = types.SimpleNamespace(
    ndarray=ndarray, ufunc=ufunc, cuda=cuda, get_default_memory_pool=MemoryPool, RawKernel=RawKernel, empty=empty,
    asarray=asarray, matmul=matmul, where=where, take_along_axis=take_along_axis, put_along_axis=put_along_axis,
    shape=np.shape.__wrapped__,
    RawModule=lambda *, code, options: types.SimpleNamespace(get_function=lambda name: RawKernel(options, name)),
    **{name: ufunc(getattr(np, name), getattr(np, name).__name__)
       for name in (*UFUNCS, *OPERATORS.values(), *COMPARISONS.values(), "divide")},
    **{name: _wrapped(name, parameters) for name, parameters in FUNCTIONS.items()})
MODULES = {"cupy": cupy, "cupy.cuda": cuda}


def _add_method(name, function):
    setattr(ndarray, name, lambda self, *args, **named: function(self, *args, **named))


for name in METHODS:
    _add_method(name, getattr(cupy, name))
for name, function in COMPARISONS.items():
    _add_method(f"__{name}__", getattr(cupy, function))
for name, function in {**OPERATORS, "matmul": "matmul"}.items():
    function = getattr(cupy, function)
    _add_method(f"__{name}__", function)
    _add_method(f"__r{name}__", lambda self, other, function=function: function(other, self))
    if name in OPERATORS:
        _add_method(f"__i{name}__", lambda self, other, function=function: function(self, other, out=self))
for name in VIEWS:
    _add_method(name, lambda self, *args, name=name, **named: on_gpu(getattr(self._array, name)(*args, **named)))
for name, read in READS.items():
    _add_method(name, lambda self, *args, read=read: read(self.get(), *args))

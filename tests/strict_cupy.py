"""A strict stand-in for CuPy 14.2: tests without a GPU use it to show that all lines stay on the GPU.

Its arrays hold NumPy arrays, but do only what CuPy's do, and it has only the functions that npgpt needs. A NumPy array
in an operation raises; a wait for the GPU is recorded (`gpu.waits`); an index out of range wraps, as on a GPU; new
memory is NaN. Random numbers are those of NumPy's default generator.

>>> xp = strict_cupy.install(monkeypatch)       # from now on `import cupy` gives the stand-in
"""

import sys
import types

import numpy as np
import scipy.special


class State:
    """The state of the GPU."""

    def __init__(self):
        self.waits = []                     # "file:line" of who waited for the GPU
        self.may_wait = True                # False: a wait raises
        self.memory = 80 << 30              # bytes: a larger array raises OutOfMemoryError
        self.devices, self.device = 1, 0    # how many GPUs there are, and which one CuPy works on
        self.compute_type = linalg.COMPUTE_TYPE_DEFAULT     # the precision of matmuls of float32
        self.compute_types = set()          # those that matmuls had


def install(monkeypatch):
    """Replace CuPy by the stand-in until the test ends, with an empty GPU. Returns the module."""
    gpu.__init__()
    for name, stand_in in MODULES.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    return cupy


def wait():
    """Record the line outside this file that makes the host wait for the GPU."""
    frame = sys._getframe()
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    gpu.waits.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
    if not gpu.may_wait:
        raise RuntimeError("Device synchronization was detected while disallowed.")


class OutOfMemoryError(MemoryError):
    pass


class CUDARuntimeError(RuntimeError):
    """What CuPy raises if the driver reports an error."""


def on_gpu(value):
    """Wrap the result of a NumPy function. CuPy never returns a scalar, so 0-d arrays are wrapped too."""
    array = ndarray.__new__(ndarray)
    array._array = np.asarray(value)
    if array._array.base is None and array.nbytes > gpu.memory:         # no view: it takes memory
        raise OutOfMemoryError(f"Out of memory allocating {array.nbytes:,} bytes (allocated so far: 0 bytes).")
    return array


def _from_gpu(value):
    """Unwrap an argument for NumPy. Refuse a NumPy array of any size, as CuPy does."""
    if isinstance(value, ndarray):
        return value._array
    if isinstance(value, tuple | list):
        return type(value)(map(_from_gpu, value))
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


class ndarray:
    """An array on the GPU. Operators and most methods are added below, from tables."""

    __hash__ = None
    shape, ndim, size, dtype, nbytes = (property(lambda self, name=name: getattr(self._array, name))
                                        for name in ("shape", "ndim", "size", "dtype", "nbytes"))
    T = property(lambda self: on_gpu(self._array.T))

    def __array__(self, dtype=None, copy=None):     # NumPy calls this to convert
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
        key, _ = _host_key(key, self.shape)
        if not isinstance(value, ndarray) and np.ndim(value):
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        self._array[key] = getattr(value, "_array", value)

    def get(self, stream=None, order="C", out=None, blocking=True):
        wait()
        return self._array.copy(order)


def _host_key(key, shape):
    """Return an index for NumPy with out-of-range values wrapped, as in CuPy; and whether it has an array."""
    keys = key if isinstance(key, tuple) else (key,)
    n_axes = sum(k is not None and k is not Ellipsis for k in keys)
    axis, host_keys = 0, []
    for k in keys:
        if isinstance(k, list | np.ndarray | bool | np.bool_) or getattr(k, "dtype", None) == np.bool_:
            raise TypeError("an index that CuPy would copy to the GPU, or wait for")
        host_keys.append(k._array % shape[axis] if isinstance(k, ndarray) else k)
        axis += len(shape) - n_axes if k is Ellipsis else k is not None
    return tuple(host_keys), any(isinstance(k, ndarray) for k in keys)


class ufunc:
    """An elementwise function of arrays on the GPU and of scalars; NumPy arrays are refused, also 0-d ones."""

    def __init__(self, function, name):
        self._function, self.__name__ = function, name

    def __call__(self, *args, out=None, dtype=None, casting="same_kind"):
        for arg in args:
            if not isinstance(arg, ndarray | np.generic) and type(arg) not in (bool, int, float, complex):
                raise TypeError(f"Unsupported type {type(arg)}")
        with np.errstate(all="ignore"):         # a GPU does not warn
            result = self._function(*map(_from_gpu, args), out=_from_gpu(out), dtype=dtype, casting=casting)
        return on_gpu(result) if out is None else out

    def at(self, a, indices, b=None):
        if self.__name__ not in ("add", "maximum", "minimum"):      # of floats
            raise NotImplementedError(f"`cupy_{self.__name__}.at` is not supported yet")
        key, _ = _host_key(indices, a.shape)
        self._function.at(a._array, key, _from_gpu(b))


def matmul(a, b):
    if not isinstance(a, ndarray) or not isinstance(b, ndarray):
        raise TypeError(f"Unsupported type {type(a)} or {type(b)}")
    gpu.compute_types.add(gpu.compute_type)
    return on_gpu(np.matmul(_from_gpu(a), _from_gpu(b)))


def asarray(a, dtype=None, order=None):
    return on_gpu(np.array(getattr(a, "_array", a), dtype))


def take_along_axis(a, indices, axis):
    return on_gpu(np.take_along_axis(a._array, indices._array % a.shape[axis], axis))


def put_along_axis(arr, indices, values, axis):
    np.put_along_axis(arr._array, indices._array % arr.shape[axis], _from_gpu(values), axis)


def where(condition, x, y):                     # without x and y it would wait
    return on_gpu(np.where(condition._array, _from_gpu(x), _from_gpu(y)))


def may_share_memory(a, b):                     # of the bounds alone: nothing waits
    return np.may_share_memory(a._array, b._array)


def empty(shape, dtype=float, order="C"):
    array = on_gpu(np.empty(shape, dtype, order))
    array._array.view(np.uint8)[...] = 0xFF     # NaN, and an index out of any range
    return array


def _wrapped(name, parameters):
    """NumPy's function of this name, for arrays on the GPU, with CuPy's parameters only."""
    parameters, numpys = parameters.split(), getattr(np, name)

    def function(*args, **named):
        if len(args) > len(parameters) or not named.keys() <= set(parameters):
            raise TypeError(f"cupy.{name} takes only {', '.join(parameters)}")
        result = numpys(*map(_from_gpu, args), **{key: _from_gpu(value) for key, value in named.items()})
        return named["out"] if named.get("out") is not None else on_gpu(result)
    return function


class Device:
    """A GPU."""

    mem_info = property(lambda self: (gpu.memory, 80 << 30))

    def __init__(self, device=None):
        self.id = gpu.device if device is None else device

    def use(self):
        gpu.device = self.id


class Philox4x3210:
    def __init__(self, seed=None, *, size=-1):
        self._seed = seed


class Generator:
    def __init__(self, bit_generator):
        self._rng = np.random.default_rng(bit_generator._seed)

    def random(self, size=None, dtype=np.float64, out=None):
        return on_gpu(self._rng.random(size, dtype, _from_gpu(out)))


def set_compute_type(dtype, compute_type):
    assert dtype == np.float32
    gpu.compute_type = compute_type


# CuPy's parameters, in its order.
METHODS = {"sum": "a axis dtype out keepdims", "mean": "a axis dtype out keepdims", "max": "a axis out keepdims",
           "min": "a axis out keepdims", "any": "a axis out keepdims", "swapaxes": "a axis1 axis2"}
FUNCTIONS = {"transpose": "a axes", "vdot": "a b", "stack": "tup axis out", "concatenate": "tup axis out",
             "triu": "m k", "zeros": "shape dtype order", "full": "shape fill_value dtype order",
             "arange": "start stop step dtype", "zeros_like": "a dtype order subok shape",
             "full_like": "a fill_value dtype order subok shape", **METHODS}
UFUNCS = "exp log sqrt tanh maximum minimum isfinite".split()
OPERATORS = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "and": "bitwise_and"}
COMPARISONS = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
               "ne": "not_equal", "neg": "negative"}
READS = {"item": np.ndarray.item, "tolist": np.ndarray.tolist, "__float__": float, "__int__": int, "__bool__": bool,
         "__repr__": repr, "__format__": format}
VIEWS = "astype view reshape transpose copy".split()

SPECIAL = {"erf": ufunc(scipy.special.erf, "erf")}      # where CuPy looks for functions that are not its own
runtime = types.SimpleNamespace(getDeviceCount=lambda: gpu.devices, CUDARuntimeError=CUDARuntimeError,
                                getDeviceProperties=lambda device: {"name": b"a stand-in for a GPU"})
cuda = types.SimpleNamespace(
    Device=Device, runtime=runtime, memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError), cublas=None,
    nvrtc=types.SimpleNamespace(getVersion=lambda: (13, 0)))
linalg = types.SimpleNamespace(get_compute_type=lambda dtype: gpu.compute_type, set_compute_type=set_compute_type,
                               COMPUTE_TYPE_DEFAULT=1, COMPUTE_TYPE_FP32=4, COMPUTE_TYPE_TF32=7)
random = types.SimpleNamespace(Generator=Generator, Philox4x3210=Philox4x3210)
cupy = types.SimpleNamespace(
    ndarray=ndarray, ufunc=ufunc, cuda=cuda, random=random, empty=empty,
    asarray=asarray, matmul=matmul, may_share_memory=may_share_memory, where=where, take_along_axis=take_along_axis,
    put_along_axis=put_along_axis,
    shape=np.shape.__wrapped__,
    **{name: ufunc(getattr(np, name), getattr(np, name).__name__)
       for name in (*UFUNCS, *OPERATORS.values(), *COMPARISONS.values(), "divide")},
    **{name: _wrapped(name, parameters) for name, parameters in FUNCTIONS.items()})
MODULES = {"cupy": cupy, "cupy.cuda": cuda, "cupy._core": types.SimpleNamespace(_routines_linalg=linalg)}
gpu = State()


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

"""A strict stand-in for CuPy 14.2: without a GPU it shows that all lines stay on the GPU.

Its arrays hold NumPy arrays, but have only the functions that npgpt needs, with CuPy's parameters. A NumPy array in an
operation raises; a wait for the GPU is recorded (`gpu.waits`); an index out of range wraps, as on a GPU. Random numbers
are those of NumPy's default generator.

>>> xp = strict_cupy.install(monkeypatch)       # from now on `import cupy` gives the stand-in
"""

import operator
import sys
import types

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

# CuPy's parameters, in its order.
FUNCTIONS = {
    "sum": "a axis dtype out keepdims", "mean": "a axis dtype out keepdims", "max": "a axis out keepdims",
    "any": "a axis out keepdims", "swapaxes": "a axis1 axis2", "vdot": "a b", "stack": "tup axis out",
    "concatenate": "tup axis out", "arange": "start stop step dtype", "split": "ary indices_or_sections axis",
    "triu": "m k", "where": "condition x y",
    "zeros": "shape dtype order", "full": "shape fill_value dtype order", "zeros_like": "a dtype order subok shape",
    "full_like": "a fill_value dtype order subok shape", "take_along_axis": "a indices axis",
    "put_along_axis": "arr indices values axis"}
UFUNCS = ("add subtract multiply divide negative bitwise_and less less_equal greater greater_equal equal not_equal "
          "absolute exp log sqrt tanh cos sin power maximum minimum isfinite matmul").split()
METHODS = "sum mean max any swapaxes".split()
VIEWS = "astype view reshape transpose copy".split()


class State:
    """The state of the GPU."""

    def __init__(self):
        self.waits = []                     # "file:line" of who waited for the GPU
        self.memory = 80 << 30              # bytes: a larger array raises OutOfMemoryError
        self.devices = 1
        self.compute_type = linalg.COMPUTE_TYPE_DEFAULT     # the precision of matmuls of float32
        self.compute_types = set()          # those that matmuls had


def install(monkeypatch):
    """Replace CuPy by the stand-in until the test ends, with an empty GPU. Returns the module."""
    gpu.__init__()
    for name, stand_in in MODULES.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    return cupy


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


def from_gpu(value):
    """Unwrap an argument for NumPy. Refuse a NumPy array of any size, as CuPy does."""
    if isinstance(value, tuple | list):
        return type(value)(map(from_gpu, value))
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value._array if isinstance(value, ndarray) else value


def call(name, *args, **named):
    """Call NumPy's function of this name on arrays on the GPU, with CuPy's parameters only."""
    parameters = FUNCTIONS[name].split()
    if len(args) > len(parameters) or not named.keys() <= set(parameters):
        raise TypeError(f"cupy.{name} takes only {', '.join(parameters)}")
    if name == "where" and len(args) < 3:
        raise TypeError("cupy.where with the condition alone waits for the GPU")
    given = [from_gpu(arg) for arg in args]
    if name.endswith("along_axis"):
        given[1] = given[1] % given[0].shape[named["axis"]]
    return on_gpu(getattr(np, name)(*given, **{key: from_gpu(value) for key, value in named.items()}))


def host_index(key, shape):
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


class ndarray(NDArrayOperatorsMixin):
    """An array on the GPU. Methods are added below, from tables."""

    __hash__ = None
    shape, ndim, size, dtype, nbytes = (property(lambda self, name=name: getattr(self._array, name))
                                        for name in ("shape", "ndim", "size", "dtype", "nbytes"))
    T = property(lambda self: on_gpu(self._array.T))

    def __array__(self, dtype=None, copy=None):     # NumPy calls this to convert
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **named):
        name = ufunc.__name__
        if name not in (*UFUNCS, "erf") or not named.keys() <= {"dtype", "casting"}:
            return NotImplemented               # NumPy's TypeError then names the function
        for each in (*inputs, *(out or ())):
            if not isinstance(each, ndarray | np.generic | bool | int | float) and method == "__call__":
                raise TypeError(f"Unsupported type {type(each)}")
        if method == "at" and name == "add":    # for other functions of floats, CuPy lacks `at`
            array, indices, values = inputs
            return ufunc.at(array._array, host_index(indices, array.shape)[0], from_gpu(values))
        if method != "__call__":
            return NotImplemented
        if name == "matmul":
            gpu.compute_types.add(gpu.compute_type)
        with np.errstate(all="ignore"):         # a GPU does not warn
            result = ufunc(*map(from_gpu, inputs), out=from_gpu(out), **named)
        return on_gpu(result) if out is None else out[0]

    def __array_function__(self, function, kinds, args, kwargs):
        return call(function.__name__, *args, **kwargs) if function.__name__ in FUNCTIONS else NotImplemented

    def __len__(self):
        return len(self._array)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key):
        key, advanced = host_index(key, self.shape)
        return on_gpu(self._array[key].copy() if advanced else self._array[key])

    def __setitem__(self, key, value):
        if not isinstance(value, ndarray) and np.ndim(value):
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        self._array[host_index(key, self.shape)[0]] = getattr(value, "_array", value)

    def get(self):
        """Copy to the host, and record the line outside this file that waits for it."""
        frame = sys._getframe()
        while frame.f_code.co_filename == __file__:
            frame = frame.f_back
        gpu.waits.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return self._array.copy()


for name in METHODS:
    setattr(ndarray, name, lambda self, *args, name=name, **named: call(name, self, *args, **named))
for name in VIEWS:
    setattr(ndarray, name, lambda self, *args, name=name, **named: on_gpu(getattr(self._array, name)(*args, **named)))
for read in (float, int, bool, repr, format):
    setattr(ndarray, f"__{read.__name__}__", lambda self, *args, read=read: read(self.get(), *args))
for name in ("item", "tolist"):
    setattr(ndarray, name, lambda self, name=name: operator.methodcaller(name)(self.get()))


class Device:
    def __init__(self, device=0):
        self.id = device

    def use(self):
        pass


class Philox4x3210:
    def __init__(self, seed=None, *, size=-1):
        self._seed = seed


class Generator:
    def __init__(self, bit_generator):
        self._rng = np.random.default_rng(bit_generator._seed)

    def random(self, size=None, dtype=np.float64, out=None):
        return on_gpu(self._rng.random(size, dtype))


runtime = types.SimpleNamespace(getDeviceCount=lambda: gpu.devices, CUDARuntimeError=CUDARuntimeError,
                                getDeviceProperties=lambda device: {"name": b"a stand-in for a GPU"})
cuda = types.SimpleNamespace(Device=Device, runtime=runtime, cublas=None,
                             nvrtc=types.SimpleNamespace(getVersion=lambda: (13, 0)))
linalg = types.SimpleNamespace(get_compute_type=lambda dtype: gpu.compute_type,
                               set_compute_type=lambda dtype, compute_type: setattr(gpu, "compute_type", compute_type),
                               COMPUTE_TYPE_DEFAULT=1, COMPUTE_TYPE_FP32=4, COMPUTE_TYPE_TF32=7)
random = types.SimpleNamespace(Generator=Generator, Philox4x3210=Philox4x3210)
cupy = types.SimpleNamespace(
    ndarray=ndarray, cuda=cuda, random=random,
    asarray=lambda a, dtype=None: on_gpu(np.array(getattr(a, "_array", a), dtype)),
    zeros=lambda *args, **named: call("zeros", *args, **named),
    may_share_memory=lambda a, b: np.may_share_memory(a._array, b._array))      # of the bounds alone: nothing waits
MODULES = {"cupy": cupy, "cupy.cuda": cuda, "cupy._core": types.SimpleNamespace(_routines_linalg=linalg)}
gpu = State()

"""A strict stand-in for CuPy 14.2: without a GPU it shows that all lines stay on the GPU.

Its arrays hold NumPy arrays, but have only the functions that npgpt needs, with CuPy's parameters.
A NumPy array in an operation raises, as does an array of another device; an index out of range
wraps, as on a GPU; `empty` holds NaN. `gpu` records what is slow or differs from run to run. Random
numbers are those of NumPy's default generator.

>>> xp = strict_cupy.install(monkeypatch)       # from now on `import cupy` gives the stand-in
"""

import functools
import inspect
import operator
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from scipy.special import erf

from tests.strict_gpu import (
    Awaited,
    Device,
    cublas,
    gpu,
    linalg,
    place,
    record_precision,
    runtime,
    start_cublas,
)

# CuPy's parameters, in its order.
FUNCTIONS = {
    "sum": "a axis dtype out keepdims",
    "mean": "a axis dtype out keepdims",
    "max": "a axis out keepdims",
    "any": "a axis out keepdims",
    "vdot": "a b",
    "stack": "tup axis out",
    "concatenate": "tup axis out",
    "arange": "start stop step dtype",
    "split": "ary indices_or_sections axis",
    "triu": "m k",
    "where": "condition x y",
    "argsort": "a axis kind",
    "searchsorted": "a v side sorter",
    "zeros": "shape dtype order",
    "ones": "shape dtype order",
    "empty": "shape dtype order",
    "full": "shape fill_value dtype order",
    "zeros_like": "a dtype order subok shape",
    "full_like": "a fill_value dtype order subok shape",
    "take_along_axis": "a indices axis",
    "put_along_axis": "arr indices values axis",
}
UFUNCS = (
    "add subtract multiply divide negative bitwise_and less less_equal greater greater_equal equal "
    "not_equal absolute exp log sqrt tanh cos sin power maximum minimum isfinite matmul"
).split()
METHODS = "sum mean max any".split()
VIEWS = "astype reshape transpose swapaxes".split()
FIELDS = "shape ndim size dtype nbytes strides itemsize".split()


def install(monkeypatch):
    """Replace CuPy by the stand-in until the test ends, with an empty GPU. Returns the module."""
    gpu.__init__()
    for name in [
        name for name in sys.modules if name.startswith(("cupy.", "cupyx"))
    ]:  # the real one's
        monkeypatch.delitem(sys.modules, name)
    for name, stand_in in MODULES.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    return cupy


def on_gpu(value, kind=None):
    """Wrap the result of a NumPy function. CuPy never returns a scalar, so 0-d arrays are wrapped
    too.
    """
    array = ndarray.__new__(kind or ndarray)
    array._array = owner = np.asarray(value)
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if id(owner) not in gpu.live:
        gpu.allocate(owner)
    array.device = Device(gpu.live[id(owner)][2])
    return array


def of_same_class(result, array):
    """Wrap a view of an array in the array's class. What turned out to be a copy needs a kernel,
    and is an ndarray.
    """
    if np.may_share_memory(result, array._array):
        return array if result is array._array else on_gpu(result, type(array))
    from_gpu(array)
    return on_gpu(result)


def of_first_subclass(result, inputs):
    """Wrap the result of a ufunc as CuPy does."""
    kinds = [type(each) for each in inputs if isinstance(each, ndarray)]
    return on_gpu(result, next((kind for kind in kinds if kind is not ndarray), None))


def from_gpu(value):
    """Unwrap an argument for NumPy. Refuse what CuPy does: a NumPy array of any size, an array of
    another device.
    """
    if isinstance(value, tuple | list):
        return type(value)(map(from_gpu, value))
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, ndarray) and value.device.id != gpu.current:
        raise ValueError(
            f"The device where the array resides ({value.device.id}) is different from the current "
            f"device ({gpu.current}). Peer access is unavailable between these devices."
        )
    return value._array if isinstance(value, ndarray) else value


def call(name, *args, **named):
    """Call NumPy's function of this name on arrays on the GPU, with CuPy's parameters only."""
    parameters = FUNCTIONS[name].split()
    if len(args) > len(parameters) or not named.keys() <= set(parameters):
        raise TypeError(f"cupy.{name} takes only {', '.join(parameters)}")
    if name == "where" and len(args) < 3:
        raise TypeError("cupy.where with the condition alone waits for the GPU")
    if name == "split":
        return [
            of_same_class(part, args[0]) for part in np.split(args[0]._array, *args[1:], **named)
        ]
    given = [from_gpu(arg) for arg in args]
    if name.endswith("along_axis"):
        given[1] = given[1] % given[0].shape[named["axis"]]
    if name == "argsort" and named.pop("kind", None) not in (None, "stable"):
        raise ValueError("kind can only be None or 'stable'")
    if name == "argsort":
        named["kind"] = "stable"
    result = getattr(np, name)(*given, **{key: from_gpu(value) for key, value in named.items()})
    if name == "empty":
        result.fill(np.nan if result.dtype.kind == "f" else 77)
    return of_first_subclass(
        result, args if name in ("where", "triu") else ()
    )  # these two are ufuncs in CuPy


def record_matmul(a, b):
    """Record the copies that CuPy makes before a matmul, and cuBLAS's precision."""
    a, b = from_gpu(a), from_gpu(b)
    dtype, batched = np.result_type(a, b), max(a.ndim, b.ndim) > 2
    for each in (a, b):
        contiguous = each.flags.c_contiguous or each.flags.f_contiguous and not batched
        gpu.copies += [] if contiguous and each.dtype == dtype else [place()]
    handle = Device().cublas_handle
    if dtype.kind == "f":
        start_cublas(handle)
    if dtype == np.float32:
        tf32 = gpu.compute_type == linalg.COMPUTE_TYPE_TF32 and not batched
        record_precision(
            handle, cublas.CUBLAS_COMPUTE_32F_FAST_TF32 if tf32 else None, 3 if batched else 2
        )


def host_index(key, shape):
    """Return an index for NumPy with out-of-range values wrapped, as in CuPy; and whether it has an
    array.
    """
    keys = key if isinstance(key, tuple) else (key,)
    n_axes = sum(k is not None and k is not Ellipsis for k in keys)
    axis, host_keys = 0, []
    for k in keys:
        if (
            isinstance(k, list | np.ndarray | bool | np.bool_)
            or getattr(k, "dtype", None) == np.bool_
        ):
            raise TypeError("an index that CuPy would copy to the GPU, or wait for")
        host_keys.append(from_gpu(k) % shape[axis] if isinstance(k, ndarray) else k)
        axis += len(shape) - n_axes if k is Ellipsis else k is not None
    return tuple(host_keys), any(isinstance(k, ndarray) for k in keys)


class ndarray(NDArrayOperatorsMixin):
    """An array on the GPU. Methods and fields are added below, from tables."""

    __hash__ = None
    T = property(lambda self: self.transpose())
    data = property(
        lambda self: SimpleNamespace(ptr=self._array.ctypes.data, device_id=self.device.id)
    )
    flags = property(
        lambda self: SimpleNamespace(
            **{name: getattr(self._array.flags, name) for name in ("c_contiguous", "f_contiguous")}
        )
    )

    def __array__(self, dtype=None, copy=None):  # NumPy calls this to convert
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **named):
        name = ufunc.__name__
        if name not in (*UFUNCS, "erf") or not named.keys() <= {"dtype", "casting"}:
            return NotImplemented  # NumPy's TypeError then names the function
        for each in (*inputs, *(out or ())):
            if (
                not isinstance(each, ndarray | np.generic | bool | int | float)
                and method == "__call__"
            ):
                raise TypeError(f"Unsupported type {type(each)}")
        if method == "at" and name == "add":  # for other functions of floats, CuPy lacks `at`
            array, indices, values = inputs
            gpu.atomics.append(place())
            return ufunc.at(from_gpu(array), host_index(indices, array.shape)[0], from_gpu(values))
        if method != "__call__":
            return NotImplemented
        if name == "matmul":
            record_matmul(*inputs)
        with np.errstate(all="ignore"):  # a GPU does not warn
            result = ufunc(*map(from_gpu, inputs), out=from_gpu(out), **named)
        return out[0] if out else of_first_subclass(result, () if name == "matmul" else inputs)

    def __array_function__(self, function, kinds, args, kwargs):
        name = function.__name__
        if name in METHODS or name in VIEWS:  # CuPy calls the method, which may be a subclass's
            return getattr(args[0], name)(*args[1:], **kwargs)
        return call(name, *args, **kwargs) if name in FUNCTIONS else NotImplemented

    def __len__(self):
        return len(self._array)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key):
        key, advanced = host_index(key, self.shape)
        return (
            on_gpu(from_gpu(self)[key].copy()) if advanced else on_gpu(self._array[key], type(self))
        )

    def __setitem__(self, key, value):
        if not isinstance(value, ndarray) and np.ndim(value):
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        from_gpu(self)[host_index(key, self.shape)[0]] = from_gpu(value)

    def view(self, dtype=None, type=None):
        if inspect.isclass(dtype) and issubclass(dtype, ndarray):
            dtype, type = None, dtype
        return on_gpu(self._array.view(dtype or self.dtype), type or self.__class__)

    def copy(self):  # also from another device, to the current one
        return on_gpu(self._array.copy())

    def get(self):
        """Copy to the host, which waits for the GPU."""
        gpu.waits.append(place())
        return self._array.copy()


for name in FIELDS:
    setattr(ndarray, name, property(lambda self, name=name: getattr(self._array, name)))
for name in METHODS:
    setattr(ndarray, name, lambda self, *args, name=name, **named: call(name, self, *args, **named))
for name in VIEWS:
    setattr(
        ndarray,
        name,
        lambda self, *args, name=name, **named: of_same_class(
            getattr(self._array, name)(*args, **named), self
        ),
    )
for read in (float, int, bool, repr, format):
    setattr(ndarray, f"__{read.__name__}__", lambda self, *args, read=read: read(self.get(), *args))
for name in ("item", "tolist"):
    setattr(ndarray, name, lambda self, name=name: operator.methodcaller(name)(self.get()))


class Generator:
    def __init__(self, bit_generator):
        self._rng, self._device = np.random.default_rng(bit_generator.seed), bit_generator.device

    def random(self, size=None, dtype=np.float64, out=None):
        if self._device != gpu.current:
            raise RuntimeError("This Generator state is allocated in a different device")
        return on_gpu(self._rng.random(size, dtype))


def asarray(a, dtype=None):
    """A copy from the host does not wait; an array of another device is copied here."""
    if not isinstance(a, ndarray):
        return on_gpu(np.array(a, dtype))
    a = a if a.device.id == gpu.current else a.copy()
    return a if dtype is None else a.astype(dtype, copy=False)


cuda = SimpleNamespace(
    Device=Device,
    Stream=Awaited,
    Event=Awaited,
    get_current_stream=Awaited,
    runtime=runtime,
    cublas=cublas,
    nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
)
random = SimpleNamespace(
    Generator=Generator,
    Philox4x3210=lambda seed=None, *, size=-1: SimpleNamespace(seed=seed, device=gpu.current),
)
cupy = ModuleType("cupy")
vars(cupy).update(
    ndarray=ndarray,
    cuda=cuda,
    random=random,
    asarray=asarray,
    may_share_memory=lambda a, b: np.may_share_memory(
        a._array, b._array
    ),  # of the bounds alone: nothing waits
    **{
        name: functools.partial(call, name)
        for name in ("zeros", "ones", "empty", "full", "arange", "where")
    },
    **{name: getattr(np, name) for name in UFUNCS},
)
MODULES = {
    "cupy": cupy,
    "cupy.cuda": cuda,
    "cupy._core": SimpleNamespace(_routines_linalg=linalg),
    "cupyx.scipy.special": SimpleNamespace(erf=erf),
}

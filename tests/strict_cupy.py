"""A strict stand-in for CuPy, so that tests without a card can prove that lines stay on one.

Its arrays hold NumPy's, but do only what CuPy 14.2's do. What goes wrong unseen on a card is refused here, counted, or
goes as wrong: a NumPy array that is mixed in, a wait for the card (`syncs`, and where: `sync_places`), a copy to it
(`uploads`), an index out of range, which wraps, memory that nobody wrote to, an assignment whose result depends on the
order of threads. What CuPy does not have is missing.

>>> xp = strict_cupy.install(monkeypatch)       # from now on `import cupy` gives the stand-in
"""

import sys
import types
import weakref

import numpy as np
import scipy.special

syncs = 0               # how often the host waited for the card
sync_places = []        # "file:line" of who made it wait
uploads = 0             # arrays copied to the card; CuPy copies them into pinned memory first, and so does not wait
_memory = {"used": 0, "size": None}
_in_memory = set()      # ids of the NumPy arrays that own the memory in use
CARD_BYTES = 80 << 30   # of a card whose memory nobody has limited


def install(monkeypatch):
    """Put the stand-in in the place of CuPy until the test ends, with all counts at zero; returns the module."""
    reset()
    monkeypatch.setattr(sys.modules[__name__], "_memory", {"used": 0, "size": None})
    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, name, module)
    return cupy


def reset():
    """Count from zero again."""
    global syncs, uploads
    syncs = uploads = 0
    sync_places.clear()


def set_memory_limit(size):
    """Make the card so small, in bytes, that what does not fit raises OutOfMemoryError."""
    _memory["size"] = size


def wait():
    """Count that the host waits for the card, and note the line outside this file that made it."""
    global syncs
    syncs += 1
    frame = sys._getframe()
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    sync_places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")


class OutOfMemoryError(MemoryError):
    """What CuPy raises, with its words."""

    def __init__(self, size, total, limit=0):
        limited = f", limit set to: {limit:,} bytes" if limit else ""
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes{limited}).")


def _occupy(array):
    """Count the memory of a NumPy array as the card's, until it is freed."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    if id(array) in _in_memory:
        return
    size = -(-array.nbytes // 512) * 512        # CuPy's pool hands out multiples of 512 bytes
    if _memory["size"] is not None and _memory["used"] + size > _memory["size"]:
        raise OutOfMemoryError(size, _memory["used"])
    memory, key = _memory, id(array)
    memory["used"] += size
    _in_memory.add(key)

    def free():
        memory["used"] -= size
        _in_memory.discard(key)
    weakref.finalize(array, free)


def _to_card(value):
    """What a NumPy function returned, as the stand-in's: 0-d arrays too, since CuPy never returns a scalar."""
    if isinstance(value, tuple | list):
        return type(value)(map(_to_card, value)) if type(value) in (tuple, list) else tuple(map(_to_card, value))
    value = np.asarray(value)
    if value.dtype.kind not in "biufc":
        raise ValueError(f"Unsupported dtype {value.dtype}")
    _occupy(value)
    array = ndarray.__new__(ndarray)
    array._array = value
    return array


def _from_card(value):
    """What a function was given, for NumPy's. A NumPy array is refused, as an operand of any size is by CuPy."""
    if isinstance(value, ndarray):
        return value._array
    if isinstance(value, tuple | list):
        return type(value)(map(_from_card, value))
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


class ndarray:
    """An array on the card. Operators and most methods are added below, from tables."""

    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float, order="C"):
        self._array = _garbage(np.empty(shape, dtype, order))
        _occupy(self._array)

    shape, ndim, size, dtype, itemsize, nbytes, strides = (
        property(lambda self, name=name: getattr(self._array, name))
        for name in ("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides"))
    T = property(lambda self: _to_card(self._array.T))
    device = property(lambda self: Device(0))

    @property
    def flags(self):
        flags = self._array.flags
        return types.SimpleNamespace(c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous,
                                     owndata=flags.owndata)

    def __array__(self, dtype=None, copy=None):     # NumPy asks for this wherever it wants an array of its own
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy "
                        "array explicitly.")

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
        return _to_card(self._array[key].copy() if advanced else self._array[key])

    def __setitem__(self, key, value):
        key, advanced = _host_key(key, self.shape)
        if not isinstance(value, ndarray):
            value = asarray(value, self.dtype) if advanced else np.asarray(value, self.dtype)
            if not advanced and value.ndim:
                raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        if advanced and value.size > 1:
            written = np.arange(self.size).reshape(self.shape)[key]
            if np.unique(written).size < written.size:
                raise ValueError("an index repeats: which of its values is stored is undefined on a card")
        self._array[key] = getattr(value, "_array", value)

    def get(self, stream=None, order="C", out=None, blocking=True):
        wait()
        if out is None:
            return self._array.copy(order)
        out[...] = self._array
        return out

    def set(self, arr, stream=None):
        global uploads
        if not isinstance(arr, np.ndarray) or arr.dtype != self.dtype:
            raise TypeError(f"only a NumPy array of {self.dtype} can be set")
        if arr.shape != self.shape or not self.flags.c_contiguous:
            raise ValueError("only an array of the same shape can be set, and to a contiguous one")
        uploads += 1
        self._array[...] = arr

    def astype(self, dtype, order="K", copy=True):
        return self if not copy and self.dtype == dtype else _to_card(self._array.astype(dtype, order))

    def view(self, dtype=None):
        return _to_card(self._array.view() if dtype is None else self._array.view(dtype))

    def fill(self, value):
        if isinstance(value, ndarray):
            wait()                              # CuPy looks whether it is 0; `a[...] = value` does not
        self[...] = value

    def reshape(self, *shape, order="C"):
        return _to_card(self._array.reshape(*shape, order=order))

    def transpose(self, *axes):
        return _to_card(self._array.transpose(*axes))

    def flatten(self):
        return _to_card(self._array.flatten())

    def copy(self, order="C"):
        return _to_card(self._array.copy(order))


def _host_key(key, shape):
    """An index for NumPy that reads what CuPy would: out of range it wraps. And whether there is an array in it."""
    keys = [asarray(k) if isinstance(k, list | np.ndarray | bool | np.bool_) else k
            for k in (key if isinstance(key, tuple) else (key,))]
    axes = [0 if k is None or k is Ellipsis else k.ndim if isinstance(k, ndarray) and k.dtype == bool else 1
            for k in keys]
    axis, host_keys = 0, []
    for k, n in zip(keys, axes, strict=True):
        if k is Ellipsis:
            axis += len(shape) - sum(axes)
        elif isinstance(k, ndarray) and k.dtype == bool:
            wait()                              # for the number of True, which the shape depends on; also to assign
            k = k._array
        elif isinstance(k, ndarray):
            if k.dtype.kind not in "iu":
                raise IndexError(f"arrays used as indices must be of integer or boolean type. (actual: {k.dtype})")
            k = k._array % shape[axis]
        axis += n
        host_keys.append(k)
    return tuple(host_keys), any(isinstance(k, ndarray) for k in keys)


def _garbage(array):
    """Memory that nobody has written to holds anything: a test is to see that it was read."""
    array[...] = np.nan if array.dtype.kind in "fc" else True if array.dtype == bool else np.iinfo(array.dtype).min + 3
    return array


class ufunc:
    """An elementwise function of arrays on the card and scalars, Python's or NumPy's; of no NumPy array, 0-d or not."""

    def __init__(self, function, name):
        self._function, self.__name__ = function, name

    def __call__(self, *args, out=None, dtype=None, casting="same_kind"):
        for arg in args:
            if not isinstance(arg, ndarray | np.generic) and type(arg) not in (bool, int, float, complex):
                raise TypeError(f"Unsupported type {type(arg)}")
        with np.errstate(all="ignore"):         # a card warns of nothing
            result = self._function(*map(_from_card, args), out=_from_card(out), dtype=dtype, casting=casting)
        return _to_card(result) if out is None else out

    def _only(self, method, *names):
        if self.__name__ not in names:
            raise NotImplementedError(f"`cupy_{self.__name__}.{method}` is not supported yet")

    def at(self, a, indices, b=None):
        self._only("at", "add", "maximum", "minimum")     # of floats
        key, _ = _host_key(indices, a.shape)
        self._function.at(a._array, key, asarray(b, a.dtype)._array)

    def reduce(self, array, axis=0, dtype=None, out=None, keepdims=False):
        self._only("reduce", "add", "multiply")
        return _to_card(self._function.reduce(array._array, axis, dtype, _from_card(out), keepdims))

    def accumulate(self, array, axis=0, dtype=None, out=None):
        self._only("accumulate", "add", "multiply")
        return _to_card(self._function.accumulate(array._array, axis, dtype, _from_card(out)))

    def reduceat(self, array, indices, axis=0, dtype=None, out=None):
        """Differences of the running sum, as in CuPy: in float32 they lose what the sum before them has rounded off."""
        self._only("reduceat", "add")
        rows, bounds = np.moveaxis(array._array, axis, 0), np.append(_from_card(indices), array.shape[axis])
        running = np.concatenate([np.zeros_like(rows[:1]), rows.cumsum(0, dtype)])
        single = (bounds[:-1] >= bounds[1:]).reshape(-1, *[1] * (rows.ndim - 1))
        sums = np.where(single, rows[bounds[:-1]], running[bounds[1:]] - running[bounds[:-1]])
        return _to_card(np.moveaxis(sums, 0, axis))


def matmul(a, b, out=None):
    if not isinstance(a, ndarray) or not isinstance(b, ndarray):
        raise TypeError(f"Unsupported type {type(a)} or {type(b)}")
    if out is not None and (not out.flags.c_contiguous or out.dtype != np.promote_types(a.dtype, b.dtype)):
        raise ValueError("out is not contiguous or of another dtype: CuPy would make an array and copy it there")
    result = np.matmul(a._array, b._array, out=_from_card(out))
    return _to_card(result) if out is None else out


def asarray(a, dtype=None, order=None, *, copy=None):
    return array(a, dtype, copy or False, order)


def array(obj, dtype=None, copy=True, order="K"):
    global uploads
    if isinstance(obj, ndarray):
        return obj.astype(dtype or obj.dtype, order or "K", copy=copy)
    if isinstance(obj, list | tuple) and any(isinstance(item, ndarray) for item in obj):
        return _to_card(np.stack([asarray(item, dtype)._array for item in obj]))
    result = np.array(obj, dtype, order=order or "K")
    uploads += result.ndim > 0          # a single number travels with the kernel's arguments
    return _to_card(result)


def asnumpy(a):
    return a.get() if isinstance(a, ndarray) else np.asarray(a)


def take(a, indices, axis=None):
    return _to_card(np.take(a._array, _from_card(indices), axis, mode="wrap"))


def take_along_axis(a, indices, axis):
    return a[_along_axis(a, indices, axis)]


def put_along_axis(arr, indices, values, axis):
    arr[_along_axis(arr, indices, axis)] = values


def _along_axis(a, indices, axis):
    """The index that CuPy makes of indices along an axis: each other axis counted through."""
    if not isinstance(indices, ndarray) or indices.ndim != a.ndim:
        raise TypeError("indices must be an array on the card, of as many axes")
    key = [_to_card(positions) for positions in np.indices(a.shape, sparse=True)]
    key[axis] = indices
    return tuple(key)


def where(condition, x=None, y=None):
    if x is None:
        return nonzero(condition)
    for operand in (condition, x, y):
        _from_card(operand)
    return _to_card(np.where(condition._array, _from_card(x), _from_card(y)))


def nonzero(a):
    wait()
    return _to_card(a._array.nonzero())


def repeat(a, repeats, axis=None):
    if not isinstance(repeats, int):
        wait()
    return _to_card(np.repeat(a._array, _from_card(repeats), axis))


def copyto(dst, src, casting="same_kind"):
    np.copyto(dst._array, _from_card(src), casting)


def empty(shape, dtype=float, order="C"):
    return ndarray(shape, dtype, order)


def empty_like(prototype, dtype=None, order="K"):
    result = _to_card(np.empty_like(prototype._array, dtype, order))
    _garbage(result._array)
    return result


def get_array_module(*args):
    return cupy if any(isinstance(arg, ndarray) for arg in args) else np


def _wrapped(name, parameters, waits=False):
    """NumPy's function of a name, for arrays on the card and with the parameters that CuPy's has."""
    parameters = parameters.split()
    numpys = getattr(np, name)

    def function(*args, **named):
        if "*" not in parameters and (len(args) > len(parameters) or not named.keys() <= set(parameters)):
            raise TypeError(f"cupy.{name} takes only {', '.join(parameters)}")
        if named.get("kind") not in (None, "stable"):
            raise ValueError("kind can only be None or 'stable'")
        if waits:
            wait()
        result = numpys(*map(_from_card, args), **{key: _from_card(value) for key, value in named.items()})
        return named["out"] if named.get("out") is not None else _to_card(result)
    return function


# CuPy's parameters, in its order as far as NumPy has the same order.
REDUCTIONS = {"sum": "a axis dtype out keepdims", "prod": "a axis dtype out keepdims", "max": "a axis out keepdims",
              "min": "a axis out keepdims", "mean": "a axis dtype out keepdims", "argmax": "a axis", "argmin": "a axis",
              "var": "a axis dtype out ddof keepdims", "std": "a axis dtype out ddof keepdims",
              "all": "a axis out keepdims", "any": "a axis out keepdims", "cumsum": "a axis dtype out",
              "cumprod": "a axis dtype out"}
METHODS = {"swapaxes": "a axis1 axis2", "squeeze": "a axis", "ravel": "a order", "clip": "a a_min a_max out",
           "argsort": "a axis kind", "argpartition": "a kth axis", "dot": "a b out", **REDUCTIONS}
FUNCTIONS = {"transpose": "a axes", "expand_dims": "a axis", "broadcast_to": "array shape", "stack": "tup axis out",
             "concatenate": "tup axis out", "split": "ary indices_or_sections axis", "tile": "A reps", "flip": "a axis",
             "roll": "a shift axis", "triu": "m k", "tril": "m k", "tri": "N M k dtype", "eye": "N M k dtype",
             "sort": "a axis kind", "partition": "a kth axis", "diff": "a n axis prepend append", "reshape": "a",
             "searchsorted": "a v side", "einsum": "*", "outer": "a b", "copy": "a order", "isclose": "a b rtol atol",
             "zeros": "shape dtype order", "ones": "shape dtype order", "full": "shape fill_value dtype order",
             "arange": "start stop step dtype", "zeros_like": "a dtype order", "ones_like": "a dtype order",
             "full_like": "a fill_value dtype order", **METHODS}
WAITING = {"flatnonzero": "a", "argwhere": "a", "bincount": "x weights minlength",
           "unique": "ar return_index return_inverse return_counts axis"}
UFUNCS = """negative positive absolute exp exp2 expm1 log log2 log1p sqrt square sin cos tanh sign floor ceil trunc
    reciprocal isnan isinf isfinite logical_not invert add subtract multiply divide true_divide floor_divide power
    remainder maximum minimum less less_equal greater greater_equal equal not_equal logical_and logical_or logical_xor
    bitwise_and bitwise_or bitwise_xor left_shift right_shift""".split()
OPERATORS = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
             "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
             "lshift": "left_shift", "rshift": "right_shift"}
COMPARISONS = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
               "ne": "not_equal", "neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
READS = {"item": np.ndarray.item, "tolist": np.ndarray.tolist, "tobytes": np.ndarray.tobytes, "__float__": float,
         "__int__": int, "__bool__": bool, "__repr__": repr, "__str__": str, "__format__": format}
CONSTANTS = """inf nan pi e newaxis bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64
    dtype generic integer floating""".split()


class Device:
    """A card, of the one there is."""

    def __init__(self, device=0):
        self.id = device

    def use(self):
        if self.id >= cuda.runtime.getDeviceCount():
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        return self

    def synchronize(self):
        wait()

    @property
    def mem_info(self):
        size = CARD_BYTES if _memory["size"] is None else _memory["size"]
        return size - _memory["used"], size

    def __repr__(self):
        return f"<CUDA Device {self.id}>"


class Stream:
    """The one queue of a card's work."""

    def synchronize(self):
        wait()


class MemoryPool:
    """What CuPy takes memory from. This one keeps nothing that could be given back."""

    def free_all_blocks(self):
        pass

    def used_bytes(self):
        return _memory["used"]

    def total_bytes(self):
        return _memory["used"]

    def get_limit(self):
        return 0


class CUDARuntimeError(RuntimeError):
    """What CuPy raises where the driver reports an error."""


def _module(name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    return module


POOL, STREAM = MemoryPool(), Stream()
SPECIAL = {"erf": ufunc(scipy.special.erf, "erf")}      # where CuPy looks for functions that are not its own
runtime = _module("cupy.cuda.runtime", getDeviceCount=lambda: 1, CUDARuntimeError=CUDARuntimeError,
                  getDeviceProperties=lambda device: {"name": b"a stand-in for a card"})
memory = _module("cupy.cuda.memory", OutOfMemoryError=OutOfMemoryError)
nvrtc = types.SimpleNamespace(getVersion=lambda: (13, 0))
cuda = _module("cupy.cuda", Device=Device, Stream=Stream, MemoryPool=MemoryPool, runtime=runtime, memory=memory,
               nvrtc=nvrtc, cublas=None, is_available=lambda: runtime.getDeviceCount() > 0,
               get_current_stream=lambda: STREAM)
cupy = _module(
    "cupy", ndarray=ndarray, ufunc=ufunc, cuda=cuda, asarray=asarray, array=array, asnumpy=asnumpy, take=take,
    where=where, take_along_axis=take_along_axis, put_along_axis=put_along_axis, nonzero=nonzero, repeat=repeat,
    copyto=copyto, empty=empty, empty_like=empty_like, matmul=matmul, get_array_module=get_array_module,
    get_default_memory_pool=lambda: POOL, shape=np.shape.__wrapped__, ndim=np.ndim.__wrapped__,
    size=np.size.__wrapped__,
    **{name: getattr(np, name) for name in CONSTANTS},
    **{name: ufunc(getattr(np, name), getattr(np, name).__name__) for name in UFUNCS},
    **{name: _wrapped(name, parameters) for name, parameters in FUNCTIONS.items()},
    **{name: _wrapped(name, parameters, waits=True) for name, parameters in WAITING.items()})
MODULES = {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.runtime": runtime, "cupy.cuda.memory": memory}


def _method(function, reverse=False, in_place=False):
    """A function as a method of its first argument, or for operators: of its second, or writing over its first."""
    if reverse:
        return lambda self, other: function(other, self)
    if in_place:
        return lambda self, other: function(self, other, out=self)
    return lambda self, *args, **named: function(self, *args, **named)


for name in [*METHODS, "take", "repeat", "nonzero"]:
    setattr(ndarray, name, _method(getattr(cupy, name)))
for name, function in COMPARISONS.items():
    setattr(ndarray, f"__{name}__", _method(getattr(cupy, function)))
for name, function in {**OPERATORS, "matmul": "matmul"}.items():
    setattr(ndarray, f"__{name}__", _method(getattr(cupy, function)))
    setattr(ndarray, f"__r{name}__", _method(getattr(cupy, function), reverse=True))
for name, function in OPERATORS.items():
    setattr(ndarray, f"__i{name}__", _method(getattr(cupy, function), in_place=True))
for name, read in READS.items():
    setattr(ndarray, name, lambda self, *args, read=read: read(self.get(), *args))

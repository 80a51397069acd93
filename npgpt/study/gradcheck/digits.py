"""Functions of NumPy on arrays of mpmath's numbers: the same lines with 60 digits instead of float64's 16.

An array of such numbers has dtype object. NumPy's own `@`, sums, reshapes and indexing work on it; `exactly` gives a
function stand-ins for the rest. A number refuses to become a float: what cannot be computed with all digits raises.
"""

import builtins
import functools
import importlib.util
import math
import random
from types import CodeType, FunctionType, ModuleType

import numpy as np

from npgpt.errors import UserError

ELEMENTWISE = """exp expm1 exp2 log log1p log2 log10 logaddexp sqrt cbrt sin cos tan arcsin arccos arctan arctan2 sinh
                 cosh tanh arcsinh arccosh arctanh hypot""".split()


class Floats(type):
    """The type of `Float`, which stands for float and np.float64: Float(x) has all digits, its dtype is object."""

    def __call__(cls, value=0.0):
        return numbers().mpf(value)

    def __instancecheck__(cls, value):
        return isinstance(value, float) or hasattr(value, "_mpf_")


Float = Floats("Float", (), {})


class StandIn:
    """Stands for a module, or for a function of NumPy: what it returns has all digits."""

    def __init__(self, original):
        self.original = original

    def __getattr__(self, name):
        return exactly(getattr(self.original, name))

    def __call__(self, *arguments, dtype=None, **named):
        if dtype is not None:
            named["dtype"] = object if np.dtype(dtype).kind == "f" else dtype
        return wide(self.original(*arguments, **named))


@functools.cache
def numbers():
    """Return the context of mpmath: `numbers().mpf(x)` makes a number of 60 digits. Raises UserError without mpmath."""
    if not importlib.util.find_spec("mpmath"):
        raise UserError('a check to 30 digits needs mpmath: pip install "npgpt[study]"')
    from mpmath import mp
    context = mp.clone()        # the precision of mpmath's own context belongs to the user
    context.dps = 60

    def refuse(value):
        raise TypeError("a number of 60 digits would be rounded to a float")

    def as_array(value, name):      # shape, item, sum, …, which NumPy's numbers have
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.array(value, dtype=object), name)

    context.mpf.__float__, context.mpf.__getattr__ = refuse, as_array
    context.pow, context.exp2, context.log2 = context.power, lambda x: 2 ** x, lambda x: context.log(x, 2)
    context.logaddexp = lambda x, y: context.log(context.exp(x) + context.exp(y))
    return context


def number(value):
    """Return a Python or NumPy number as mpmath's; anything else unchanged."""
    value = value.item() if isinstance(value, np.generic) else value
    return numbers().mpf(value) if isinstance(value, int | float) else value


def wide(value):
    """Return floats as mpmath's numbers, exactly: a number, an array, or those in a tuple or list. Others stay.

    An array of objects is changed in place, because it may be a view.
    """
    if type(value) in (tuple, list):
        return type(value)(map(wide, value))
    kind = value.dtype.kind if isinstance(value, np.ndarray) else "f" if isinstance(value, float | np.floating) else ""
    if kind == "O" and not all(hasattr(each, "_mpf_") for each in value.flat):
        value[...] = np.frompyfunc(number, 1, 1)(value)
    return np.frompyfunc(number, 1, 1)(value) if kind == "f" else value


def is_exact(value):
    """Return whether a value is a number of mpmath, or an array of objects that are numbers: `dx[x < 0] = 0` puts ints.
    """
    return hasattr(value, "_mpf_") or isinstance(value, np.ndarray) and value.dtype == object and all(
        isinstance(each, int | float) or hasattr(each, "_mpf_") for each in value.flat)


def rounded(value):
    """Return an array or a number as float64."""
    from mpmath.libmp import to_float
    return np.asarray(np.frompyfunc(lambda each: to_float(number(each)._mpf_), 1, 1)(value), np.float64)[()]


def elementwise(name, inputs=1):
    """Return a function of mpmath as a ufunc, NaN where the result is not real."""
    function = getattr(numbers(), name.replace("arc", "a"))

    def real(*values):
        result = function(*map(number, values))
        return result if hasattr(result, "_mpf_") else numbers().nan

    return np.frompyfunc(real, inputs, 1)


@functools.cache
def replacements():
    """Return {id of an object of NumPy, math or SciPy: what stands for it}."""
    table = {each: Float for each in (float, np.float16, np.float32, np.float64, np.longdouble)}
    table |= {getattr(np, name): elementwise(name, getattr(np, name).nin) for name in ELEMENTWISE}
    table |= {np.finfo: lambda dtype: np.finfo(np.float64), np.isnan: lambda x: np.not_equal(x, x),
              np.isinf: lambda x: np.equal(np.absolute(x), math.inf),
              np.isfinite: lambda x: np.less(np.absolute(x), math.inf)}

    def either(function, exact):        # math.sqrt(2.0) stays the float that the lesson computes with
        return lambda *x: (exact if any(hasattr(each, "_mpf_") for each in x) else function)(*x)

    table |= {each: either(each, getattr(numbers(), name)) for name, each in vars(math).items()
              if callable(each) and hasattr(numbers(), name)}
    if importlib.util.find_spec("scipy"):
        from scipy import special
        exp, log = table[np.exp], table[np.log]
        table |= {getattr(special, name): elementwise(name) for name in ("erf", "erfc")} | {
            special.expit: lambda x: 1 / (1 + exp(-x)),
            special.softmax: lambda x, axis=None: exp(x) / exp(x).sum(axis, keepdims=True),
            special.log_softmax: lambda x, axis=None: x - log(exp(x).sum(axis, keepdims=True)),
            special.logsumexp: lambda x, axis=None, keepdims=False: log(exp(x).sum(axis, keepdims=keepdims))}
    return {id(each): new for each, new in table.items()}


def exactly(value, known=None):
    """Return a function with stand-ins for NumPy, math and SciPy in its globals and imports; its code is the same.

    The functions that it calls by a global name get them too. For a module or a function of NumPy, return what stands
    for it; anything else unchanged. known: what is done. Raises TypeError for random numbers.
    """
    known = {} if known is None else known
    if value in (np.random, random) if isinstance(value, ModuleType) else isinstance(
            getattr(value, "__self__", value), np.random.Generator | np.random.RandomState | random.Random):
        raise TypeError("a function that draws random numbers cannot be checked")
    if id(value) in replacements() | known:
        return (replacements() | known)[id(value)]
    home = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None) or ""
    if isinstance(value, np.ufunc) or home.split(".")[0] in ("numpy", "scipy", "math") and (
            isinstance(value, ModuleType) or callable(value) and not isinstance(value, type)):
        return StandIn(value)
    if not isinstance(value, FunctionType):
        return value
    old = value.__globals__
    builtin = vars(builtins) | {"__import__": lambda *names: exactly(builtins.__import__(*names)), "float": Float}
    new = known.setdefault(id(old), old | {"__builtins__": builtin})
    parts = value.__name__, value.__defaults__, value.__closure__
    rebound = known[id(value)] = FunctionType(value.__code__, new, *parts)
    rebound.__kwdefaults__ = value.__kwdefaults__
    new |= {name: exactly(old[name], known) for name in used(value.__code__) & old.keys()}
    return rebound


def used(code):
    """Return the names that a code object and those inside it may look up in their globals."""
    return {*code.co_names}.union(*(used(each) for each in code.co_consts if isinstance(each, CodeType)))

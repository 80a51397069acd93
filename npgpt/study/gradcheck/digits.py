"""Run lines of NumPy on arrays of mpmath's numbers: with 60 digits instead of float64's 16.

Such an array has dtype object. NumPy's own `@`, sums, reshapes and indexing work on it; `exactly`
replaces the other functions. A number cannot be converted to a float, so a line that would lose
digits raises TypeError.
"""

import builtins
import copy
import functools
import importlib.util
from types import CellType, CodeType, FunctionType, ModuleType

import numpy as np

from npgpt.errors import UserError
from npgpt.study.lessons.own_state import STANDARD, float_arrays, holders, is_float_array

EXPONENTIAL = "exp expm1 log log1p log2 log10 logaddexp sqrt"
TRIGONOMETRIC = "sin cos tan asin acos atan sinh cosh tanh"
UFUNCS = f"{EXPONENTIAL} {TRIGONOMETRIC} erf expit".split()


class StandIn:
    """Replaces a module or function of NumPy, math or SciPy; its results have all digits."""

    def __init__(self, original):
        self.original = original

    def __getattr__(self, name):
        return exactly(getattr(self.original, name))

    def __call__(self, *arguments, **named):
        function = self.original
        name = getattr(self.original, "__name__", "").replace("arc", "a")
        # math.sqrt(2.0) stays a constant of the code
        if name in UFUNCS and any(map(is_exact, arguments)):
            function = np.frompyfunc(getattr(mp_context(), name), len(arguments), 1)
        return wide(function(*arguments, **named))


@functools.cache
def mp_context():
    """Return mpmath's context for 60 digits; its `mpf(x)` makes a number. Raises UserError without
    mpmath.
    """
    if not importlib.util.find_spec("mpmath"):
        raise UserError('a check to 30 digits needs mpmath: pip install "npgpt[study]"')
    from mpmath import mp

    context = mp.clone()  # the precision of mpmath's own context belongs to the user
    context.dps = 60

    def refuse(value):
        raise TypeError("a number of 60 digits would be rounded to a float")

    def as_array(value, name):  # shape, item, sum, …, which NumPy's numbers have
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.array(value, dtype=object), name)

    context.mpf.__float__ = refuse
    context.mpf.__getattr__ = as_array
    context.log2 = lambda x: context.log(x, 2)
    context.expit = lambda x: 1 / (1 + context.exp(-x))
    context.logaddexp = lambda x, y: context.log(context.exp(x) + context.exp(y))
    return context


def as_mpf(value):
    """Convert a Python or NumPy number to mpmath's; return anything else unchanged."""
    value = value.item() if isinstance(value, np.generic) else value
    return mp_context().mpf(value) if isinstance(value, int | float) else value


def wide(value):
    """Convert a float, or an array of floats, to mpmath's numbers, exactly; return anything else
    unchanged.
    """
    widened = np.frompyfunc(as_mpf, 1, 1)
    if isinstance(value, float | np.floating) or is_float_array(value):
        return widened(value)
    if is_object_array(value) and not all(hasattr(each, "_mpf_") for each in value.flat):
        value[...] = widened(value)  # in place: it may be a view
    return value


def is_object_array(value):
    return isinstance(value, np.ndarray) and value.dtype == object


def is_exact(value):
    """Return whether a value is a number of mpmath, or an array of them; after `dx[x < 0] = 0` some
    are Python's.
    """
    if not is_object_array(value):
        return hasattr(value, "_mpf_")
    return all(isinstance(each, int | float) or hasattr(each, "_mpf_") for each in value.flat)


def rounded(value):
    """Return an array or a number as float64."""
    from mpmath.libmp import to_float

    as_float = np.frompyfunc(lambda each: to_float(as_mpf(each)._mpf_), 1, 1)
    return np.asarray(as_float(value), np.float64)[()]


def exactly(value, known=None):
    """Return a function with the same code whose NumPy, math and SciPy are `StandIn`s, also in
    functions that it calls.

    For a module or a function of theirs, return its `StandIn`; for an object or a class of other
    people's, one with such methods; for anything else, the value itself. known: cache of what is
    finished.
    """
    known = {} if known is None else known
    if isinstance(value, type) and issubclass(value, float | np.floating):
        return mp_context().mpf  # as a dtype it means objects
    if is_own(value if isinstance(value, type) else type(value)):
        return exact_class(value, known) if isinstance(value, type) else exact_object(value, known)
    is_module = isinstance(value, ModuleType)
    if (is_module or callable(value)) and package_of(value) in ("numpy", "scipy", "math"):
        return StandIn(value)
    key = id(value)
    if not isinstance(value, FunctionType) or key in known:
        return known.get(key, value)
    old = value.__globals__
    codes = [value.__code__]
    builtin = {
        "float": mp_context().mpf,
        "isinstance": lambda value, kind: isinstance(wide(value), kind),
        "__import__": lambda *names: exactly(builtins.__import__(*names)),
    }
    new = known.setdefault(id(old), old | {"__builtins__": vars(builtins) | builtin})
    cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
    if owner := known.get(id(cells["__class__"].cell_contents) if "__class__" in cells else 0):
        cells["__class__"] = CellType(owner)  # of `super()`
    facts = value.__name__, value.__defaults__, tuple(cells.values())
    known[key] = FunctionType(value.__code__, new, *facts)
    known[key].__kwdefaults__ = value.__kwdefaults__
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        new |= {name: exactly(old[name], known) for name in {*code.co_names} & old.keys()}
    return known[key]


def package_of(value):
    """Return the package of a module, a function or a method."""
    if isinstance(value, ModuleType):
        name = value.__name__
    else:
        owner = type(getattr(value, "__self__", value))
        name = getattr(value, "__module__", None) or owner.__module__
    return name.split(".")[0]


def is_own(kind):
    """Return whether a class was written in Python, and not for NumPy, mpmath or Python itself."""
    is_written = any(isinstance(each, FunctionType) for each in vars(kind).values())
    return is_written and package_of(kind) not in {*STANDARD, "types", "npgpt"}


def exact_class(kind, known):
    """Return a subclass of a class whose methods compute `exactly`."""
    if id(kind) not in known:
        bases = [exact_class(each, known) for each in kind.__bases__ if is_own(each)]
        known[id(kind)] = new = type(kind.__name__, (*bases, kind), {})
        for name, value in vars(kind).items():
            if isinstance(value, FunctionType):
                setattr(new, name, exactly(value, known))
            elif isinstance(value, staticmethod | classmethod):
                setattr(new, name, type(value)(exactly(value.__func__, known)))
            elif isinstance(value, property) and value.fget:
                setattr(new, name, property(exactly(value.fget, known), value.fset))
    return known[id(kind)]


def exact_object(value, known):
    """Return a copy of an object, with the same arrays, whose methods and those of its parts
    compute `exactly`.
    """
    if id(value) not in known:
        known[id(value)] = new = copy.deepcopy(value, dict(float_arrays(value)))
        for _, part, parts in [*holders(new)]:
            if not isinstance(part, tuple | list):
                for key, each in parts.items():
                    if callable(each) and not is_own(type(each)):
                        parts[key] = exactly(each, known)
            if is_own(type(part)):
                part.__class__ = exact_class(type(part), known)
    return known[id(value)]

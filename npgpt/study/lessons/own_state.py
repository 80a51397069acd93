"""The state of users' code: arrays in objects, and what a run changes in globals and generators.

A layer that is a class keeps its weights and its cache in `self`. Each forward gets a fresh copy of
the object, in which the weights are the lesson's arrays.
"""

import contextlib
import copy
import inspect
import random
import sys
from types import FunctionType, ModuleType

import numpy as np

from npgpt.errors import UserError, describe

SEED = 7  # of NumPy's and Python's generators before each forward
# Objects of these packages are not looked into.
STANDARD = {*sys.stdlib_module_names, "numpy", "scipy", "mpmath"} - {"types"}
PLAIN = int, float, complex, str, bytes, type, type(None), ModuleType, FunctionType, np.generic


def parts_of(value):
    """Return the parts of a value as a dict: attributes, items of a dict or a list; None if it has
    none.
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, PLAIN) or type(value).__module__.split(".")[0] in STANDARD:
        return None
    if hasattr(value, "__dict__"):
        return vars(value)
    slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
    return {name: getattr(value, name) for name in slots if hasattr(value, name)}


def holders(value, path=(), seen=None):
    """Yield (path, value, its parts) for a value and for all that it holds, each once."""
    seen = {} if seen is None else seen
    parts = parts_of(value)
    if parts is None or id(value) in seen:
        return
    seen[id(value)] = value  # kept, so that no other object gets its id
    yield path, value, parts
    for key, each in [*parts.items()]:
        yield from holders(each, (*path, key), seen)


def follow(value, path):
    """Return the part of a value at a path of attributes, keys and indexes, or None."""
    for key in path:
        value = (parts_of(value) or {}).get(key)
    return value


def is_float_array(value):
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def float_arrays(value):
    """Return id -> a floating array that a value holds, each once."""
    return {id(each): each for _, each in arrays_in(value)}


def arrays_in(value, is_wanted=is_float_array):
    """Return [(path, floating array), …] of all that a value holds."""
    return [
        ((*path, key), each)
        for path, _, parts in holders(value)
        for key, each in parts.items()
        if is_wanted(each)
    ]


def with_arrays(value, arrays):
    """Return a deep copy of a value in which the arrays with these ids are others, wherever they
    are held.

    Raises UserError if it cannot be copied.
    """
    try:
        return copy.deepcopy(value, dict(arrays))
    except Exception as error:
        raise UserError(f"a {type(value).__name__} cannot be copied: {describe(error)}") from None


def globals_of(*functions):
    """Return the globals that functions read, and those that these read: functions, classes,
    objects of classes.
    """
    found, seen, left = {}, set(), [*functions]
    while left:
        value = left.pop()
        if isinstance(value, FunctionType):
            there = value.__globals__
            codes = [value.__code__]
            for code in codes:
                codes += filter(inspect.iscode, code.co_consts)
                new = {name: there[name] for name in code.co_names if name in there}
                left += [each for name, each in new.items() if name not in found]
                found |= new
        elif isinstance(value, type) and value not in seen:
            seen.add(value)
            left += [each for each in vars(value).values() if isinstance(each, FunctionType)]
        elif not isinstance(value, PLAIN):
            left.append(type(value))
    return found


@contextlib.contextmanager
def generators_kept():
    """Leave NumPy's and Python's generators as they are."""
    states = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(states[0])  # noqa: NPY002
        random.setstate(states[1])


class World:
    """What functions may change besides their arguments: globals, and the generators of random
    numbers.
    """

    def __init__(self, *functions):
        self.places = [each.__globals__ for each in functions]
        self.saved = {}
        self.names = globals_of(*functions)
        for name, value in self.names.items():
            is_number = isinstance(value, int | float)
            if is_number or not isinstance(value, PLAIN) and not callable(value):
                with contextlib.suppress(Exception):  # what cannot be copied is not restored
                    saved = copy.deepcopy(value)
                    if saved is not value or is_number:  # a logger is its own copy
                        self.saved[name] = saved

    def reset(self, *functions):
        """Seed the generators, and let the globals be as they were when the file had run.

        functions: others whose globals these are.
        """
        np.random.seed(SEED)  # noqa: NPY002  users' code draws from it
        random.seed(SEED)
        for name, saved in self.saved.items():
            if not isinstance(saved, int | float):
                restore(self.names[name], saved)
                continue
            for place in [*self.places, *(each.__globals__ for each in functions)]:
                if name in place:
                    place[name] = saved

    def keep_changed(self):
        """Forget the globals that have not changed: they need no restoring."""
        for name, saved in [*self.saved.items()]:
            now = next((place[name] for place in self.places if name in place), None)
            if content(saved) == content(now) and not is_generator(saved):
                del self.saved[name]


def is_generator(value):
    return isinstance(value, np.random.Generator | np.random.RandomState | random.Random)


def restore(value, saved):
    """Let an object be what its copy is, in place: others may hold it."""
    saved = copy.deepcopy(saved)
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = saved.bit_generator.state
    elif isinstance(value, np.random.RandomState):
        value.set_state(saved.get_state())
    elif isinstance(value, random.Random):
        value.setstate(saved.getstate())
    elif isinstance(value, np.ndarray):
        value[...] = saved
    elif isinstance(value, list):
        value[:] = saved
    elif isinstance(value, dict) or hasattr(value, "__dict__"):
        held = value if isinstance(value, dict) else vars(value)
        held.clear()
        held.update(saved if isinstance(value, dict) else vars(saved))


def content(value):
    """Return what a value and all that it holds say, to be compared by ==."""

    def said(each):
        if isinstance(each, np.ndarray):
            return each.dtype.str, each.shape, each.tobytes()
        if not isinstance(each, PLAIN):
            return type(each).__name__.replace("list", "tuple")
        return each if isinstance(each, int | float | str) else None

    found = [said(value)]
    for *_, parts in holders(value):
        found.append([(str(key), said(each)) for key, each in parts.items()])
    return found


def same(one, other):
    """Return whether two results of a function hold equal numbers."""
    return repr(content(one)) == repr(content(other))

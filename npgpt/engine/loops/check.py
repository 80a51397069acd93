"""Compare compiled loops with NumPy: a mistake of the compiler costs speed, never numbers.

At the first two calls with new kinds of arguments, and at the hundredth, the lines also run by
NumPy, on copies of the arguments. If anything differs, the lines run by NumPy from then on, and a
line on standard error says so. With NPGPT_CHECK_LOOPS=always in the environment every call is
compared, and a difference is an error; with =never none is.
"""

import itertools
import os
import threading

import numpy as np
from numba.core.errors import NumbaError

from npgpt.errors import say_once

LOCK = threading.Lock()
CALLS = 1, 2, 100  # that are compared
TOLERANCE = {4: 1e-4, 8: 1e-9}  # bytes of a float: of the largest number
WIDER = {4: np.float64, 8: np.longdouble}
TINY = np.finfo(float).tiny
NOISE = 16  # times NumPy's own error: a difference of two nearly equal numbers


class Checked:
    """A compiled function of a part of a function's lines, called like it. part: a `Segment`."""

    def __init__(self, part, function):
        self.part, self.function, self.calls = part, function, 0

    def __call__(self, *values):
        self.calls += 1
        when = os.environ.get("NPGPT_CHECK_LOOPS")
        if when == "always" or self.calls in CALLS and when != "never":
            return self.compared(values, when == "always")
        if self.calls > CALLS[-1]:  # from now on it is called without this
            self.part.replace(self, self.function)
        return self.function(*values)

    def compared(self, values, always):
        """Call the function, and return its results, or NumPy's if they differ."""
        copies = {id(each): copied(each) for each in values if isinstance(each, np.ndarray)}
        twins = [copies.get(id(each), each) for each in values]
        with np.errstate(all="ignore"):
            try:
                expected = self.part.plain(*twins)
            except Exception:  # NumPy raises it
                return self.part.plain(*values)
            changes = [*map(change, values, twins)]
            if any(changes) and overlap(values):  # the copies do not: these lines run by NumPy
                return self.function(*values)
            try:
                found = self.function(*values)
                right = self.are_right(found, expected, values, twins, changes)
            except NumbaError:  # not compiled at all
                raise
            except Exception:
                right = False
        return found if right else self.dropped(values, twins, expected, always)

    def are_right(self, found, expected, values, twins, changes):
        """Return whether the results are NumPy's, and the arguments hold the same afterwards.

        A difference is rounding if NumPy's own results are as far from those with more digits.
        """
        for i, name in enumerate(self.part.names):
            given_up = name in self.part.donated
            if not (given_up or alike(values[i], twins[i], changed_by=changes[i])):
                return False
        if all(map(alike, found, expected)):
            return True
        if any(changes):
            return False
        wide = self.part.plain(*map(widened, twins))
        return all(map(alike, found, expected, wide))

    def dropped(self, values, twins, expected, always):
        """Let NumPy run the lines from now on. Return its results, also those in the arguments."""
        line = (
            f"the compiled loop of {self.part.file}, line {self.part.lines[0].lineno}, computes "
            "something else than NumPy, which runs these lines from now on: please report this, "
            "with the lines"
        )
        if always:
            raise RuntimeError(line)
        with LOCK:  # another thread may be here, too
            say_once(line, print)
        self.function = self.part.plain
        self.part.replace(self, self.function)
        pairs = zip(values, twins, strict=True)
        arrays = [(each, twin) for each, twin in pairs if isinstance(each, np.ndarray)]
        for each, twin in arrays:
            if each.flags.writeable:
                each[...] = twin

        def of_arguments(result):
            """Return the argument, or the view of one, that stands for the same of its copy."""
            for each, twin in arrays:
                if result is twin or getattr(result, "base", None) is twin:
                    return each if result is twin else each.reshape(result.shape)
            return result

        return tuple(map(of_arguments, expected))


def copied(array):
    """Return a copy that can be written to only if the array can."""
    copy = array.copy(order="K")
    copy.flags.writeable = array.flags.writeable
    return copy


def is_float(value):
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.itemsize in WIDER


def widened(value):
    return value.astype(WIDER[value.itemsize]) if is_float(value) else value


def same_bits(value, twin):
    """Return whether an argument still holds what its copy holds; NaN counts as equal."""
    if not isinstance(value, np.ndarray) or np.array_equal(value, twin):
        return True
    return value.dtype.kind == "f" and np.array_equal(value, twin, equal_nan=True)


def change(value, twin):
    """Return how far an array is from its copy, at most; 0.0 if nothing was written to the copy."""
    if same_bits(value, twin):
        return 0.0
    finite = np.isfinite(value) & np.isfinite(twin)
    return float(np.abs(value - twin).max(where=finite, initial=TINY))


def alike(ours, theirs, wide=None, changed_by=None):
    """Return whether a result is NumPy's: dtype, shape, NaN, infinity, and numbers to rounding.

    changed_by: how much NumPy changed it, of which AdamW's step on the weights is a small part.
    """
    if changed_by is not None and same_bits(ours, theirs):
        return True
    arrays = np.ndarray | np.generic
    if not isinstance(theirs, arrays):
        return type(ours) is type(theirs) and (ours is theirs or ours == theirs or ours != ours)
    if not isinstance(ours, arrays) or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if not is_float(theirs):
        return np.array_equal(ours, theirs)
    finite = np.isfinite(theirs)
    error, part = np.abs(ours - theirs), TOLERANCE[theirs.itemsize]
    largest = np.abs(theirs).max(where=finite, initial=0)
    allowed = part * largest
    if changed_by is not None:
        allowed = part * changed_by + NOISE * np.finfo(theirs.dtype).eps * largest
    if error.max(initial=0) <= allowed:
        return True
    if wide is not None:
        allowed += NOISE * np.abs(theirs - wide).max(where=finite & np.isfinite(wide), initial=0)
    equal = (ours == theirs) | (ours != ours) & (theirs != theirs)
    return bool((equal | (error <= allowed)).all())


def overlap(values):
    """Return whether some array shares memory with another one."""
    arrays = {id(each): each for each in values if isinstance(each, np.ndarray)}
    return any(np.may_share_memory(*pair) for pair in itertools.combinations(arrays.values(), 2))

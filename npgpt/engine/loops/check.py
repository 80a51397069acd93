"""Compare compiled loops with NumPy: a mistake of the compiler costs speed, never numbers.

At the first two calls with new kinds of arguments, and at the hundredth, the lines also run by NumPy, on copies of the
arguments. If anything differs, the lines run by NumPy from then on, and a line on standard error says so. With
NPGPT_CHECK_LOOPS=always in the environment every call is compared, and a difference is an error; with =never none is.
"""

import itertools
import os

import numpy as np
from numba.core.errors import NumbaError

from npgpt.engine.sources import say_once
from npgpt.engine.statements import LOCK

CALLS = 1, 2, 100                       # that are compared
TOLERANCE = {4: 1e-4, 8: 1e-9}          # bytes of a float: of the largest number
WIDER = {4: np.float64, 8: np.longdouble}
NOISE = 16                              # times NumPy's own error: a difference of two nearly equal numbers


class Checked:
    """A compiled function of a part of a function's lines, called like it. part: a `Part`."""

    def __init__(self, part, function):
        self.part, self.function, self.calls = part, function, 0

    def __call__(self, *values):
        self.calls += 1
        when = os.environ.get("NPGPT_CHECK_LOOPS")
        if when == "always" or self.calls in CALLS and when != "never":
            return self.compared(values, when == "always")
        if self.calls > CALLS[-1]:              # from now on it is called without this
            for known in (self.part.known, self.part.patterns):
                known.update({key: self.function for key, each in list(known.items()) if each is self})
        return self.function(*values)

    def compared(self, values, always):
        """Call the function, and return its results, or NumPy's if they differ."""
        copies = {id(each): copied(each) for each in values if isinstance(each, np.ndarray)}
        twins = [copies.get(id(each), each) for each in values]
        with np.errstate(all="ignore"):
            try:
                expected = self.part.plain(*twins)
            except Exception:                   # NumPy raises it
                return self.part.plain(*values)
            changes = not all(np.array_equal(values[i], twin, equal_nan=twin.dtype.kind == "f")
                              for i, twin in enumerate(twins) if isinstance(twin, np.ndarray))
            if changes and overlap(values):     # the copies do not: these lines run by NumPy
                return self.function(*values)
            wide = None if changes else self.wider(twins)
            try:
                found = self.function(*values)
                after = [(each, twin) for name, each, twin in zip(self.part.names, values, twins, strict=True)
                         if name not in self.part.donated]
                right = same_results(found, expected, wide) and all(alike(*pair) for pair in after)
            except NumbaError:                  # not compiled at all
                raise
            except Exception:
                right = False
        return found if right else self.dropped(values, twins, expected, always)

    def wider(self, twins):
        """Return the lines' results computed with more digits, or None if that fails."""
        try:
            return self.part.plain(*[each.astype(WIDER[each.itemsize]) if is_float(each) else each for each in twins])
        except Exception:
            return None

    def dropped(self, values, twins, expected, always):
        """Let NumPy run the lines from now on; return its results, and leave in the arguments what it left there."""
        line = (f"the compiled loop of {self.part.file}, line {self.part.lines[0].lineno}, computes something else than "
                "NumPy, which runs these lines from now on: please report this, with the lines")
        if always:
            raise RuntimeError(line)
        with LOCK:              # another thread may be here, too
            say_once(line)
        self.function = self.part.plain
        self.part.patterns.update(dict.fromkeys(self.part.patterns, self.part.plain))
        self.part.known.update(dict.fromkeys(self.part.known, self.part.plain))
        self.part.build = lambda values: self.part.plain
        arrays = [(each, twin) for each, twin in zip(values, twins, strict=True) if isinstance(each, np.ndarray)]
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


def same_results(found, expected, wide):
    """Return whether all results are alike; a difference is rounding if NumPy's own distance from `wide` explains it."""
    wide = expected if wide is None else wide
    return len(found) == len(expected) and all(map(alike, found, expected, wide))


def alike(ours, theirs, wide=None):
    """Return whether a result is NumPy's: dtype, shape, NaN, infinities, and the numbers to a part of the largest."""
    if not isinstance(theirs, np.ndarray | np.generic):
        return type(ours) is type(theirs) and (ours is theirs or bool(ours == theirs) or ours != ours)
    if not isinstance(ours, np.ndarray | np.generic) or (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return False
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    equal = (ours == theirs) | (ours != ours) & (theirs != theirs)
    if equal.all() or not is_float(theirs):
        return bool(equal.all())
    finite = np.isfinite(theirs)
    allowed = TOLERANCE[theirs.itemsize] * np.abs(theirs).max(where=finite, initial=0)
    if wide is not None:
        allowed += NOISE * np.abs(theirs - wide).max(where=finite & np.isfinite(wide), initial=0)
    return bool((equal | (np.abs(ours - theirs) <= allowed)).all())


def overlap(values):
    """Return whether some array shares memory with another one."""
    arrays = {id(each): each for each in values if isinstance(each, np.ndarray)}
    return any(np.may_share_memory(*pair) for pair in itertools.combinations(arrays.values(), 2))

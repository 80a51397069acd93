"""Compare compiled loops with NumPy: a mistake of the compiler costs speed, never numbers.

At the first two calls with new kinds of arguments, and before the hundredth, the loop and NumPy's
lines both run on copies of the arguments. If anything differs, NumPy runs the lines from then on,
and a line on standard error says so. With NPGPT_CHECK_LOOPS=always in the environment every call is
compared, and a difference is an error; with =never none is.
"""

import os
import threading

import numpy as np
from numba.core.errors import NumbaError

from npgpt.errors import say_once

LOCK = threading.Lock()
CALLS = 1, 2, 100  # that are compared
TOLERANCE = {4: 1e-4, 8: 1e-9}  # bytes of a float: of the largest number
WIDER = {4: np.float64, 8: np.longdouble}
NOISE = 16  # times NumPy's own error: a difference of two nearly equal numbers


class Checked:
    """A compiled function of a part of a function's lines, called like it. part: a `Segment`."""

    def __init__(self, part, function):
        self.part, self.function, self.calls = part, function, 0

    def __call__(self, *values):
        self.calls += 1
        when = os.environ.get("NPGPT_CHECK_LOOPS")
        if when == "always" or self.calls in CALLS and when != "never":
            self.compare(values, when == "always")
        elif self.calls > CALLS[-1]:  # from now on it is called without this
            self.part.replace(self, self.function)
        return self.function(*values)

    def compare(self, values, always):
        """Let NumPy run the lines from now on if the function computes something else."""
        with np.errstate(all="ignore"):
            expected = self.outcome(self.part.plain, values)  # what NumPy raises, the caller gets
            try:
                found = self.outcome(self.function, values)
                before = [None] * len(self.part.results) + self.read_later(values)
                right = all(map(alike, found, expected, before))
                if not right:  # perhaps NumPy's own results are as inaccurate
                    wide = self.outcome(self.part.plain, values, widened)
                    right = all(map(alike, found, expected, before, wide))
            except NumbaError:  # not compiled at all
                raise
            except Exception:
                right = False
        if right:
            return
        message = (
            f"the compiled loop of {self.part.file}, line {self.part.lines[0].lineno}, computes "
            "something else than NumPy, which runs these lines from now on: please report this, "
            "with the lines"
        )
        if always:
            raise RuntimeError(message)
        with LOCK:  # another thread may be here, too
            say_once(message, print)
        self.part.replace(self, self.part.plain)
        self.function = self.part.plain

    def outcome(self, function, values, copied=np.copy):
        """Call a function with copies. Return its results, then the arguments as it leaves them."""
        copies = {id(each): copied(each) for each in values if isinstance(each, np.ndarray)}
        given = [copies.get(id(each), each) for each in values]
        return [*function(*given), *self.read_later(given)]

    def read_later(self, values):
        """Return the arguments whose memory the results may not take."""
        named = zip(self.part.names, values, strict=True)
        return [value for name, value in named if name not in self.part.donated]


def widened(array):
    """Return a copy with more digits, if it has floats."""
    return array.astype(WIDER.get(array.itemsize) if array.dtype.kind == "f" else array.dtype)


def alike(ours, theirs, before=None, wide=None):
    """Return whether a result is NumPy's: dtype, shape, NaN, infinity, and numbers to rounding.

    before: an argument as it was. Its change is compared: AdamW's step is small beside the weights.
    wide: NumPy's result with more digits, whose distance is rounding.
    """
    arrays = np.ndarray | np.generic
    if not isinstance(theirs, arrays):
        return type(ours) is type(theirs) and (ours is theirs or ours == theirs or ours != ours)
    if not isinstance(ours, arrays) or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    is_float = theirs.dtype.kind == "f"
    if np.array_equal(ours, theirs, equal_nan=is_float):
        return True
    if not is_float:
        return False
    change = theirs if before is None else theirs - before
    allowed = TOLERANCE[theirs.itemsize] * largest(change)
    if allowed:
        allowed += NOISE * np.finfo(theirs.dtype).eps * largest(theirs)
    if wide is not None:
        allowed += NOISE * largest(theirs - wide)
    return np.allclose(ours, theirs, rtol=0.0, atol=allowed, equal_nan=True)


def largest(array):
    """Return the largest finite magnitude, or 0."""
    return float(np.abs(array).max(where=np.isfinite(array), initial=0))

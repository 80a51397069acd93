"""Record what every line of a function assigns."""

import dataclasses

import numpy as np

from npgpt.engine.watch import Watch, watched
from npgpt.study.gradcheck.digits import is_exact
from npgpt.study.gradcheck.source import targets


@dataclasses.dataclass
class Assignment:
    """A value that a name got: a copy as it was then. line: of the statement, or of the `def` for
    an argument.
    """

    function: str
    line: int
    name: str
    value: np.ndarray


def is_floating(value):
    """Return whether a value can have a gradient: floating, an array or a number.

    It is of NumPy's or mpmath's.
    """
    is_numpys = isinstance(value, np.ndarray | np.floating) and value.dtype.kind == "f"
    return is_numpys or is_exact(value)


class Lines(Watch):
    """Watch also the lines that assign attributes: `self.x = …` assigns x."""

    targets = staticmethod(targets)


LINES = Lines()


class Recorded:
    """A function that records the `Assignment`s of its lines.

    function: to be called in its place.
    record: the assignments.
    last: name -> its last value, which is no copy: it has what later lines write to it.
    ran: the first lines of all statements that ran, in order.
    keep(value): whether to record a value.
    tree: see `watched`.
    """

    def __init__(self, function, keep=is_floating, tree=None, spelling=()):
        self.spelling = dict(spelling)
        self.name = function.__name__
        self.keep = keep
        self.record = []
        self.last = {}
        self.ran = []
        self.function = watched(function, self.watch, tree, LINES)

    def watch(self, line, name, value):
        self.ran.append(line)
        if name:
            self.last[name] = value
        if name and self.keep(value):
            called = self.spelling.get(name, name)
            self.record.append(Assignment(self.name, line, called, np.array(value)))
        return value

"""The line tracer: record what every executed line of a function assigns, without changing the function."""

import contextlib
import dataclasses
import sys

import numpy as np

from npgpt.study.gradcheck.digits import is_exact
from npgpt.study.gradcheck.source import read_source


@dataclasses.dataclass
class Assignment:
    """A value that a name got: a copy as it was then. line: of the statement, or of the `def` for an argument."""

    function: str
    line: int
    name: str
    value: np.ndarray


@contextlib.contextmanager
def recording(functions, in_place=False, keep=None):
    """Trace calls of functions in this thread; yield the list of `Assignment`s. A line that raises assigns nothing.

    in_place: record arrays that are changed in parts once more, with their last values. keep(value): whether to record
    a value, by default `is_floating`.
    """
    keep = keep or is_floating
    sources = {function.__code__: read_source(function) for function in functions}
    record = []

    def trace(frame, event, _):
        source = sources.get(frame.f_code)
        if source is None:
            return None
        pending = None      # the statement of the line in progress

        def add(line, name):
            value = frame.f_locals.get(name)
            if keep(value):
                record.append(Assignment(source.name, line, name, np.array(value)))

        def local(frame, event, _):
            nonlocal pending
            if event in ("line", "return"):
                current = source.statement_at(frame.f_lineno) if event == "line" else None
                if pending is not None and current is not pending:
                    for name in pending.targets:
                        add(pending.first, name)
                pending = current
                for name, line in source.filled.items() if in_place and event == "return" else ():
                    if all(each.first < line for each in source.statements if name in each.targets):
                        add(line, name)
            elif event == "exception":
                pending = None          # it assigned nothing
            return local

        for name in frame.f_code.co_varnames[:frame.f_code.co_argcount]:
            add(source.first, name)
        return local

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield record
    finally:
        sys.settrace(before)


def is_floating(value):
    """Return whether a value is a floating array or number of NumPy's or mpmath's, so that it can have a gradient."""
    return isinstance(value, np.ndarray | np.floating) and value.dtype.kind == "f" or is_exact(value)

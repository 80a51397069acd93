"""The line tracer: what every executed line of a function assigned, without a change to the function."""

import contextlib
import dataclasses
import inspect
import sys

import numpy as np

from npgpt.study.source import read_source


@dataclasses.dataclass
class Assignment:
    """One execution of a statement that assigned a floating array (or number) to a name.

    line: of the statement, or of the `def` for an argument; value: a copy as it was then, float64 or float32;
    call: which of the traced calls of that function it was in, from 0; same_as: the name of an earlier assignment of
    this call that holds the very same array, or None; in_place: it changed an array that was there before.
    """

    function: str
    file: str
    line: int
    name: str
    value: np.ndarray
    call: int = 0
    same_as: str | None = None
    in_place: bool = False


@contextlib.contextmanager
def recording(functions, limit=None):
    """Within it, calls of the functions, in this thread, are traced: yields the list of `Assignment`s, in order.

    functions: the functions themselves, decorated or not. limit: arrays of more values are recorded without their
    values (an empty array of the same dtype stands for them), None: every array is copied.
    """
    sources = {inspect.unwrap(function).__code__: read_source(function) for function in functions}
    record, calls = [], dict.fromkeys(sources, 0)

    def trace(frame, event, _):
        source = sources.get(frame.f_code)
        if source is None:
            return None
        call, calls[frame.f_code] = calls[frame.f_code], calls[frame.f_code] + 1
        held = {}           # name -> the array that it holds, to see which names share one
        pending = None      # the statement that the line in progress belongs to

        def add(line, name, in_place=False):
            value = frame.f_locals.get(name)
            if not is_floating(value):
                return
            same_as = next((other for other, array in held.items() if array is value and other != name), None)
            held[name] = value
            copy = np.array(value) if limit is None or np.size(value) <= limit else np.empty(0, value.dtype)
            record.append(Assignment(source.name, source.file, line, name, copy, call, same_as, in_place))

        def local(frame, event, _):
            nonlocal pending
            if event in ("line", "return") and pending is not None:
                current = source.statement_at(frame.f_lineno) if event == "line" else None
                if current is not pending or event == "return":
                    for name in dict.fromkeys(pending.targets):
                        add(pending.first, name, pending.in_place)
                    pending = None
            if event == "line":
                pending = source.statement_at(frame.f_lineno)
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
    """Whether a value is a floating array or NumPy number: what can have a gradient."""
    return isinstance(value, np.ndarray | np.floating) and value.dtype.kind == "f"

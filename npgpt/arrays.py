"""Arrays of NumPy and CuPy: where the numbers are, in which dtype, and how a mapping of them shows itself."""

import contextlib
import html
import sys

import numpy as np

# The dtype of the computation -> the dtype of the parameters. With tf32 and bfloat16 the factors of matmuls are rounded
# to 10 and 7 bits of mantissa, and summed in float32.
DTYPES = {"float32": "float32", "float64": "float64", "tf32": "float32", "bfloat16": "float32"}


def is_on_host(array):
    """Return whether a value is a NumPy array or a number, so not on a GPU."""
    return isinstance(array, np.ndarray | np.generic | int | float)


def to_host(array):
    """Return a NumPy array: the same one, or a copy of one on a GPU, which waits until that is computed."""
    return array if is_on_host(array) else array.get()


def to_scalar(value):
    """Return a scalar as a float; one on a GPU stays a 0-d array there, because reading it would wait for the GPU."""
    return float(value) if is_on_host(value) else value


def library_of(array):
    """Return the library of an array: numpy or cupy."""
    return np if is_on_host(array) else sys.modules["cupy"]


def on_device_of(array):
    """Return a context in which new arrays are made where this one is, on the host or on its GPU."""
    return contextlib.nullcontext() if is_on_host(array) else array.device


def table(last, row):
    """Return `__repr__` and `_repr_html_` of a mapping; row(mapping, name): shape, dtype, and what is called `last`."""
    def text(self):
        rows = [("name", "shape", "dtype", last), *((name, *row(self, name)) for name in list(self)[:60])]
        lines = ["{!s:23}  {!s:20}  {!s:7}  {}".format(*each).rstrip() for each in rows]
        rest = len(self) + 1 - len(rows)
        return "\n".join([f"{type(self).__name__}: {len(self)} arrays", *lines, *[f"… and {rest} more"] * (rest > 0)])

    def as_html(self):
        title, *lines = html.escape(repr(self)).splitlines()
        cells = ("<td>".join(filter(None, map(str.strip, line.split("  ")))) for line in lines)
        return f"{title}<table><tr><td>{'<tr><td>'.join(cells)}</table>"

    return text, as_html

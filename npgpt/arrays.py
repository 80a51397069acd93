"""Arrays of NumPy and CuPy: their device and dtype, and a table of them."""

import contextlib
import sys

import numpy as np

# The dtype of the computation -> the dtype of the parameters. With tf32 and bfloat16 the factors of
# matmuls are rounded to 10 and 7 bits of mantissa, and summed in float32.
DTYPES = {"float32": "float32", "float64": "float64", "tf32": "float32", "bfloat16": "float32"}


def is_on_host(array):
    """Return whether a value is a NumPy array or a number, so not on a GPU."""
    return isinstance(array, np.ndarray | np.generic | int | float)


def to_host(array):
    """Return a NumPy array: the same one, or a copy of one on a GPU, which waits until that is
    computed.
    """
    return array if is_on_host(array) else array.get()


def to_scalar(value):
    """Return a scalar as a float; one on a GPU stays a 0-d array there, because reading it would
    wait for the GPU.
    """
    return float(value) if is_on_host(value) else value


def library_of(array):
    """Return the library of an array: numpy or cupy."""
    return np if is_on_host(array) else sys.modules["cupy"]


def on_device_of(array):
    """Return a context in which new arrays are made where this one is, on the host or its GPU."""
    return contextlib.nullcontext() if is_on_host(array) else array.device


def broadcasts(shape, to):
    """Return whether an array of a shape is broadcast to another shape, which stays."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def table(last, row):
    """Return the `__repr__` of a mapping, a table.

    row(mapping, name) returns the shape, the dtype, and a value for the column `last`.
    """

    def text(self):
        names = list(self)[:60]
        rows = [("name", "shape", "dtype", last), *((name, *row(self, name)) for name in names)]
        lines = ["{!s:23}  {!s:20}  {!s:7}  {}".format(*each).rstrip() for each in rows]
        if len(self) > len(names):
            lines.append(f"… and {len(self) - len(names)} more")
        return "\n".join([f"{type(self).__name__}: {len(self)} arrays", *lines])

    return text

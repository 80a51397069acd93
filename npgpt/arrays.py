"""Arrays of NumPy and CuPy: where the numbers are, and in which dtype."""

import sys

import numpy as np

# The dtype of the computation -> the dtype of the parameters. With tf32 and bfloat16 the factors of matmuls are rounded
# to 10 and 7 bits of mantissa, and summed in float32 (through CuPy not those of attention).
DTYPES = {"float32": "float32", "float64": "float64", "tf32": "float32", "bfloat16": "float32"}


def is_on_host(array):
    """Whether an array is NumPy's, or a number: not on a GPU."""
    return isinstance(array, np.ndarray | np.generic | int | float)


def to_host(array):
    """Return the array as NumPy's; for one on a GPU, wait and copy."""
    return array if is_on_host(array) else array.get()


def number(value):
    """Return the value as a float; a 0-d array on a GPU unchanged, because reading it would wait for the GPU."""
    return float(value) if is_on_host(value) else value


def library_of(array):
    """Return the library of an array: numpy or cupy."""
    return np if is_on_host(array) else sys.modules["cupy"]

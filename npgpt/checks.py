"""Validate values from users and files: numbers, paths, arrays, sizes that fit into memory."""

import math
import os
import sys
from pathlib import Path

import numpy as np

from npgpt.errors import UserError, one_line

MOST = 2**31 - 1  # the largest count
MOST_THREADS = 1024
MOST_SEED = 2**63 - 1


def require(name, value, right, what):
    """Raise UserError "{name} must be {what}, not {value}" unless the condition `right` holds."""
    if not right:
        raise UserError(f"{name} must be {what}, not {shown(value)}")


def check_whole(name, value, least=0, most=MOST, or_none=False):
    """Raise UserError unless `value` is an integer from `least` to `most`."""
    is_whole = isinstance(value, int | np.integer) and least <= value <= most
    is_right = is_whole or or_none and value is None
    require(name, value, is_right, f"a whole number from {least:,} to {most:,}")


def is_real(value):
    """Return whether `value` is a finite number."""
    if isinstance(value, np.generic):  # beside a float32, the limit would be infinite
        value = value.item()
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def check_real(name, value, below=math.inf, above=-math.inf, or_none=False):
    """Raise UserError unless `value` is finite, at least 0, above `above` and below `below`."""
    right = or_none and value is None or is_real(value) and 0.0 <= value < below and value > above
    what = f"above {above:g}" if above >= 0.0 else "of at least 0"
    if below < math.inf:
        what += f" and below {below:g}"
    require(name, value, right, f"a finite number {what}")


def check_choice(name, value, choices):
    """Raise UserError unless `value` is one of some strings."""
    is_choice = isinstance(value, str) and value in choices
    require(name, value, is_choice, f"one of {', '.join(choices)}")


def plain_numbers(fields):
    """Convert the NumPy numbers in a frozen dataclass to Python numbers, which JSON can store."""
    for name, value in vars(fields).items():
        if isinstance(value, np.generic):
            object.__setattr__(fields, name, value.item())  # how dataclasses sets a frozen field


def as_floats(name, value, dtype, xp=np) -> np.ndarray:
    """Return numbers as an array of a floating-point dtype and of the library xp.

    Raises UserError for other values, and if finite numbers would become infinite.
    """
    value = xp.asarray(value)
    require(name, value, value.dtype.kind in "biuf", "numbers")
    with np.errstate(over="ignore"):
        floats = value.astype(dtype, copy=False)
    if not np.can_cast(value.dtype, dtype) and (np.isfinite(value) > np.isfinite(floats)).any():
        raise UserError(
            f"{name} has numbers that {np.dtype(dtype)} cannot hold: they would become infinite"
        )
    return floats


def check_path(name, value):
    """Raise UserError for an empty path: a shell's unset variable would be the current folder."""
    require(name, value, value != "", "the path of a file or folder, which must not be empty")


def writable_file(name, path):
    """Return the path of a file to be written. Raises UserError for a folder, and if its own folder
    is not writable.
    """
    out = Path(path)
    if out.is_dir() or not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise UserError(
            f"{out} cannot be written: choose a file in an existing, writable folder for {name}"
        )
    return out


def shown(value):
    """Return the repr of a value for an error message, at most 80 characters of it."""
    return one_line(repr(value), 80)


def check_memory(needed, what):
    """Raise UserError if `needed` bytes exceed the memory: otherwise the system would kill the
    process.
    """
    available = machine_memory()
    if needed > available:
        raise UserError(
            f"{what} would take {in_gigabytes(needed)}, but this machine has "
            f"{in_gigabytes(available)} of memory: choose a smaller model or batch"
        )


def machine_memory():
    """Return the memory of this machine in bytes; infinity if the system does not report it
    (Windows).
    """
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf


def in_gigabytes(size):
    """Format a number of bytes, as in 12.3 GB."""
    return f"{size / 1e9:,.1f} GB"

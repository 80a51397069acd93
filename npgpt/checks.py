"""What a user or a file may give: numbers in their range, paths, sizes that fit into this machine. Else one line."""

import math
import numbers
import os

import numpy as np

from npgpt.errors import UserError, one_line

MOST = 2**31 - 1        # of whole numbers that count something
MOST_THREADS = 1024
MOST_SEED = 2**63 - 1


def check(name, value, right, what):
    """Raise UserError that the value of `name` must be `what`, unless it is right."""
    if not right:
        raise UserError(f"{name} must be {what}, not {shown(value)}")


def check_whole(name, value, least=0, most=MOST):
    """Raise UserError unless `value` is an integer (a bool is none) from `least` to `most`."""
    right = isinstance(value, numbers.Integral) and not isinstance(value, bool) and least <= value <= most
    check(name, value, right, f"a whole number from {least:,} to {most:,}")


def is_real(value):
    """Whether `value` is a number that a float can hold: finite, no bool, not an integer of 400 digits."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def check_real(name, value, least=0.0, below=math.inf, above=-math.inf):
    """Raise UserError unless `value` is a finite number that is at least `least`, above `above` and below `below`."""
    right = is_real(value) and least <= value < below and value > above
    lower = f"above {above:g}" if above >= least else f"of at least {least:g}"
    check(name, value, right, f"a finite number {lower}" + ("" if below == math.inf else f" and below {below:g}"))


def plain_numbers(fields):
    """Turn the NumPy numbers among a frozen dataclass's fields into Python's, which JSON can hold."""
    for name, value in vars(fields).items():
        if isinstance(value, np.generic):
            object.__setattr__(fields, name, value.item())      # the way round `frozen` that dataclasses documents


def as_array(name, value):
    """`value` as a NumPy array; UserError where it is none, such as a list of rows of different lengths."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:        # TypeError: an array on a GPU
        raise UserError(f"{name} is no array ({one_line(error, 200)})") from None


def check_path(name, value):
    """Raise UserError unless `value` is a path, and one that a file can have."""
    right = isinstance(value, str | os.PathLike) and value != "" and "\0" not in os.fspath(value)
    check(name, value, right, "the path of a file or folder")


def shown(value):
    """A value as a message shows it: its repr, at most 80 characters of it."""
    try:
        return one_line(repr(value), 80)
    except ValueError:          # repr refuses integers of thousands of digits
        return "that"


def check_memory(needed, what):
    """Raise UserError where `needed` bytes are more than this machine's memory: it would be killed, not told."""
    available = machine_memory()
    if needed > available:
        raise UserError(f"{what} would take {in_gigabytes(needed)}, and this machine's memory has "
                        f"{in_gigabytes(available)}: choose a smaller model or batch")


def machine_memory():
    """The bytes of memory of this machine; infinite where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf


def in_gigabytes(size):
    """12.3 GB; of a size beyond all measure only that."""
    return f"{size / 1e9:,.1f} GB" if size < 1e18 else "more than a billion GB"

"""What is wrong with a gradient: common mistakes, recognised by their numbers.

Each test of `diagnose` asks: which small change makes the given gradient the right one?
"""

import dataclasses
import fractions
import inspect
import itertools

import numpy as np

from npgpt.study.gradcheck import errors

CLOSE = 1e-6        # relative; looser than the check itself, whose differences have an error of 1e-10


@dataclasses.dataclass
class Known:
    """What a wrong gradient is compared with, by name.

    gradients: the true ones, those of the inputs first; factors: the forward's arrays that are finite; terms: what the
    package's own backward assigns; numbers: of the forward; rows: how many rows the upstream gradient has; last_only: a
    gradient that keeps only the last of those that belong to one index.
    """

    gradients: dict[str, np.ndarray]
    factors: dict[str, np.ndarray]
    terms: dict[str, np.ndarray]
    numbers: dict[str, float]
    rows: int
    last_only: dict[str, np.ndarray]


def gather(truth, forward_record, backward_record):
    """The `Known` of a lesson's truth, and of the records of the package's own forward and backward."""
    lesson = truth.lesson
    gradients = {f"d{name}": gradient for name, gradient in truth.inputs.items()}
    for variable, gradient in zip(truth.variables, truth.gradients, strict=True):
        if gradient is not None:
            gradients.setdefault(f"d{variable.name}", gradient)
    constants = {name: value for name, value in lesson.constants.items() if isinstance(value, np.ndarray | float)}
    module = inspect.getmodule(lesson.forward)
    numbers = {name: value for name, value in {**vars(module), **constants}.items() if isinstance(value, float)}
    factors = {each.name: each.value for each in forward_record}
    factors |= {name: value for name, value in constants.items() if isinstance(value, np.ndarray)}
    factors = {name: value for name, value in factors.items() if np.isfinite(value).all()}     # a mask is -inf
    last_only = {}
    if "idx" in lesson.constants:
        for name, table in lesson.inputs.items():
            last_only[f"d{name}"] = np.zeros_like(table)
            if lesson.constants["idx"].max() < len(table) and truth.dy.shape[-1:] == table.shape[1:]:
                last_only[f"d{name}"][lesson.constants["idx"]] = truth.dy
    rows = truth.dy.size // truth.dy.shape[-1] if truth.dy.ndim else 1
    terms = {each.name: each.value for each in backward_record}
    return Known(gradients, factors, terms, numbers, rows, last_only)


def close(a, b):
    """Whether two arrays are equal except for rounding."""
    return np.shape(a) == np.shape(b) and errors(a, b)[1] <= CLOSE


@np.errstate(all="ignore")      # a wild gradient may overflow in the tests
def diagnose(name, given, true, known):
    """One sentence about a wrong gradient `name`, or None if the mistake is not recognised."""
    if np.shape(given) != np.shape(true):
        return by_shape(name, given, true, known)
    if not np.isfinite(given).all():
        return "it holds NaN or infinity"
    if not np.any(given):
        return "it is all zeros: the gradient was dropped"
    if name in known.last_only and close(given, known.last_only[name]):
        return "for an index that occurs several times, only the last gradient was kept: they have to be added"
    if close(-given, true):
        return "its sign is wrong"
    # A gradient that was passed on unchanged equals another line's gradient; what it lacks says more, so that is first.
    return (by_axes(given, true) or by_number(given, true, known) or by_factor(given, true, known)
            or by_term(name, given, true, known) or misplaced(name, given, known))


def by_shape(name, given, true, known):
    """A diagnosis of a gradient whose shape is wrong, or None."""
    given = np.asarray(given)
    shapes = f"its shape is {given.shape}, not {true.shape}"
    if given.ndim == true.ndim >= 2 and given.swapaxes(-1, -2).shape == true.shape:
        exact = close(given.swapaxes(-1, -2), true)
        return f"{shapes}: it is transposed" if exact else f"{shapes}: it seems to be transposed"
    extra = given.ndim - true.ndim
    if extra > 0 and given.shape[extra:] == true.shape:
        return f"{shapes}: the sum over the batch is missing" + (
            "" if close(given.sum(axis=tuple(range(extra))), true) else ", and something else")
    if given.size == true.size and close(given.reshape(true.shape), true):
        return f"{shapes}: the numbers are right, it needs a reshape"
    other = misplaced(name, given, known)
    return f"{shapes}: {other}" if other else None


def misplaced(name, given, known):
    """Whether it is the gradient of another variable."""
    for other, gradient in known.gradients.items():
        if other != name and close(given, gradient):
            return f"it is {other}: the gradient of another variable"
    return None


def by_axes(given, true):
    """Whether it has the right numbers with the axes in another order, or is reversed along one."""
    for axes in itertools.permutations(range(given.ndim)):
        moved = given.transpose(axes)
        if axes != tuple(range(given.ndim)) and close(moved, true):
            return "it is transposed" if axes[-2:] == (given.ndim - 1, given.ndim - 2) and given.ndim >= 2 \
                else f"its axes are in another order: transpose{axes} would be right"
    return None


def by_number(given, true, known):
    """Whether it is the true gradient times a number, and which number that is."""
    at = np.unravel_index(np.abs(true).argmax(), true.shape)
    if given[at] == 0.0 or true[at] == 0.0:
        return None
    missing = float(true[at] / given[at])
    if not close(given * missing, true):
        return None
    simple = fractions.Fraction(missing).limit_denominator(64)
    if abs(float(simple) - missing) <= CLOSE * abs(missing):
        factor = str(simple)
    else:
        names = {f"{before}{name}": value ** power for name, value in known.numbers.items() if value
                 for before, power in (("", 1), ("1 / ", -1))}
        factor = next((name for name, value in names.items() if abs(value - missing) <= CLOSE * abs(missing)),
                      f"{missing:.6g}")
    mean = f": {known.rows} rows, a mean instead of a sum" if missing == known.rows or simple == known.rows else ""
    return f"it is {1.0 / missing:.6g} times what it should be: the factor {factor} is missing{mean}"


def by_factor(given, true, known):
    """Whether an array is missing as a factor, or is one factor too many."""
    for name, factor in known.factors.items():
        # A factor of more dimensions than the gradient was summed over.
        if np.ndim(factor) > true.ndim or not fits(factor, true):
            continue
        if close(given * factor, true):
            return f"the factor {name} is missing"
        if close(given, true * factor):
            return f"it has the factor {name}, which does not belong there"
    return None


def fits(array, like):
    """Whether an array can be broadcast to the shape of another."""
    try:
        return np.broadcast_shapes(np.shape(array), like.shape) == like.shape
    except ValueError:
        return False


def by_term(name, given, true, known):
    """Whether a term that the package's backward adds is missing, or has the wrong sign."""
    for term, value in known.terms.items():
        if term == name or not fits(value, true) or not np.any(value):
            continue
        for sign in (1.0, -1.0):
            if close(given + sign * value, true):
                return f"the term {term} is missing" if sign > 0 else f"the term {term} does not belong there"
            if close(given + 2.0 * sign * value, true):
                return f"the term {term} has the wrong sign"
    return None

"""What is wrong with a gradient: common mistakes, recognised by their numbers alone.

Each test of `diagnose` asks: which small change makes the given gradient the true one? `repairs.py` asks the same of
the learner's line; this is for what that cannot read, such as a gradient that is computed in several lines.
"""

import fractions
import itertools

import numpy as np

from npgpt.study.gradcheck import relative_error
from npgpt.study.trace import is_floating

CLOSE = 1e-6        # relative: a recognised gradient is equal except for rounding


def close(a, b):
    """Whether two values are floating arrays that are equal except for rounding."""
    return is_floating(a) and is_floating(b) and relative_error(a, b) <= CLOSE


@np.errstate(all="ignore")      # a wild gradient may overflow in the tests
def diagnose(name, given, true, case):
    """One sentence about a wrong gradient `name` in a `Case`, or None if the mistake is not recognised."""
    if np.shape(given) != np.shape(true):
        return by_shape(given, true, case.sizes)
    if not np.isfinite(given).all():
        return "it holds NaN or infinity"
    if not np.any(given):
        return "it is all zeros"
    if lost_repeats(name, given, case):
        return "only the last gradient was kept of an index that occurs several times: they have to be added"
    if one_sided(given, case):
        return "it is a one-sided difference, whose error is of order h, not h^2"
    if close(-given, true):
        return "its sign is wrong"
    return (by_axes(given, true) or by_number(given, true, case) or by_factor(given, true, case)
            or by_term(name, given, true, case) or misplaced(name, given, case) or shuffled(given, true))


def by_shape(given, true, sizes):
    """What is wrong with a gradient of a wrong shape, at least the shape."""
    given = np.asarray(given)
    says = f"its shape is {given.shape}, not {np.shape(true)}"
    extra = given.ndim - np.ndim(true)
    if given.ndim >= 2 and close(given.swapaxes(-1, -2), true):
        return f"{says}: it is transposed"
    if given.size == np.size(true) and 1 in given.shape and extra > 0 and close(given.reshape(np.shape(true)), true):
        return f"{says}: an axis of length 1 is too much (keepdims?)"
    if given.size == np.size(true) and 1 in np.shape(true) and extra < 0 and close(given.reshape(np.shape(true)), true):
        return f"{says}: keepdims=True is missing"
    if given.size == np.size(true) and close(given.reshape(np.shape(true)), true):
        return f"{says}: the numbers are right, it needs a reshape"
    if extra > 0:
        for axes in itertools.combinations(range(given.ndim), extra):
            if close(given.sum(axis=axes), true):
                return f"{says}: the sum over {' and '.join(sizes.letter(given.shape[i]) for i in axes)} is missing"
    lost = [i for i in itertools.combinations(range(np.ndim(true)), -extra)] if extra < 0 else []
    for axes in lost:
        if close(given, true.sum(axis=axes)):
            return f"{says}: it was summed over {' and '.join(sizes.letter(true.shape[i]) for i in axes)} too"
    if given.ndim == np.ndim(true):
        for i in range(given.ndim):
            if given.shape[i] == 1 and close(given, true.sum(axis=i, keepdims=True)):
                return f"{says}: it was summed over {sizes.letter(true.shape[i])} too"
            if np.shape(true)[i] == 1 and close(given.sum(axis=i, keepdims=True), true):
                return f"{says}: the sum over {sizes.letter(given.shape[i])} is missing"
    return says


def lost_repeats(name, given, case):
    """Whether, of the gradients that belong to one index of the embedding, only the last was kept."""
    if name != "dwte" or case.lesson.name != "embedding":
        return False
    last = np.zeros_like(given)
    last[case.lesson.constants["idx"]] = case.dy
    return close(given, last)


def one_sided(given, case):
    """Whether in lesson 0 the derivative is (f(x + h) - f(x)) / h, or (f(x) - f(x - h)) / h."""
    if case.lesson.name != "difference":
        return False
    f, x, h = case.cache
    return any(close(given, case.dy * (f(x + step) - f(x)) / step) for step in (h, -h))


def misplaced(name, given, case):
    """Whether it is the gradient of another variable."""
    for other, values in case.gradients.items():
        if other != name and any(close(given, value) for value in values):
            return f"it is {other}, the gradient of another variable"
    return None


def shuffled(given, true):
    """Whether it has the right numbers at other places."""
    if np.size(true) > 1 and close(np.sort(given, axis=None), np.sort(true, axis=None)):
        return "it has the right numbers in another order: look at the reshape, the transpose or the index"
    return None


def by_axes(given, true):
    """Whether it has the right numbers with the axes in another order."""
    for axes in itertools.permutations(range(given.ndim)):
        if axes != tuple(range(given.ndim)) and close(given.transpose(axes), true):
            return f"its axes are in another order: transpose{axes} would be right"
    return None


def by_number(given, true, case):
    """Whether it is the true gradient times a number, and which number that is."""
    at = np.unravel_index(np.abs(true).argmax(), np.shape(true))
    if given[at] == 0.0 or true[at] == 0.0:
        return None
    times = float(given[at] / true[at])
    if not close(given / times, true):
        return None
    sizes = case.sizes
    named = {f"{letter} ({size})": size for letter, size in [("C", sizes.C), ("N", sizes.B * sizes.T), ("B", sizes.B),
             ("T", sizes.T), ("V", sizes.V), ("D", sizes.C // sizes.H)]}
    for name, size in named.items():
        if abs(times * size - 1.0) < CLOSE:
            return f"it is divided by {name}, which does not belong there"
        if abs(times / size - 1.0) < CLOSE:
            return f"it is multiplied by {name}, which does not belong there"
    numbers = case.numbers | {each: float(value) for each, value in case.factors.items() if np.ndim(value) == 0}
    for name, value in numbers.items():
        for power, says in ((-1, f"the factor {name} is missing"), (1, f"the factor {name} does not belong there"),
                            (-2, f"divided by {name} instead of multiplied"),
                            (2, f"multiplied by {name} instead of divided")):
            if value and abs(times / value ** power - 1.0) < CLOSE:
                return says
    simple = fractions.Fraction(times).limit_denominator(64)
    shown = str(simple) if abs(float(simple) / times - 1.0) < CLOSE else f"{times:.6g}"
    return f"it is {shown} times what it should be"


def by_factor(given, true, case):
    """Whether an array is missing as a factor, or is one factor too many."""
    for name, factor in case.factors.items():
        # A factor of more dimensions than the gradient was summed over.
        if np.ndim(factor) > np.ndim(true) or not fits(factor, true):
            continue
        if close(given * factor, true):
            return f"the factor {name} is missing"
        if close(given, true * factor):
            return f"the factor {name} does not belong there"
    return None


def fits(array, like):
    """Whether an array can be broadcast to the shape of another."""
    try:
        return np.broadcast_shapes(np.shape(array), np.shape(like)) == np.shape(like)
    except ValueError:
        return False


def by_term(name, given, true, case):
    """Whether a term that the package's backward adds is missing, or has the wrong sign."""
    for term, values in (case.gradients | case.helpers).items():
        value = values[-1]
        if term == name or not term.startswith("d") or not fits(value, true) or not np.any(value):
            continue
        for sign in (1.0, -1.0):
            if close(given + sign * value, true):
                return f"the term {term} is missing" if sign > 0 else f"the term {term} does not belong there"
            if close(given + 2.0 * sign * value, true):
                return f"the term {term} has the wrong sign"
    return None

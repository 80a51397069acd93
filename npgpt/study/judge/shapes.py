"""What is wrong with a gradient's shape or numbers, or with the shapes of an operation."""

import ast
import itertools
import math

import numpy as np

from npgpt.errors import describe
from npgpt.study.exercises.findings import Finding
from npgpt.study.gradcheck.check import compared, relative_error
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.gradcheck.verdicts import OK

CLOSE = 1e-6  # relative error of a gradient that is recognised
ROUNDED = 1e-3  # that of a constant with few digits


def close(a, b):
    """Return whether two values are floating arrays that are equal except for rounding."""
    return is_floating(a) and is_floating(b) and relative_error(a, b) <= CLOSE


def same(given, true):
    """Return whether a gradient is the true one, perhaps as rows.

    An axis of length 1 must not be missing.
    """
    if np.size(given) == np.size(true) and np.squeeze(given).shape != np.squeeze(true).shape:
        given = np.reshape(given, np.shape(true))
    return compared(given, true) == OK


def mistake_in_numbers(given, true):
    """Return the mistake that the numbers of a wrong gradient prove, as a `Finding`, or None."""
    if np.shape(given) != np.shape(true):
        return missing_step(given, true)
    if not np.any(given):
        return Finding("zero")
    error = relative_error(given, true)
    if error < ROUNDED:
        return Finding("rounded", [str(math.floor(-math.log10(error)))]) if error else None
    if factor := factor_of(given, true):
        return Finding("sign") if abs(factor + 1.0) < CLOSE else Finding("times", [f"{factor:.5g}"])
    is_sorted = np.size(true) > 1 and close(np.sort(given, axis=None), np.sort(true, axis=None))
    if is_sorted:
        return Finding("another order")
    wrong = np.argwhere(np.abs(given - true) > CLOSE * np.abs(true).max())
    axis = next((i for i, at in enumerate(wrong.T) if len({*at}) == 1 < np.shape(true)[i]), None)
    return None if axis is None else Finding("only index", [str(wrong[0, axis]), str(axis)])


def missing_step(given, true):
    """Return the step that is missing in a gradient of a wrong shape, as a `Finding`, or None."""
    extra = given.ndim - np.ndim(true)
    orders = itertools.permutations(range(given.ndim)) if given.ndim < 6 else ()
    if any(close(given.transpose(axes), true) for axes in orders):
        return Finding("axes order")
    if given.size == np.size(true) and close(given.reshape(np.shape(true)), true):
        if 1 in given.shape and extra > 0:
            return Finding("extra axis")
        return Finding("lost axis" if extra < 0 and 1 in np.shape(true) else "needs a reshape")
    keep = extra == 0  # a sum that keeps its axis
    for axes in itertools.combinations(range(max(given.ndim, np.ndim(true))), abs(extra) or 1):
        for kind, whole, part in (("summed over", true, given), ("sum missing", given, true)):
            if whole.ndim >= part.ndim and close(part, whole.sum(axis=axes, keepdims=keep)):
                return Finding(kind, [" and ".join(map(str, axes))])
    return None


def factor_of(given, true):
    """Return the constant ratio of a gradient to the true one; 0.0 if it is not constant."""
    is_zero = np.abs(true) <= CLOSE * np.abs(true).max(initial=0.0)
    if (
        given.shape != true.shape
        or true.size < 2
        or is_zero.all()
        or not np.isfinite(given).all()
        or np.abs(given[is_zero]).max(initial=0.0) > CLOSE
    ):
        return 0.0
    ratios = given[~is_zero] / true[~is_zero]
    return float(ratios.mean()) if np.ptp(ratios) <= CLOSE * abs(ratios.mean()) else 0.0


def value_of(node, names):
    """Return the value of an expression, or the exception that it raises."""
    try:
        return eval(ast.unparse(node), dict(names))
    except Exception as error:
        return error


def clash(statement, names, raised):
    """Return a `Finding` about the innermost operation of a statement whose shapes do not fit.

    raised: what the statement has raised, as text; None if no operation alone raises the same.
    """
    for node in reversed([*ast.walk(statement)]):
        error = value_of(node, names) if isinstance(node, ast.BinOp) else None
        if not isinstance(error, TypeError | ValueError) or describe(error) != raised:
            continue
        a, b = value_of(node.left, names), value_of(node.right, names)
        if a is None or b is None:
            missing = node.left if a is None else node.right
            return Finding("is None", [ast.unparse(node), ast.unparse(missing)])
        are_arrays = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
        if are_arrays and isinstance(error, ValueError):
            return Finding("clash", [ast.unparse(node), f"{a.shape}", f"{b.shape}"])
    return None

"""What is wrong with the shape or the numbers of a gradient, or with the two shapes of an operation."""

import ast
import itertools

import numpy as np

from npgpt.study.exercises.findings import Finding
from npgpt.study.gradcheck.check import relative_error
from npgpt.study.gradcheck.trace import is_floating

EXACT = 1e-9        # relative error of a right result: any order of the operations is far below it
CLOSE = 1e-6        # of a gradient that is recognised


def close(a, b):
    """Whether two values are floating arrays that are equal except for rounding."""
    return is_floating(a) and is_floating(b) and relative_error(a, b) <= CLOSE


def told(given, true, sizes):
    """What the numbers of a wrong gradient alone say of the mistake, as a `Finding`, or None."""
    if np.shape(given) != np.shape(true):
        return missing_step(given, true, sizes)
    if not np.any(given):
        return Finding("zero")
    is_sorted = np.size(true) > 1 and close(np.sort(given, axis=None), np.sort(true, axis=None))
    return Finding("another order") if is_sorted else None


def missing_step(given, true, sizes):
    """The step that is missing in a gradient of a wrong shape, as a `Finding`, or None."""
    extra = given.ndim - np.ndim(true)
    if given.ndim >= 2 and close(given.swapaxes(-1, -2), true):
        return Finding("is transposed")
    if extra == 0 and given.ndim < 6 and any(close(given.transpose(axes), true)
                                             for axes in itertools.permutations(range(given.ndim))):
        return Finding("axes order")
    if given.size == np.size(true) and close(given.reshape(np.shape(true)), true):
        if 1 in given.shape and extra > 0:
            return Finding("keepdims")
        return Finding("keepdims missing" if extra < 0 and 1 in np.shape(true) else "needs a reshape")
    keep = extra == 0       # a sum that keeps its axis
    for axes in itertools.combinations(range(max(given.ndim, np.ndim(true))), abs(extra) or 1):
        if extra <= 0 and close(given, true.sum(axis=axes, keepdims=keep)):
            return Finding("summed over", [" and ".join(sizes.letter(true.shape[i]) for i in axes)])
        if extra >= 0 and close(given.sum(axis=axes, keepdims=keep), true):
            return Finding("sum missing", [" and ".join(sizes.letter(given.shape[i]) for i in axes)])
    return None


def pattern(given, true):
    """What a wrong gradient of the right shape has in common with the true one, as a `Finding`, or None."""
    difference, ratio = given - true, given / np.where(true == 0.0, np.nan, true)       # no condition holds for NaN
    if np.ptp(ratio) <= CLOSE * abs(ratio.flat[0]):
        return Finding("times", [f"{ratio.flat[0]:.5g}"])
    wrong = np.abs(difference) > CLOSE * np.abs(true).max()
    for axis in range(true.ndim):
        rest = tuple(i for i in range(true.ndim) if i != axis)
        if true.shape[axis] in (1, true.size):
            continue
        by_index = wrong.any(axis=rest)
        for kind, indexes in (("wrong at", np.flatnonzero(by_index)), ("right at", np.flatnonzero(~by_index))):
            if len(indexes) == 1:
                return Finding(kind, [f"{indexes[0]}", f"{axis}"])
        if np.ptp(ratio, axis=rest).max() <= CLOSE * np.abs(ratio).max():
            return Finding("times along", [f"{axis}"])
        if np.ptp(difference, axis=axis).max() <= CLOSE * np.abs(difference).max():
            return Finding("off by", [f"{axis}"])
    return None


def clash(statement, names):
    """A `Finding` about the innermost operation of a statement whose shapes do not fit, or None."""
    signs = {ast.MatMult: "@", ast.Mult: "*", ast.Add: "+", ast.Sub: "-", ast.Div: "/"}

    def value(node):
        return eval(compile(ast.fix_missing_locations(ast.Expression(node)), "<part>", "eval"), dict(names))

    for node in reversed([*ast.walk(statement)]):
        if not isinstance(node, ast.BinOp) or type(node.op) not in signs:
            continue
        try:
            left, right = value(node.left), value(node.right)
        except Exception:
            continue
        for side, operand in ((node.left, left), (node.right, right)):
            if operand is None:
                return Finding("is None", [ast.unparse(node), ast.unparse(side)])
        if not all(isinstance(operand, np.ndarray | np.number | float) for operand in (left, right)):
            continue
        try:
            value(node)
        except ValueError:
            a, b = np.shape(left), np.shape(right)
            pairs = [*zip(reversed(a), reversed(b), strict=False)]
            if isinstance(node.op, ast.MatMult) and len(a) > 1 and len(b) > 1:
                pairs = [(a[-1], b[-2])] if a[-1] != b[-2] else pairs[2:]
            i, j = next(((i, j) for i, j in pairs if i != j and (pairs[1:] == [] or 1 not in (i, j))), (a, b))
            return Finding("clash", [ast.unparse(node.left), f"{a}", signs[type(node.op)], ast.unparse(node.right),
                                     f"{b}", f"{i}", f"{j}"])
        except Exception:
            continue
    return None

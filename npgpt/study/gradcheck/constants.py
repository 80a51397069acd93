"""Whether a gradient is wrong only because a constant in the code is rounded, such as 0.7978845608
for sqrt(2 / pi).

Then other values of the constants, less than one unit of their last digit away, make it right. They
are fitted to the errors along some random directions, and have to make it right along others, too.
"""

import ast
import copy
import dataclasses
import importlib.util
from decimal import Decimal

import numpy as np

from npgpt.engine.watch import tree_in_file, watched
from npgpt.study.gradcheck.digits import is_exact, rounded, wide
from npgpt.study.gradcheck.measure import STEP, derivative, exact, upstream, weighted_sum

FEW_DIGITS = 4  # a shorter number is meant as it is
# From a constant to its exact value, in units of its last digit: half if rounded, one if truncated.
UNITS = -0.501, 0.999
ROUGH_ENTRY = 1e-6  # error of a single entry, relative to it
FITTED = 1e-3  # of the error, at most, that the fitted constants may leave


def rounded_constants(lesson, names):
    """Return the constants, as "0.0447 (line 9)", whose rounding explains the wrong gradients of
    some inputs; or [].
    """
    if importlib.util.find_spec("mpmath"):
        try:
            lesson = exact(lesson)
            residuals(lesson, names, 0, 1)
        except Exception:
            return []
    mine, theirs = constants_of(lesson.backward), constants_of(lesson.forward)
    shared = {each.value for each in mine} & {each.value for each in theirs}
    found = [each for each in mine if each.value not in shared]
    side = "backward" if found else "forward"
    found = found or [each for each in theirs if each.value not in shared]
    moved = fitted(lesson, side, found, names) if found else None
    return (
        []
        if moved is None
        else [
            f"{constant.value!r} (line {constant.lineno})"
            for constant, by in zip(found, moved, strict=True)
            if abs(by) > FITTED
        ]
    )


def constants_of(function):
    """Return the numbers in a function's lines that may be rounded, as nodes of its tree."""
    return [
        node
        for node in ast.walk(tree_in_file(function.__code__))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, float)
        and FEW_DIGITS <= len(Decimal(repr(node.value)).as_tuple().digits)
    ]


def with_constants(function, nodes, moved):
    """Return a function in which some numbers are moved. moved: by how many units of their last
    digits.
    """
    by = {(node.lineno, node.col_offset): amount for node, amount in zip(nodes, moved, strict=True)}
    tree = copy.deepcopy(tree_in_file(function.__code__))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and (node.lineno, node.col_offset) in by:
            unit = 10.0 ** Decimal(repr(node.value)).as_tuple().exponent
            node.value += float(by[node.lineno, node.col_offset]) * unit
    return watched(function, lambda line, name, value: value, tree)


def fitted(lesson, side, nodes, names):
    """Return the units by which the constants have to be moved for a right gradient; None if that
    is no rounding.
    """

    def errors(moved, first):
        function = with_constants(getattr(lesson, side), nodes, moved)
        return residuals(
            dataclasses.replace(lesson, **{side: function}), names, first, len(nodes) + 2
        )

    moved = np.zeros(len(nodes))
    start = errors(moved, 0)
    for _ in range(2):  # Newton's method: the errors are nearly linear in the constants
        here = errors(moved, 0)
        slopes = np.array(
            [(errors(moved + 0.1 * unit, 0) - here) / 0.1 for unit in np.eye(len(nodes))]
        )
        moved = moved - np.linalg.lstsq(slopes.T, here, rcond=1e-9)[0]
        signs = np.sign([node.value for node in nodes])
        if not ((UNITS[0] < signs * moved) & (signs * moved < UNITS[1])).all():
            return None
    left = np.linalg.norm(errors(moved, 100)) / np.linalg.norm(errors(0 * moved, 100))
    return moved if left < FITTED and np.linalg.norm(start) else None


def all_digits(lesson, name):
    """Return whether also the small entries of an input's gradient are right, each in relation to
    itself.
    """
    lesson = exact(lesson)
    y, cache = lesson.run_forward(lesson.inputs)
    given = np.abs(rounded(lesson.run_backward(upstream(lesson, y), cache)[f"d{name}"]))
    least = given[given > 0].min(initial=1.0) * 1e-9
    direction = least / np.maximum(given, least)  # along it each entry counts alike
    [error] = residuals(lesson, [name], 0, 1, direction)
    return abs(error) <= ROUGH_ENTRY * (given * direction).sum()


def residuals(lesson, names, first, count, weight=1.0):
    """Return the errors of gradients along random directions. first: their seed; count: how many
    for each input.
    """
    y, cache = lesson.run_forward(lesson.inputs)
    dy = upstream(lesson, y)
    gradients = lesson.run_backward(dy, cache)
    found = []
    for seed in range(first, first + count):
        rng = np.random.default_rng(seed)
        for name in names:
            direction = weight * rng.standard_normal(np.shape(lesson.inputs[name]))
            is_wide = is_exact(lesson.inputs[name])
            direction = wide(direction) if is_wide else direction

            def output(change, name=name):
                inputs = lesson.inputs | {name: lesson.inputs[name] + change}
                return weighted_sum(upstream(lesson, y), lesson.run_forward(inputs)[0])

            true = derivative(output, direction, wide(1e-12) if is_wide else STEP)
            error = (gradients[f"d{name}"] * direction).sum() - true
            found.append(float(rounded(error) if is_wide else error))
    return np.array(found)

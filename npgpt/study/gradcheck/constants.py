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
from npgpt.study.gradcheck.measure import STEP, derivative, exact, output_of, run_once

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
    backward, forward = constants_of(lesson.backward), constants_of(lesson.forward)
    shared = {each.value for each in backward} & {each.value for each in forward}
    side, nodes = "backward", [each for each in backward if each.value not in shared]
    if not nodes:
        side, nodes = "forward", [each for each in forward if each.value not in shared]
    moved = fitted(lesson, side, nodes, names) if nodes else []
    pairs = zip(nodes, moved, strict=False)
    return [f"{each.value!r} (line {each.lineno})" for each, by in pairs if abs(by) > FITTED]


def constants_of(function):
    """Return the numbers in a function's lines that may be rounded, as nodes of its tree."""
    return constants_in(tree_in_file(function.__code__))


def constants_in(tree):
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, float)
        and FEW_DIGITS <= len(Decimal(repr(node.value)).as_tuple().digits)
    ]


def with_constants(function, nodes, moved):
    """Return a function in which some numbers are moved. moved: by how many units of their last
    digits.
    """
    places = [(node.lineno, node.col_offset) for node in nodes]
    units = dict(zip(places, moved.tolist(), strict=True))
    tree = copy.deepcopy(tree_in_file(function.__code__))
    for node in constants_in(tree):
        unit = 10.0 ** Decimal(repr(node.value)).as_tuple().exponent
        node.value += units.get((node.lineno, node.col_offset), 0.0) * unit
    return watched(function, lambda line, name, value: value, tree)


def fitted(lesson, side, nodes, names):
    """Return the units by which the constants have to be moved for a right gradient; [] if that
    is no rounding.
    """

    def errors(moved, first):
        function = with_constants(getattr(lesson, side), nodes, moved)
        changed = dataclasses.replace(lesson, **{side: function})
        return residuals(changed, names, first, len(nodes) + 2)

    signs = np.sign([node.value for node in nodes])
    moved = np.zeros(len(nodes))
    for _ in range(2):  # Newton's method: the errors are nearly linear in the constants
        here = errors(moved, 0)
        slopes = [(errors(moved + 0.1 * unit, 0) - here) / 0.1 for unit in np.eye(len(nodes))]
        moved = moved - np.linalg.lstsq(np.transpose(slopes), here, rcond=1e-9)[0]
        if not ((UNITS[0] < signs * moved) & (signs * moved < UNITS[1])).all():
            return []
    left = np.linalg.norm(errors(moved, 100)) / np.linalg.norm(errors(0 * moved, 100))
    return moved if left < FITTED else []


def all_digits(lesson, name):
    """Return whether also the small entries of an input's gradient are right, each in relation to
    itself.
    """
    lesson = exact(lesson)
    given = np.abs(rounded(run_once(lesson)[2][f"d{name}"]))
    least = given[given > 0].min(initial=1.0) * 1e-9
    direction = least / np.maximum(given, least)  # along it each entry counts alike
    [error] = residuals(lesson, [name], 0, 1, direction)
    return abs(error) <= ROUGH_ENTRY * (given * direction).sum()


def residuals(lesson, names, first, count, weight=1.0):
    """Return the errors of gradients along random directions. first: their seed; count: how many
    for each input.
    """
    _, dy, gradients = run_once(lesson)
    found = []
    for seed in range(first, first + count):
        rng = np.random.default_rng(seed)
        for name in names:
            value, gradient = lesson.inputs[name], gradients[f"d{name}"]
            direction = weight * rng.standard_normal(np.shape(value))
            step = STEP
            if is_exact(value):
                direction, step = wide(direction), wide(1e-12)
            true = derivative(output_of(lesson, name, dy), direction, step)
            found.append((gradient * direction).sum() - true)
    found = np.array(found)
    return rounded(found) if is_exact(found) else found

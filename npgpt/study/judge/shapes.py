"""What is wrong with the shape of a gradient, or with the two shapes of an operation, in words."""

import ast
import itertools

import numpy as np

from npgpt.study.gradcheck.check import relative_error
from npgpt.study.gradcheck.trace import is_floating

EXACT = 1e-9        # relative error of a right result: any order of the operations is far below it
CLOSE = 1e-6        # of a gradient that is recognised


def close(a, b):
    """Whether two values are floating arrays that are equal except for rounding."""
    return is_floating(a) and is_floating(b) and relative_error(a, b) <= CLOSE


def by_shape(given, true, sizes):
    """What is wrong with a gradient of a wrong shape: at least the shape, at best the missing step."""
    given = np.asarray(given)
    says = f"its shape is {given.shape}, not {np.shape(true)}"
    extra = given.ndim - np.ndim(true)
    if given.ndim >= 2 and close(given.swapaxes(-1, -2), true):
        return f"{says}: it is transposed"
    if given.size == np.size(true) and close(given.reshape(np.shape(true)), true):
        if extra > 0 and 1 in given.shape:
            return f"{says}: extra axis of length 1 (keepdims?)"
        if extra < 0 and 1 in np.shape(true):
            return f"{says}: keepdims=True is missing"
        return f"{says}: the numbers are right, it needs a reshape"
    keep = extra == 0       # a sum that keeps its axis
    for axes in itertools.combinations(range(max(given.ndim, np.ndim(true))), abs(extra) or 1):
        if extra <= 0 and close(given, true.sum(axis=axes, keepdims=keep)):
            return f"{says}: it was summed over {' and '.join(sizes.letter(true.shape[i]) for i in axes)} too"
        if extra >= 0 and close(given.sum(axis=axes, keepdims=keep), true):
            return f"{says}: the sum over {' and '.join(sizes.letter(given.shape[i]) for i in axes)} is missing"
    return says


def clash(statement, names):
    """The innermost operation of a statement whose shapes do not fit, in words; None if there is none."""
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
                return f"`{ast.unparse(node)}`, but {ast.unparse(side)} is None here"
        if not all(isinstance(operand, np.ndarray | np.number | float) for operand in (left, right)):
            continue
        try:
            value(node)
        except ValueError:
            a, b = np.shape(left), np.shape(right)
            says = f"{ast.unparse(node.left)} {a} {signs[type(node.op)]} {ast.unparse(node.right)} {b}"
            if isinstance(node.op, ast.MatMult) and len(a) > 1 and len(b) > 1 and a[-1] != b[-2]:
                return f"{says}: {a[-1]} is not {b[-2]}"
            pairs = [(i, j) for i, j in zip(reversed(a), reversed(b), strict=False) if i != j and 1 not in (i, j)]
            return f"{says}: {pairs[0][0]} is not {pairs[0][1]}" if pairs else says
        except Exception:
            continue
    return None

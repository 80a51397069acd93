"""Why a learner's line raised an exception, in the learner's terms. What is said is checked."""

import ast
import difflib
import re

import numpy as np

from npgpt.study.exercises.exercise import statements
from npgpt.study.exercises.findings import Finding
from npgpt.study.gradcheck.source import assigned_anywhere, backward_tree, names_in, parsed
from npgpt.study.judge.shapes import clash, value_of

# what torch calls otherwise, and what is a function in NumPy
METHODS = {
    "t": ".T",
    "permute": ".transpose(…)",
    "unsqueeze": "[..., None]",
    "matmul": "@",
    "mm": "@",
    "bmm": "@",
    "exp": "np.exp(…)",
    "log": "np.log(…)",
    "sqrt": "np.sqrt(…)",
    "sin": "np.sin(…)",
    "cos": "np.cos(…)",
    "tanh": "np.tanh(…)",
}
KEYWORDS = {"dim": "axis", "keepdim": "keepdims"}
NUMBERS = {3: "three", 4: "four", 5: "five"}


def why_raised(raised, node, names, mine, lesson):
    """Return a `Finding`, why a statement raised an exception, or None if that is not proved.

    raised: its text; names: all that the statement could read; mine: the learner's statements.
    """
    said = None
    if found := re.search(r"(?:name|variable) '(\w+)'", raised):
        said = of_name(found[1], node, names, mine, lesson)
    elif found := re.match(r"AttributeError: 'numpy\.\w+' object has no attribute '(\w+)'", raised):
        said = METHODS.get(found[1]) and (
            f"an array has no `.{found[1]}`: NumPy writes `{METHODS[found[1]]}`"
        )
    elif found := re.search(r"unexpected keyword argument '(\w+)'", raised):
        said = found[1] in KEYWORDS and f"NumPy writes `{KEYWORDS[found[1]]}`, not `{found[1]}`"
    elif "to unpack" in raised and "cache" in names_in(node):
        said = of_cache(node, lesson)
    elif raised.startswith("ValueError"):
        said = of_shapes(clash(node, names, raised), names)
    return Finding("cause", [said]) if said else None


def of_name(name, node, names, mine, lesson):
    """Say why a name has no value: it comes later, it is the forward's, or it is misspelt."""
    if hasattr(names.get("ops"), name):
        return f"`{name}` is in ops: write `ops.{name}`"
    later = [each.lineno for each in mine if name in assigned_anywhere(each)]
    if later and min(later) > node.lineno:
        return f"`{name}` gets its value in line {min(later)}, below this line"
    if later:
        return None
    gradient, forward = f"d{name}", parsed(lesson.forward)
    if name in assigned_anywhere(forward) | {each.arg for each in forward.args.args}:
        if gradient == lesson.upstream:
            return f"`{name}` is not in the cache: you need its gradient, {gradient}"
        there = f"; its gradient, {gradient}, is there" if gradient in names else ""
        return f"`{name}` is a variable of the forward that is not in the cache{there}"
    known = [each for each, value in names.items() if isinstance(value, np.ndarray)]
    close = difflib.get_close_matches(name, known, 1)
    return f"there is no `{name}`: do you mean `{close[0]}`?" if close else None


def of_cache(node, lesson):
    """Say what the cache holds."""
    held = [
        each.targets[0]
        for each in statements(backward_tree(lesson))
        if isinstance(each, ast.Assign) and ast.unparse(each.value) == "cache"
    ]
    if ast.unparse(node.value) != "cache" or not held or not isinstance(held[0], ast.Tuple):
        return None
    return f"the cache holds {len(held[0].elts)} values: {ast.unparse(held[0]).strip('()')}"


def of_shapes(failing, names):
    """Say why the shapes of an operation do not fit. failing: the `Finding` of it, or None."""
    if not failing or failing.kind != "clash":
        return None
    operation = ast.parse(failing.operands[0], mode="eval").body
    pair = operation.left, operation.right
    a, b = (value_of(each, names) for each in pair)
    if flipped := whole_transpose(operation, names):
        return flipped
    if isinstance(operation.op, ast.MatMult):
        if min(a.ndim, b.ndim) < 2 or a.shape[-1] == b.shape[-2]:
            return None
        return (
            f"in `@` the last axis of the left array, here {a.shape[-1]}, and the last but one "
            f"of the right array, here {b.shape[-2]}, must be equal"
        )
    if kept := with_axis(pair[0], b, names) or with_axis(pair[1], a, names):
        return kept
    shares_axis = {*a.shape[-2:]} & {*b.shape[-2:]}
    if isinstance(operation.op, ast.Mult) and min(a.ndim, b.ndim) > 1 and shares_axis:
        return "`*` is elementwise, a matmul is `@`"
    return None


def whole_transpose(node, names):
    """Say that `.T` of more than two axes reverses them all, and what to write instead."""
    for each in ast.walk(node):
        array = value_of(each.value, names) if getattr(each, "attr", "") == "T" else None
        if isinstance(array, np.ndarray) and array.ndim > 2:
            rows = array.reshape(-1, array.shape[-1])
            arrays = {
                name: value
                for name, value in names.items()
                if getattr(value, "shape", 0) == rows.shape
            }
            found = [name for name, value in arrays.items() if np.array_equal(value, rows)]
            use = f"{found[0]}.T" if found else f"{ast.unparse(each.value)}.swapaxes(-1, -2)"
            return f"`.T` reverses all {NUMBERS.get(array.ndim, array.ndim)} axes: use `{use}`"
    return None


def with_axis(node, other, names):
    """Say that a sum, mean or maximum would fit if it kept its axis."""
    code = ast.unparse(node)
    method = getattr(getattr(node, "func", None), "attr", "")
    if method not in ("sum", "mean", "max") or "keepdims" in code:
        return None
    value = value_of(ast.parse(f"{code[:-1]}, keepdims=True)", mode="eval").body, names)
    if isinstance(value, Exception):
        return None
    try:
        np.broadcast_shapes(value.shape, other.shape)
    except ValueError:
        return None
    return f"`{code}` has lost an axis: with keepdims=True it has the shape {value.shape}"

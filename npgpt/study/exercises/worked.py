"""A worked example: one entry of a gradient, computed with numbers, and the shapes of its line.

The lines run as they are, on small arrays whose entries know how they were computed.
"""

import ast
import itertools
import textwrap

import numpy as np

from npgpt.study.exercises.exercise import key_of
from npgpt.study.exercises.lines import in_terms
from npgpt.study.exercises.terms import Term, written
from npgpt.study.exercises.walk import Walk
from npgpt.study.gradcheck.source import names_in
from npgpt.study.gradcheck.truth import Case
from npgpt.study.lessons.setting import Setting, Sizes
from npgpt.study.lessons.table import lesson_named

SIZES = Sizes(B=1, T=2, C=3, H=1, V=4, S=4, F=5, P=3)
WIDTH = 78  # of a line
MOST = 3  # terms of a sum that are shown


def text_of(number):
    """Return a number with two digits."""
    text = f"{number:.2f}" if abs(number) >= 0.095 or abs(number) < 1e-9 else f"{number:.2g}"
    return "0.00" if text == "-0.00" else text


def symbol(term):
    """Return "x[0,1]" for an entry, and a number of the code as it is."""
    if term.operation == "number":
        return f"{term.value:g}"
    name, index = term.parts
    return f"{name}[{','.join(map(str, index))}]" if index else name


def number(term):
    """Return the number that an entry has, with two digits, and one of the code as it is."""
    return symbol(term) if term.operation == "number" else text_of(term.value)


def rounded(value):
    """Return numbers as they are shown."""
    return np.vectorize(lambda each: float(text_of(each)), otypes=[float])(value)


def worked(step, key):
    """Return a worked example of a line of a step's backward: lines of text.

    A line that calls another layer has only its shapes. None of own code that cannot run so.
    """
    try:
        return [*example(step, key)]
    except Exception:  # of one's own lines, which may do anything
        return []


def example(step, key):
    """Yield the lines of a worked example, if the line is not in a loop."""
    switches = lesson_named(step.layer).switches
    off = {"ignored", "mask"} | ({"dropout"} if len(switches) > 1 else set())
    sizes = SIZES._replace(B=2, T=1) if "repeated" in switches else SIZES
    case = Case(step.layer, Setting(sizes, step=0.1, off=frozenset(off)))
    walk = Walk(case, step.lesson)
    at = [*map(key_of, walk.statements)].index(key)
    node, before, after = walk.statements[at], walk.before[at], walk.before[at + 1]
    if isinstance(node.value, ast.IfExp):  # the branch that runs
        node.value = node.value.body if value_of(node.value.test, before) else node.value.orelse
    calls = [ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)]
    if not any(each.endswith("_backward") for each in calls):
        functions = {name for name, each in case.lesson.constants.items() if callable(each)}
        yield from numbers(node, before, functions)
    if isinstance(node, ast.Assign):
        yield from shapes(node, before, after)


def value_of(node, scope):
    return eval(ast.unparse(node), scope)


def numbers(node, scope, functions):
    """Yield an entry of what a statement assigns: as symbols, as numbers, and its value."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.value.args[0]
    name = ast.unparse(target).split("[")[0]  # dwte of np.add.at(dwte, idx, dtoken)
    names = {each: each for each in names_in(node)}
    exact, shown = (
        np.asarray(in_terms(node, {**scope}, names, functions, digits)[name], object)
        for digits in (np.asarray, rounded)
    )
    made = [each for each in np.ndindex(exact.shape) if isinstance(exact[each], Term)]
    if not made:  # an array of zeros, or of truth values
        return

    def instructive(at):
        """One that can be computed from what is shown; the longest; one whose indexes differ."""
        is_exact = text_of(exact[at].value) == text_of(shown[at].value)
        return is_exact, len(written(exact[at], symbol, MOST)), len({*at})

    best = max(made, key=instructive)
    term = exact[best]
    begin = f"{name}[{','.join(map(str, best))}]"
    texts = [written(term, leaf, MOST) for leaf in (symbol, number)]
    indent = " " * (len(begin) + 3)
    wrapper = textwrap.TextWrapper(WIDTH, "", indent, break_long_words=False)
    wrapper.break_on_hyphens = False
    for text in dict.fromkeys([*texts, text_of(term.value)]):
        yield from wrapper.wrap(f"{begin} = {text}")
        begin = " " * len(begin)


def shapes(node, before, after):
    """Yield the line with shapes instead of arrays, and for a matmul the arrays as boxes.

    before, after: the variables.
    """

    def shown(each):
        if isinstance(each, ast.Name) and each.id not in after:  # of a comprehension
            return each
        is_made = isinstance(getattr(each, "ctx", None), ast.Store)
        value = value_of(each, after if is_made else before)
        if not isinstance(value, np.ndarray):
            return each
        return ast.Name(str(value.shape).replace(" ", ""))

    class Shapes(ast.NodeTransformer):
        visit_Name = staticmethod(shown)

        def visit_Attribute(self, each):
            return shown(each) if each.attr == "T" else each

        def visit_Call(self, each):
            is_swap = ast.unparse(each.func).endswith(".swapaxes")
            return shown(each) if is_swap else self.generic_visit(each)

    text = ast.unparse(Shapes().visit(ast.parse(ast.unparse(node)).body[0]))
    if not (isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.MatMult)):
        yield text
        return
    matrices = node.targets[0], node.value.left, node.value.right
    made, left, right = (value_of(each, after) for each in matrices)
    is_only = orders(made, left, right) == 1
    yield f"{text}: {ast.unparse(node.value)}" + ", the only order that fits" * is_only
    yield from boxes(made, left, right)


def orders(made, left, right):
    """Return how many products of two matrices, also transposed, have the shape of `made`."""
    a, b, wanted = (each.shape[-2:] for each in (left, right, made))
    pairs = itertools.product((a, a[::-1]), (b, b[::-1]))
    ordered = itertools.chain.from_iterable(map(itertools.permutations, pairs))
    return sum(x[1] == y[0] and (x[0], y[1]) == wanted for x, y in ordered)


def boxes(*arrays):
    """Yield the three matrices of a matmul as boxes, two characters a column."""
    height = max(array.shape[-2] for array in arrays) + 2
    drawn = []
    for array in arrays:
        rows, columns = array.shape[-2:]
        box = [f"┌{'──' * columns}┐", *[f"│{'  ' * columns}│"] * rows, f"└{'──' * columns}┘"]
        drawn.append([each.ljust(2 * columns + 2) for each in box + [""] * (height - rows - 2)])
    for i, (made, left, right) in enumerate(zip(*drawn, strict=True)):
        yield f"{made} {'=' * (i == 1):1} {left} {'@' * (i == 1):1} {right}".rstrip()

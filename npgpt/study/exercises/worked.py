"""A worked example: one entry of a gradient, computed with numbers, and the shapes of its line.

The lines run as they are, on small arrays whose entries know how they were computed.
"""

import ast
import itertools
import operator
import textwrap

import numpy as np

from npgpt.study.exercises.exercise import key_of, statements
from npgpt.study.gradcheck.measure import upstream
from npgpt.study.gradcheck.source import backward_tree, names_in
from npgpt.study.lessons.setting import Setting, Sizes
from npgpt.study.lessons.table import lesson_named

SIZES = Sizes(B=1, T=2, C=3, H=1, V=4, S=4, F=5, P=3)
SUM, PRODUCT, ATOM = range(3)           # how tightly the parts of a term are bound
WIDTH = 78      # of a line
MOST = 3                                # terms of a sum that are shown
FUNCTIONS = "exp", "log", "sqrt", "sin", "cos", "tanh"      # of NumPy: np.exp calls Term.exp
OPERATORS = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("·", PRODUCT), "truediv": ("/", PRODUCT),
             "pow": ("^", ATOM)}


class Term:
    """A number, and how it was computed: in symbols, "x[0,1]·dy[0,0]", and in numbers.

    terms: of a sum, each with its symbols and numbers.
    """

    def __init__(self, value, texts, level=ATOM, terms=()):
        self.value = value
        self.texts = texts
        self.level = level
        self.terms = terms or (self,)

    def within(self, level):
        """The two texts, in brackets if what is around them binds more tightly, or if negative."""
        return [f"({text})" if self.level < level or text[0] == "-" else text
                for text in self.texts]

    def __neg__(self):
        return Term(-self.value, [f"-{text}" for text in self.within(PRODUCT)], PRODUCT)

    def __lt__(self, other):
        return self.value < as_term(other).value

    def __ge__(self, other):
        return not self < other

    def __eq__(self, other):
        return self.value == as_term(other).value


def as_term(value):
    """Return a number of the code, such as 0.5, as a term."""
    return value if isinstance(value, Term) else Term(float(value), [f"{float(value):g}"] * 2)


def called(name):
    """Return the method that np.exp calls for an array of terms."""
    def method(self):
        value = float(getattr(np, name)(self.value))
        return Term(value, [f"{name}({text})" for text in self.texts])
    return method


def combined(name, sign, level, is_flipped):
    """Return the method of an operator, such as `__add__`, or `__radd__` if it is flipped."""
    def method(self, other):
        if isinstance(other, np.ndarray):
            return NotImplemented           # NumPy does it entry by entry
        if name == "add" and not isinstance(other, Term) and other == 0:    # of an array of zeros
            return self
        a, b = (as_term(other), self) if is_flipped else (self, as_term(other))
        value = getattr(operator, name)(a.value, b.value)
        if name == "add":
            terms = a.terms + b.terms
            return Term(value, [joined(terms, i) for i in (0, 1)], SUM, terms)
        sign_ = sign if sign in "·^" else f" {sign} "
        right = level + (sign in "-/")      # a - (b - c), a / (b · c)
        pairs = zip(a.within(level), b.within(right), strict=True)
        return Term(value, [f"{left}{sign_}{right}" for left, right in pairs], level)
    return method


def joined(terms, i):
    """Return a sum as text, without its middle if it is long."""
    texts = [each.within(PRODUCT)[i] for each in terms]
    if len(texts) > MOST:
        texts[2:-1] = ["…"]
    return " + ".join(texts)


for function in FUNCTIONS:
    setattr(Term, function, called(function))
for operator_, (sign, level) in OPERATORS.items():
    setattr(Term, f"__{operator_}__", combined(operator_, sign, level, False))
    setattr(Term, f"__r{operator_}__", combined(operator_, sign, level, True))


def text_of(number):
    """Return a number with two digits."""
    text = f"{number:.2f}" if abs(number) >= 0.095 or abs(number) < 1e-9 else f"{number:.2g}"
    return text.replace("-0.00", "0.00")


def atoms(name, value, is_rounded):
    """Return an array of terms "x[0,1]", or a term, for what a name has, if it is floating.

    is_rounded: whether their values are as they are shown.
    """
    if isinstance(value, float) or isinstance(value, np.ndarray) and value.dtype.kind == "f":
        found = np.empty(np.shape(value), object)
        for index in np.ndindex(found.shape):
            number = float(value[index] if index else value)
            at = f"[{','.join(map(str, index))}]" if index else ""
            text = text_of(number)
            found[index] = Term(float(text) if is_rounded else number, [name + at, text])
        return found if found.ndim else found[()]
    return value


def opaque(function, name):
    """Return a function of numbers as one of arrays of terms: f(x[0,1] + h)."""
    return np.frompyfunc(lambda term: Term(
        float(function(term.value)), [f"{name}({text})" for text in term.texts]), 1, 1)


def worked(step, key):
    """Return a worked example of a line of a step's backward: lines of text.

    A line that calls another layer has only its shapes. None of own code that cannot run so.
    """
    try:
        return [*example(step, key)]
    except Exception:       # of one's own lines, which may do anything
        return []


def example(step, key):
    """Yield the lines of a worked example, if the line is not in a loop."""
    lesson = step.lesson
    off = {"ignored", "mask"} | ({"dropout"} if len(lesson.switches) > 1 else set())
    sizes = SIZES._replace(B=2, T=1) if "repeated" in lesson.switches else SIZES
    small = lesson_named(step.layer, Setting(sizes, step=0.1, off=frozenset(off)))
    result, cache = small.run_forward(small.inputs)
    arguments = small.arguments(upstream(small, result), cache)
    names = lesson.backward.__code__.co_varnames
    scope = lesson.backward.__globals__ | dict(zip(names, arguments, strict=False))
    body = backward_tree(lesson).body
    at = next(i for i, node in enumerate(body) if statements(ast.Module([node], [])) == [node]
              and key_of(node) == key)
    run(body[:at], scope)
    node = body[at]
    if isinstance(node.value, ast.IfExp):       # the branch that runs
        node.value = node.value.body if value_of(node.value.test, scope) else node.value.orelse
    calls = [ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)]
    if not any(each.endswith("_backward") for each in calls):
        functions = {name for name, each in small.constants.items() if callable(each)}
        yield from numbers(node, scope, functions)
    if isinstance(node, ast.Assign):
        yield from shapes(node, scope)


def run(nodes, scope):
    exec(compile(ast.Module(nodes, []), "", "exec"), scope)


def value_of(node, scope):
    return eval(ast.unparse(node), scope)


def numbers(node, scope, functions):
    """Yield an entry of what a statement assigns: as symbols, as numbers, and its value."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.value.args[0]
    name = ast.unparse(target).split("[")[0]        # dwte of np.add.at(dwte, idx, dtoken)
    results = []
    for is_rounded in (False, True):
        terms = {each: opaque(scope[each], each) if each in functions else
                 atoms(each, scope[each], is_rounded) for each in names_in(node) & scope.keys()}
        if isinstance(scope.get(name), np.ndarray):     # zeros that the statement fills
            terms[name] = np.zeros(scope[name].shape, object)
        terms = scope | terms
        run([node], terms)
        results.append(np.asarray(terms[name], object))
    found, rounded = results
    made = [each for each in np.ndindex(found.shape) if isinstance(found[each], Term)]
    if not made:        # an array of zeros, or of truth values
        return
    # one that can be computed from what is shown; the longest; one whose indexes differ
    best = max(made, key=lambda each: (
        text_of(found[each].value) == text_of(rounded[each].value),
        len(found[each].texts[0]), len({*each})))
    symbols, values = found[best].texts
    begin = f"{name}[{','.join(map(str, best))}]"
    for text in dict.fromkeys([symbols, values, text_of(found[best].value)]):
        indent = " " * (len(begin) + 3)
        yield from textwrap.wrap(f"{begin} = {text}", WIDTH, subsequent_indent=indent,
                                 break_long_words=False, break_on_hyphens=False)
        begin = " " * len(begin)


def shapes(node, scope):
    """Return the line with shapes instead of arrays, and for a matmul the arrays as boxes."""
    after = dict(scope)
    run([node], after)

    def shown(each):
        if isinstance(each, ast.Name) and each.id not in after:     # of a comprehension
            return each
        is_made = isinstance(getattr(each, "ctx", None), ast.Store)
        value = value_of(each, after if is_made else scope)
        return ast.Name(f"({','.join(map(str, value.shape))}{',' * (value.ndim == 1)})") \
            if isinstance(value, np.ndarray) else each

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
    made, left, right = (value_of(each, after) for each in (
        node.targets[0], node.value.left, node.value.right))
    yield f"{text}: {ast.unparse(node.value)}" + ", the only order that fits" * (
        orders(made, left, right) == 1)
    yield from boxes(made, left, right)


def orders(made, left, right):
    """Return how many products of two matrices, also transposed, have the shape of `made`."""
    a, b, wanted = (each.shape[-2:] for each in (left, right, made))
    pairs = itertools.product((a, a[::-1]), (b, b[::-1]))
    return sum(x[1] == y[0] and (x[0], y[1]) == wanted
               for one, other in pairs for x, y in ((one, other), (other, one)))


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

"""Numbers that know how they were computed: a line of NumPy runs on arrays of them as it is."""

import operator

import numpy as np

SUM, PRODUCT, ATOM = range(3)  # how tightly the parts of a term are bound
# of NumPy: np.exp calls Term.exp
FUNCTIONS = "exp", "log", "sqrt", "sin", "cos", "tanh", "log1p", "expm1"
OPERATORS = {"add": "+", "sub": "-", "mul": "·", "truediv": "/", "pow": "^"}
COMPARISONS = "lt", "le", "gt", "ge", "eq", "ne"
LEVELS = {"+": SUM, "-": SUM, "negative": PRODUCT, "·": PRODUCT, "/": PRODUCT}


class Term:
    """A number, and how it was computed.

    operation: "+" of any number of parts, "negative", another sign, or the name of a function;
    "entry" of an array, whose parts are its name and the index; "number", one of the code.
    """

    def __init__(self, value, operation="number", parts=()):
        self.value = value
        self.operation = operation
        self.parts = parts

    @property
    def is_leaf(self):
        return self.operation in ("entry", "number")

    def __neg__(self):
        return Term(-self.value, "negative", (self,))

    def __abs__(self):
        return Term(abs(self.value), "abs", (self,))


def as_term(value):
    """Return a number of the code, such as 0.5, as a term."""
    return value if isinstance(value, Term) else Term(float(value))


def called(name):
    """Return the method that np.exp calls for an array of terms."""
    return lambda self: Term(float(getattr(np, name)(self.value)), name, (self,))


def compared(name):
    return lambda self, other: getattr(operator, name)(self.value, as_term(other).value)


def combined(name, is_flipped):
    """Return the method of an operator, such as `__add__`, or `__radd__` if it is flipped.

    What is added to 0, or multiplied by a truth value, is the number itself, or 0.
    """

    def method(self, other):
        if isinstance(other, np.ndarray):
            return NotImplemented  # NumPy does it entry by entry
        if name == "mul" and isinstance(other, bool | np.bool):
            return self if other else 0
        if name == "add" and not isinstance(other, Term) and other == 0:
            return self
        parts = (as_term(other), self) if is_flipped else (self, as_term(other))
        value = getattr(operator, name)(*(each.value for each in parts))
        if name == "add":  # one sum, not a sum of sums
            parts = sum((each.parts if each.operation == "+" else (each,) for each in parts), ())
        return Term(value, OPERATORS[name], parts)

    return method


for name in FUNCTIONS:
    setattr(Term, name, called(name))
for name in COMPARISONS:
    setattr(Term, f"__{name}__", compared(name))
for name in OPERATORS:
    setattr(Term, f"__{name}__", combined(name, False))
    setattr(Term, f"__r{name}__", combined(name, True))


class Terms(np.ndarray):
    """An array of terms. NumPy would return one of the entries for their maximum."""

    def max(self, axis=None, out=None, keepdims=False):
        def larger(a, b):
            parts = sum((each.parts if each.operation == "max" else (each,) for each in (a, b)), ())
            return Term(max(a.value, b.value), "max", parts)

        return np.frompyfunc(larger, 2, 1).reduce(self, axis=axis, keepdims=keepdims)


def entries(name, value):
    """Return `Terms` for the entries of an array (or a term for a number) that has a name."""
    found = np.empty(np.shape(value), object).view(Terms)
    for index in np.ndindex(found.shape):
        number = float(value[index] if index else value)
        found[index] = Term(number, "entry", (name, index))
    return found if found.ndim else found[()]


def opaque(function, name):
    """Return a function of numbers as one of arrays of terms: f(x[0,1] + h)."""
    return np.frompyfunc(lambda term: Term(float(function(term.value)), name, (term,)), 1, 1)


def written(term, leaf, most=None):
    """Return a term as text, "x[0,1]·dy[0,0]". leaf: of an entry or a number -> its text.

    Brackets are around what is bound less tightly than what is around it, and around negative
    numbers. most: of a longer sum the middle is left out.
    """

    def within(part, level):
        text = written(part, leaf, most)
        is_bracketed = LEVELS.get(part.operation, ATOM) < level or text[0] == "-"
        return f"({text})" if is_bracketed else text

    sign, parts = term.operation, term.parts
    if term.is_leaf:
        return leaf(term)
    if sign == "negative":
        return f"-{within(parts[0], PRODUCT)}"
    if sign == "+":
        texts = [within(each, PRODUCT) for each in parts]
        if most and len(texts) > most:
            texts[2:-1] = ["…"]
        return " + ".join(texts)
    if sign not in OPERATORS.values():
        return f"{sign}({', '.join(written(each, leaf, most) for each in parts)})"
    level = LEVELS.get(sign, ATOM)
    left, right = within(parts[0], level), within(parts[1], level + (sign in "-/"))
    return f"{left}{sign}{right}" if sign in "·^" else f"{left} {sign} {right}"

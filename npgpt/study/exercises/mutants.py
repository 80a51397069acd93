"""The small mistakes that can be made in a statement of a backward.

The page plants them. The judge compares a wrong gradient with what they give: equal numbers in all
cases name the mistake, whatever the learner wrote.
"""

import ast
import itertools

from npgpt.study.exercises.walk import RESULT
from npgpt.study.gradcheck.source import assigned_anywhere
from npgpt.study.gradcheck.trace import is_floating

# What is right, what is written by mistake, and what to say of it, the most instructive first. A
# letter matches any expression, f the name of any function, and **r other arguments.
RULES = """
a * b | a | the factor {b} is missing
a * b | b | the factor {a} is missing
a / b | 1.0 / b | the factor {a} is missing
a + b | a | the term {b} is missing
a + b | b | the term {a} is missing
a - b | a | the term {b} is missing
a - b | -b | the term {a} is missing
a / b | a | the division by {b} is missing
np.add.at(a, b, c) | a[b] += c | an index that occurs twice keeps only its last gradient: add them
a.sum(axis=b, **r) | a.mean(axis=b, **r) | a mean instead of a sum
a.mean(axis=b, **r) | a.sum(axis=b, **r) | a sum instead of a mean
a @ b | b @ a | the factors are in the wrong order
a.T | a | {a} should be transposed
a.swapaxes(b, c) | a | {a} should be transposed
a.transpose(b, c, d, e) | a | {a} should be transposed
a @ b | a.swapaxes(-1, -2) @ b | {a} should not be transposed
a @ b | a @ b.swapaxes(-1, -2) | {b} should not be transposed
"""
LAST_RULES = """
a / b | a * b | multiplied by {b} instead of divided
a * b | a / b | divided by {b} instead of multiplied
a.f(axis=b, keepdims=True) | a.f(axis=b) | keepdims=True is missing
a.f(axis=b, **r) | a.f(axis=0, **r) | axis 0 instead of axis {b}
a.f(axis=b, **r) | a.f(axis=1, **r) | axis 1 instead of axis {b}
a.f(axis=b, **r) | a.f(axis=-1, **r) | axis -1 instead of axis {b}
a.f(axis=b, **r) | a.f(axis=-2, **r) | axis -2 instead of axis {b}
a.f(axis=b, **r) | a.f(axis=(0, 1), **r) | axis (0, 1) instead of axis {b}
np.where(a, b, c) | b | the call of np.where is missing
np.f(a) | a | the call of np.{f} is missing
np.cos(a) | np.sin(a) | np.sin instead of np.cos
ops.f(a, b) | a | the call of ops.{f} is missing
reversed(a) | a | the loop runs in the wrong order: reversed is missing
a + b | a - b | the term {b} has the wrong sign
a - b | a + b | the term {b} has the wrong sign
a * (b - c) | a * b - c | brackets are missing: {a} * ({b} - {c})
a * (b + c) | a * b + c | brackets are missing: {a} * ({b} + {c})
a | -a | the sign of {a} is wrong
"""
ALLOCATE = "np.zeros", "np.arange"
NUMBERS = 0.5, 1.0, 2.0, 3.0  # often written for another one


def mistakes(walk, numbers=None):
    """Yield each small mistake in a `Walk`, from its end.

    It is (number of the statement, line, kind, sentence, new statement); kind: the sentence without
    names. numbers: of the statements, by default all but the first, which unpacks the cache.
    """
    numbers = range(1, len(walk.statements)) if numbers is None else numbers
    for i in sorted(numbers, reverse=True):
        statement, lines = walk.statements[i], {}
        for inner in ast.walk(statement):
            if isinstance(inner, ast.stmt):  # the innermost one last
                lines |= dict.fromkeys(ast.walk(inner), inner.lineno)
        kinds = kinds_of(walk, walk.before[i], statement)
        left = {node.operand for node in lines if isinstance(node, ast.UnaryOp)}
        for node in lines:  # other sizes could fill the memory
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ALLOCATE:
                left |= {*ast.walk(node)}
        nodes = [
            node
            for node in lines
            if getattr(node, "id", None) in {None, *kinds} and node not in left
        ]
        for node, new, kind, names in itertools.chain(
            by_rules(nodes, RULES),
            by_names(nodes, kinds),
            by_rules(nodes, LAST_RULES),
            superfluous(statement, kinds),
        ):
            said = {
                name: ast.unparse(each) if isinstance(each, ast.AST) else each
                for name, each in names.items()
            }
            yield i, lines[node], kind, kind.format(**said), replaced(statement, node, new)


def kinds_of(walk, names, statement):
    """Return name -> kind of the variables, of the statement's loop, and of the module's numbers.

    The kind is "f" for floating numbers and arrays, else the dtype or type.
    """
    kinds = {}
    for name, value in names.items():
        if is_floating(value) or isinstance(value, float):
            kinds[name] = "f"
        elif name not in walk.lesson.backward.__globals__:
            kinds[name] = getattr(value, "dtype", type(value))
    if isinstance(statement, ast.For):
        kinds[statement.target.id] = int
    return kinds


def by_rules(nodes, rules):
    """Yield (node, replacement, kind, names in the kind) of the mistakes of a table of rules."""
    for line in rules.split("\n"):
        if "|" in line:
            *sides, kind = (each.strip() for each in line.split("|"))
            old, new = (ast.parse(each).body[0] for each in sides)
            if isinstance(new, ast.Expr):
                old, new = old.value, new.value
            for node in nodes:
                names = {}
                if matches(node, old, names):
                    yield node, filled(new, names), kind, names


def matches(node, old, names):
    """Return whether a node has the form of a rule. names: gets what the letters match."""
    match old:
        case ast.Name(letter) if len(letter) == 1:
            names[letter] = node
            is_target = isinstance(getattr(node, "ctx", None), ast.Store)
            return isinstance(node, ast.expr) and not is_target
        case "f":
            names[old] = node
            return True
        case [*first, ast.keyword(arg=None)]:
            names["r"] = node[len(first) :]
            return len(node) >= len(first) and matches(node[: len(first)], first, names)
        case list():
            pairs = zip(node, old, strict=False)
            return len(old) == len(node) and all(matches(*pair, names) for pair in pairs)
        case ast.AST():
            pairs = ((getattr(node, field, None), getattr(old, field)) for field in old._fields)
            return type(old) is type(node) and all(matches(*pair, names) for pair in pairs)
    return old == node


def filled(new, names):
    """Return the other side of a rule, with what its letters have matched."""
    match new:
        case ast.Name(letter) | (str() as letter) if letter in names:
            return names[letter]
        case [*first, ast.keyword(arg=None)]:
            return [*filled(first, names), *names["r"]]
        case list():
            return [filled(each, names) for each in new]
        case ast.AST():
            return type(new)(**{field: filled(getattr(new, field), names) for field in new._fields})
    return new


def by_names(nodes, kinds):
    """Yield the same of other variables and numbers, and of two that are swapped."""
    for node in nodes:
        others, number = [], getattr(node, "value", None)
        match node:
            case ast.Name(name, ast.Load()):
                others = [each for each, kind in kinds.items() if kind == kinds[name]]
                others = [each for each in others if each not in (name, "_")]
            case ast.BinOp():
                others = floating(kinds)
        for other in others:
            yield node, expression(other), "uses {a} instead of {b}", {"a": other, "b": node}
        numbers = NUMBERS if type(number) is float else ()
        for other in (number + 1, number - 1) if type(number) is int else numbers:
            if other != number:
                yield node, ast.Constant(other), "{a} instead of {b}", {"a": str(other), "b": node}
        for field in "args", "elts", "values":
            items = getattr(node, field, [])
            for i, j in itertools.combinations(range(len(items)), 2):
                order = [*items]
                order[i], order[j] = items[j], items[i]
                new = type(node)(**{**dict(ast.iter_fields(node)), field: order})
                yield node, new, "{a} and {b} are swapped", {"a": items[i], "b": items[j]}


def superfluous(statement, kinds):
    """Yield the same of factors and divisions that do not belong to what a statement assigns."""
    if isinstance(statement, ast.Assign) and RESULT not in assigned_anywhere(statement):
        value = statement.value
        for operator, kind in (
            ("*", "the factor {a} does not belong there"),
            ("/", "the factor {a} is missing, or it is divided by {a}"),
        ):
            for name in floating(kinds):
                if ast.unparse(value) != name:  # not x / x
                    new = filled(expression(f"a {operator} b"), {"a": value, "b": expression(name)})
                    yield value, new, kind, {"a": name}


def floating(kinds):
    return [name for name, kind in kinds.items() if kind == "f"]


def expression(text):
    """Return the tree of an expression."""
    return ast.parse(text, mode="eval").body


def replaced(tree, old, new):
    """Return a copy of a tree with a new node in the place of an old one."""
    if tree is old:
        return ast.copy_location(new, old)
    match tree:
        case list():
            return [replaced(each, old, new) for each in tree]
        case ast.AST():
            fields = {field: replaced(value, old, new) for field, value in ast.iter_fields(tree)}
            return ast.copy_location(type(tree)(**fields), tree)
    return tree

"""Make every version of a function that has one small mistake, for mutate.py and tests."""

import ast
import contextlib
import inspect
import itertools
from collections import namedtuple
from types import CodeType

from npgpt.study.gradcheck.source import parsed

# A function with one mistake: the statement `original`, at `line` of its file, became `mutated`.
# Both are texts by ast.unparse, of a compound statement the first line. code: replaces the
# function's `__code__`.
Mutant = namedtuple("Mutant", "function line kind original mutated code")


def mutants(function, inner=None):
    """Yield every `Mutant` of a function, each once. inner: only those of the function of that name
    inside it.
    """
    tree = FoldNegativeConstants().visit(parsed(function))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    neighbours, seen = Neighbours(tree, function), {ast.unparse(tree)}
    name, file = inner or tree.name, inspect.getsourcefile(function)
    part = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    )
    for kind, wrong, (before, after) in variations(tree, neighbours):
        text = ast.unparse(wrong)
        if text not in seen and part.lineno < before.lineno <= part.end_lineno:
            seen.add(text)
            original, mutated = (
                ast.unparse(statement).splitlines()[0] for statement in (before, after)
            )
            module = compile(ast.fix_missing_locations(ast.Module([wrong], [])), file, "exec")
            code = next(constant for constant in module.co_consts if isinstance(constant, CodeType))
            yield Mutant(name, before.lineno, kind, original, mutated, code)


def variations(node, neighbours):
    """Yield (kind, node with one mistake, (statement, wrong statement)), for the node and all below
    it.
    """
    for kind, wrong in mistakes(node, neighbours):
        yield kind, wrong, (node, wrong) if isinstance(node, ast.stmt) else None
    for field, child in ast.iter_fields(node):
        parts = child if isinstance(child, list) else [child]
        for i, part in enumerate(parts):
            if isinstance(part, ast.AST):
                for kind, wrong_part, statement in variations(part, neighbours):
                    wrong_parts = [*parts[:i], wrong_part, *parts[i + 1 :]]
                    wrong = changed(
                        node, **{field: wrong_parts if isinstance(child, list) else wrong_part}
                    )
                    yield (
                        kind,
                        wrong,
                        statement or ((node, wrong) if isinstance(node, ast.stmt) else None),
                    )


def mistakes(node, neighbours):
    """Yield (kind, replacement) for each small mistake that can be made at this very node."""
    yield from in_statements(node, neighbours)
    yield from in_operators(node)
    yield from in_calls(node)
    yield from in_values(node, neighbours)


def in_statements(node, neighbours):
    if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef):
        yield "dropped statement", ast.copy_location(ast.Pass(), node)
    match node:
        case ast.Assign(targets=[ast.Name() | ast.Subscript() as target], value=value):
            yield "sign", changed(node, value=negative(value))
            if isinstance(target, ast.Subscript) or target.id in neighbours.before(node.lineno):
                yield "+= for =", ast.copy_location(ast.AugAssign(target, ast.Add(), value), node)
        case ast.AugAssign(target, op, value):
            yield "= for +=", ast.copy_location(ast.Assign([target], value), node)
            other = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div}[type(op)]
            yield "wrong operator", changed(node, op=other())
        case ast.If(test):
            yield "condition", changed(node, test=ast.UnaryOp(ast.Not(), test))
            yield "condition", changed(node, test=ast.Constant(True))
        case ast.IfExp(test, body, orelse):
            yield "condition", changed(node, body=orelse, orelse=body)
            yield "condition", body
            yield "condition", orelse
            yield "sign", changed(node, body=negative(body))
            yield "sign", changed(node, orelse=negative(orelse))


def in_operators(node):
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            added = isinstance(op, ast.Add)
            yield "sign", changed(node, op=ast.Sub() if added else ast.Add())
            yield "sign", changed(node, left=negative(left))
            yield "dropped term", left
            yield "dropped term", right if added else negative(right)
        case ast.BinOp(left, ast.Mult() | ast.Div() | ast.MatMult() | ast.Pow() as op, right):
            yield "dropped factor", left
            yield "dropped factor", right
            yield (
                "wrong operator",
                changed(node, op=ast.Div() if isinstance(op, ast.Mult) else ast.Mult()),
            )
            if isinstance(op, ast.MatMult):
                yield "swapped", changed(node, left=right, right=left)
                yield "transposed operand", changed(node, left=transposed(left))
                yield "transposed operand", changed(node, right=transposed(right))
        case ast.Compare(left, [op], [right]):
            for other in COMPARISONS.get(type(op), ()):
                yield "condition", changed(node, ops=[other()])
        case ast.Attribute(value, "T"):
            yield "transposed operand", value


def in_calls(node):
    match node:
        case ast.Call(function, arguments, keywords):
            match function:
                case ast.Attribute(value, "swapaxes" | "transpose"):
                    yield "transposed operand", value
                case ast.Attribute(value, "sum" | "mean" as method):
                    yield "dropped call", value
                    yield (
                        "mean for sum",
                        changed(
                            node, func=changed(function, attr={"sum": "mean"}.get(method, "sum"))
                        ),
                    )
                case ast.Attribute(value):
                    yield "dropped call", value
            if arguments and not isinstance(arguments[0], ast.Starred):
                yield "dropped call", arguments[0]
            if getattr(function, "attr", None) != "swapaxes":  # whose order does not matter
                for _, wrong in exchanged(arguments):
                    yield "swapped", changed(node, args=wrong)
            if len(arguments) > 1:
                yield "dropped argument", changed(node, args=arguments[:-1])
            for i in range(len(keywords)):
                yield (
                    f"dropped {keywords[i].arg}",
                    changed(node, keywords=keywords[:i] + keywords[i + 1 :]),
                )
        case ast.keyword("axis", ast.Constant(int(axis))):
            yield "wrong axis", changed(node, value=ast.Constant(axis - 1))
            yield "wrong axis", changed(node, value=ast.Constant(axis + 1))


def in_values(node, neighbours):
    match node:
        case ast.Tuple(items) | ast.List(items):
            for _, wrong in exchanged(items):
                yield "swapped", changed(node, elts=wrong)
        case ast.Subscript(value, ctx=ast.Load()):
            yield "dropped index", value
        case ast.Name(name, ast.Load()):
            for other in neighbours.of(name, node.lineno):
                alike = (
                    name.startswith("d") == other.startswith("d") and not (name + other).isupper()
                )
                yield (
                    "neighbouring variable" if alike else "unrelated variable",
                    changed(node, id=other),
                )
        case ast.Constant(bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(int(n)):
            for other in (n + 1, n - 1, -n):
                yield "constant", ast.Constant(other)
        case ast.Constant(float(x)):
            for other in (2 * x, x * (1 + 1e-6), -x):
                yield "constant", ast.Constant(other)
        case ast.Constant(str()):
            for other in neighbours.keys:
                yield "neighbouring key", ast.Constant(other)


COMPARISONS = {
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
}


class FoldNegativeConstants(ast.NodeTransformer):
    """Turns a minus and its number into one constant, so that `axis=-1` has a number."""

    def visit_UnaryOp(self, node):
        match node:
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)):
                return ast.copy_location(ast.Constant(-number), node)
        return self.generic_visit(node)


class Neighbours:
    """What could be written by mistake: the known variables, the module's numbers, and the
    function's strings.
    """

    def __init__(self, tree, function):
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self.stored = []  # (line, last line of the innermost function that holds it, name)
        self.aliases = {}  # name -> the variable that it is another name of: `dtoken = dx`
        for node in ast.walk(tree):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.arg if isinstance(node, ast.arg) else node.id if stored else "_"
            if name != "_":
                around = [f for f in functions if f.lineno <= node.lineno <= f.end_lineno]
                self.stored.append((node.lineno, min(f.end_lineno for f in around), name))
            match node:
                case ast.Assign(targets=[ast.Name(alias)], value=ast.Name(name)):
                    self.aliases[alias] = self.aliases.get(name, name)
        self.numbers = [
            name
            for name, value in vars(inspect.getmodule(function)).items()
            if type(value) in (int, float)
        ]
        self.keys = list(
            dict.fromkeys(
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
        )

    def before(self, line):
        """Return the parameters and variables that have a value when the line is reached."""
        return list(
            dict.fromkeys(name for stored, last, name in self.stored if stored < line <= last)
        )

    def of(self, name, line):
        """Return the names that could replace a name by mistake; another name of the same array is
        no mistake.
        """
        if not any(name == stored for _, _, stored in self.stored) and name not in self.numbers:
            return []
        return [
            other
            for other in self.before(line) + self.numbers
            if self.aliases.get(other, other) != self.aliases.get(name, name)
        ]


def transposed(node):
    """Return the node with its last two axes swapped; a transposed operand stays as it is."""
    match node:
        case ast.Attribute(_, "T") | ast.Call(ast.Attribute(_, "swapaxes")):
            return node
    axes = [ast.Constant(-1), ast.Constant(-2)]
    return ast.Call(ast.Attribute(node, "swapaxes", ast.Load()), axes, [])


def changed(node, **fields):
    """Return a shallow copy of a node with other fields."""
    return ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **fields}), node)


def negative(node):
    return ast.UnaryOp(ast.USub(), node)


def exchanged(nodes):
    """Yield (the texts of two nodes, all nodes with these two swapped) for every two."""
    for i, j in itertools.combinations(range(len(nodes)), 2):
        order = list(nodes)
        order[i], order[j] = nodes[j], nodes[i]
        yield [ast.unparse(nodes[i]), ast.unparse(nodes[j])], order


@contextlib.contextmanager
def swapped_in(mutant, function):
    """Give the function the mutant's code within a block, in place, so that every importer gets the
    mutant.
    """
    original = function.__code__
    function.__code__ = mutant.code
    try:
        yield
    finally:
        function.__code__ = original

"""The source of a function, statement by statement."""

import ast
import copy
import dataclasses
import functools
import inspect
import textwrap

from npgpt.engine.watch import assigned_names

VIEWS = "flat", "T", "reshape", "swapaxes", "transpose", "ravel"  # of an array that is filled


@dataclasses.dataclass(frozen=True)
class Statement:
    """One simple statement. first, last: its lines in the file; targets: the names that it assigns,
    in order.
    """

    first: int
    last: int
    targets: tuple[str, ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Source:
    """A function's source. file: its path; first: the line of its `def`; lines: from there to its
    end.
    """

    name: str
    file: str
    first: int
    lines: tuple[str, ...]
    statements: tuple[Statement, ...]
    filled: dict[str, int]  # an array that is filled part by part -> the last line that fills it
    returned: tuple[str, ...]  # what the last `return` returns, each as code, without "self."

    def statement_at(self, line):
        """Return the statement at a line of the file, or None."""
        return next((each for each in self.statements if each.first <= line <= each.last), None)

    def only(self, ran):
        """Return the source with the statements that ran. ran: their first lines."""
        statements = tuple(each for each in self.statements if each.first in ran)
        last = [each.text for each in statements if each.text.startswith("return")][-1:]
        returned = returned_by(ast.parse(last[0])) if last else ()
        return dataclasses.replace(self, statements=statements, returned=returned)

    def respelled(self, names):
        """Return the source in which names that are assigned are called otherwise. names: old ->
        new.
        """
        statements = []
        for each in self.statements:
            targets = tuple(names.get(name, name) for name in each.targets)
            statements.append(dataclasses.replace(each, targets=targets))
        filled = {names.get(name, name): line for name, line in self.filled.items()}
        return dataclasses.replace(self, statements=tuple(statements), filled=filled)


@functools.cache
def read_source(function):
    """Return the `Source` of a function."""
    (lines, first) = inspect.getsourcelines(function)
    tree = parsed(function)
    statements = [
        Statement(node.lineno, node.end_lineno, names_of(targets(node)), ast.unparse(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return)
        and not is_empty(node)
    ]
    lines = textwrap.dedent("".join(lines)).splitlines()
    return Source(
        tree.name,
        inspect.getsourcefile(function),
        first,
        tuple(lines),
        tuple(sorted(statements, key=lambda each: each.first)),
        filled_names(tree),
        returned_by(tree),
    )


def parsed(function):
    """Return the syntax tree of a function, with the line numbers of its file."""
    lines, first = inspect.getsourcelines(function)
    return ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), first - 1).body[0]


def is_empty(statement):
    """Return whether a statement is a docstring, or a placeholder such as `dx, dw = None, None`."""
    parts = getattr(statement.value, "elts", [statement.value])
    if isinstance(statement, ast.Return) or not parts:
        return False
    if not all(isinstance(each, ast.Constant) for each in parts):
        return False
    return isinstance(statement, ast.Expr) or all(each.value is None for each in parts)


def targets(statement):
    """Return what a statement assigns: x for `x = …`, "self.x" for `self.x = …`, which is the
    variable x, too.
    """
    attributes = [
        ast.unparse(node)
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
    ]
    return (*assigned_names(statement), *dict.fromkeys(attributes))


def names_of(targets):
    """Return the variables' names of `targets`."""
    return tuple(each.rpartition(".")[2] for each in targets)


class Selfless(ast.NodeTransformer):
    """Replace `self.x` by x."""

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return ast.copy_location(ast.Name(node.attr, node.ctx), node)
        return node


def returned_value(tree):
    """Return the tree of what a function's last `return` returns, or None."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return max(found, key=lambda node: node.lineno).value if found else None


def returned_by(tree):
    """Return the code of each part of what a function returns."""
    value = returned_value(Selfless().visit(copy.deepcopy(tree)))
    return tuple(map(ast.unparse, getattr(value, "elts", [value] if value else [])))


def assigned_anywhere(tree):
    """Return all names that a tree assigns: of variables, attributes and keys."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(getattr(node, "ctx", None), ast.Store):
            match node:
                case ast.Name(name) | ast.Attribute(_, name):
                    found.add(name)
                case ast.Subscript(_, ast.Constant(str(key))):
                    found.add(key)
    return found


def is_name(node, context):
    """Return whether a node is a variable that is read (ast.Load) or assigned (ast.Store)."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)


def names_in(tree):
    """Return all names in a syntax tree."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def filled_names(tree):
    """Map arrays that are filled part by part, as in `dwpe[:T] = …` or `dwpe.flat[i] = …`, to the
    last such line.
    """
    lines = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            part = node
            while isinstance(part, ast.Subscript | ast.Call) or getattr(part, "attr", "") in VIEWS:
                part = part.func if isinstance(part, ast.Call) else part.value
            name = getattr(part, "id", getattr(part, "attr", ""))  # not `made()[0] = …`
            if name:
                lines[name] = max(node.lineno, lines.get(name, 0))
        match node:  # np.add.at(dwte, …), np.put_along_axis(dlogits, …)
            case ast.Expr(ast.Call(ast.Attribute() as called, [ast.Name(name), _, *_])):
                if ast.unparse(called).startswith("np."):
                    lines[name] = max(node.lineno, lines.get(name, 0))
    return lines


def last_return(source):
    """Return the line of a function's last `return`, or of its `def`."""
    returns = [each.first for each in source.statements if each.text.startswith("return")]
    return max(returns, default=source.first)


def backward_tree(lesson):
    """Return a new syntax tree of a lesson's backward; its lines count from 1."""
    return ast.parse("\n".join(read_source(lesson.backward).lines)).body[0]

"""The source of a function, statement by statement."""

import ast
import dataclasses
import functools
import inspect
import textwrap

from npgpt.engine.watch import assigned_names


@dataclasses.dataclass(frozen=True)
class Statement:
    """One simple statement. first, last: its lines in the file; targets: the names that it assigns, in order."""

    first: int
    last: int
    targets: tuple[str, ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Source:
    """A function's source. file: its path; first: the line of its `def`; lines: from there to its end."""

    name: str
    file: str
    first: int
    lines: tuple[str, ...]
    statements: tuple[Statement, ...]
    filled: dict[str, int]          # an array that is filled part by part -> the last line that fills it

    def statement_at(self, line):
        """Return the statement at a line of the file, or None."""
        return next((each for each in self.statements if each.first <= line <= each.last), None)


@functools.cache
def read_source(function):
    """Return the `Source` of a function."""
    (lines, first) = inspect.getsourcelines(function)
    tree = parsed(function)
    statements = [Statement(node.lineno, node.end_lineno, assigned_names(node), ast.unparse(node))
                  for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr
                                                           | ast.Return)
                  and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    return Source(tree.name, inspect.getsourcefile(function), first, tuple(line.rstrip("\n") for line in lines),
                  tuple(sorted(statements, key=lambda each: each.first)), filled_names(tree))


def parsed(function):
    """Return the syntax tree of a function, with the line numbers of its file."""
    lines, first = inspect.getsourcelines(function)
    return ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), first - 1).body[0]


def names_in(tree):
    """Return all names in a syntax tree."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def filled_names(tree):
    """Map arrays that are filled part by part, as in `dwpe[:T] = …` or `dwpe.flat[i] = …`, to the last such line."""
    lines = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            part = node
            while isinstance(part, ast.Subscript | ast.Attribute):
                part = part.value
            if isinstance(part, ast.Name):      # not `made()[0] = …`
                lines[part.id] = max(node.lineno, lines.get(part.id, 0))
    return lines


def last_return(source):
    """Return the line of a function's last `return`, or of its `def`."""
    return max((each.first for each in source.statements if each.text.startswith("return")), default=source.first)


def backward_tree(lesson):
    """Return a new syntax tree of a lesson's backward; its lines count from 1."""
    return ast.parse("\n".join(read_source(lesson.backward).lines)).body[0]

"""Probes: a forward that is run again with one of its intermediates changed at the line that assigns it."""

import ast
import inspect
import textwrap

from npgpt.study.source import bound_names

PROBE = "__probe__"


def with_probes(function, probe):
    """The function with `name = probe(line, name, value)` after every statement that binds a name.

    Made from the function's own source: its syntax tree gets the extra statements and keeps its line numbers;
    decorators are left off. `probe` returns the value that goes on. Arguments are not probed (others can be given
    instead), nor is what is written into a part of an array, nor what an inner function does.
    """
    function = inspect.unwrap(function)
    lines, first = inspect.getsourcelines(function)
    tree = ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), first - 1)
    tree.body[0].decorator_list = []
    add_probes(tree.body[0])
    names = {}
    exec(compile(ast.fix_missing_locations(tree), inspect.getsourcefile(function), "exec"),
         {**function.__globals__, PROBE: probe}, names)
    return names[function.__name__]


def add_probes(block):
    """Put the probes into the bodies of a compound statement, and of those inside it."""
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(block, field, [])
        if isinstance(statements, list):
            setattr(block, field, [each for statement in statements for each in (statement, *probes(statement))])
    for field in ("body", "orelse", "finalbody"):
        for statement in getattr(block, field, []):
            if not isinstance(statement, ast.FunctionDef):
                add_probes(statement)


def probes(statement):
    """`name = __probe__(line, "name", name)` for each name that a statement binds."""
    for name in bound_names(statement):
        value = ast.Call(ast.Name(PROBE, ast.Load()), [
            ast.Constant(statement.lineno), ast.Constant(name), ast.Name(name, ast.Load())], [])
        yield ast.Assign([ast.Name(name, ast.Store())], value, lineno=statement.lineno)

"""Probes: run a function again with one of its intermediates changed at the line that assigns it."""

import ast
import inspect

from npgpt.study.gradcheck.source import assigned_names, parsed

PROBE = "__probe__"


def with_probes(function, probe):
    """The function with `name = probe("name", name)` after every statement that assigns a name.

    It is compiled from the function's own syntax tree. `probe` returns the value that goes on. Arguments are not
    probed: the caller can pass others instead. Neither are assignments to a part of an array.
    """
    tree = ast.Module([InsertProbes().visit(parsed(function))], [])
    names = {}
    exec(compile(ast.fix_missing_locations(tree), inspect.getsourcefile(function), "exec"),
         {**function.__globals__, PROBE: probe}, names)
    return names[function.__name__]


class InsertProbes(ast.NodeTransformer):
    """Adds the probes to a syntax tree."""

    def visit_Assign(self, node):
        calls = [f"{name} = {PROBE}({name!r}, {name})" for name in assigned_names(node)]
        return [node, *ast.parse("\n".join(calls)).body]

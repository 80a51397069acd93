"""Runs a function statement by statement. After an edit of a statement only the rest runs again."""

import ast
import contextlib
import copy
import io

import numpy as np

from npgpt.study.exercises.exercise import statements
from npgpt.study.gradcheck.source import backward_tree, names_in
from npgpt.study.gradcheck.trace import Assignment, is_floating

RESULT = "__result__"


class Returned(Exception):
    """Raised after a `return`."""


class Walk:
    """A function run up to its return or its first exception. `before[i]`: the variables before statement i.

    tree: of a function that `can_walk` accepts; names: its globals, and what else an edit may use; arguments: values.
    """

    def __init__(self, tree, names, arguments):
        self.statements = []
        for each in tree.body:
            if isinstance(each, ast.Return):
                self.statements.append(result_of(each))
                break                       # what follows never runs
            if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):       # a docstring
                self.statements.append(Returns().visit(copy.deepcopy(each)))
        arguments = dict(zip([each.arg for each in (*tree.args.posonlyargs, *tree.args.args)], arguments, strict=False))
        self.globals = set(names) - set(arguments)
        self.used = set().union(*map(names_in, self.statements))       # a notebook's globals hold all its results
        self.codes = [code_of(each) for each in self.statements]
        self.in_place = any(map(writes, self.statements))
        self.has_loop = any(isinstance(node, ast.For) for each in self.statements for node in ast.walk(each))
        self.before = [names | arguments | {"__Returned__": Returned}]
        self.after = self.run(0, {}, self.before)

    def run(self, first, edits, seen=None):
        """Run statements[first:] with edits, {i: statement}. Return the names, None if one raises; seen: all names."""
        in_place = self.in_place or any(map(writes, edits.values()))
        used = self.used.union(*map(names_in, edits.values()))
        names = self.fork(self.before[first], used if in_place else set())
        with silent():
            for i in range(first, len(self.codes)):
                try:
                    exec(code_of(edits[i]) if i in edits else self.codes[i], names)
                except Returned:
                    if seen is not None:
                        seen.append(names)
                    return names
                except (Exception, SystemExit):
                    return None
                if seen is not None:
                    seen.append(names)
                    names = self.fork(names, used if in_place else set())
        return names

    def fork(self, names, used):
        """Return a copy of the names, with copies of the arrays that `used` names: a statement may write to them."""
        return names | copy.deepcopy({name: names[name] for name in used & names.keys()
                                      if isinstance(names[name], np.ndarray | tuple | list | dict)})

    def index(self, line):
        """Return the number of the statement on a line of the file, or None."""
        return next((i for i, each in enumerate(self.statements) if each.lineno <= line <= each.end_lineno), None)

    def record(self):
        """Return the statements' `Assignment`s, in the form of `trace.Recorded`."""
        return [Assignment("", statement.lineno, name, np.array(names[name]))
                for statement, names in zip(self.statements, self.before[1:], strict=False)
                for name in stored_names(statement) if is_floating(names.get(name)) and name != RESULT]


@contextlib.contextmanager
def silent():
    """Suppress output and warnings: the learner's lines have run once already."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), \
            np.errstate(all="ignore"):
        yield


class Returns(ast.NodeTransformer):
    """Turns `return x` into an assignment to `RESULT` that ends the walk, except in nested functions."""

    def visit_Return(self, node):
        return [result_of(node), ast.copy_location(ast.parse("raise __Returned__").body[0], node)]

    def visit_FunctionDef(self, node):
        return node


def can_walk(tree):
    """Return whether a function can be run again with edits: no `while`, no effects outside."""
    nodes = [node for each in tree.body for node in ast.walk(each)]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    unfit = ast.ImportFrom | ast.While | ast.Global | ast.Nonlocal | ast.AsyncFunctionDef
    return imported <= {"math", "numpy"} and not any(isinstance(node, unfit) for node in nodes)


def result_of(node):
    """Return the assignment of x to `RESULT` for `return x`."""
    return ast.copy_location(ast.Assign([ast.Name(RESULT, ast.Store())], node.value or ast.Constant(None)), node)


def writes(statement):
    """Return whether a statement may change an array in place."""
    return any(isinstance(node, ast.AugAssign | ast.Expr) or isinstance(node, ast.Subscript | ast.Attribute)
               and isinstance(node.ctx, ast.Store) for node in ast.walk(statement))


def stored_names(statement):
    """Return the variables that a statement assigns, in order, as the keys of a dict."""
    return dict.fromkeys(node.id for node in ast.walk(statement)
                         if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def code_of(statement):
    return compile(ast.fix_missing_locations(ast.Module([statement], [])), "<statement>", "exec")


def made_at(statement, line):
    """Return the simple statement on a line of a statement."""
    return next((each for each in statements(statement) if each.lineno == line), statement)


def package_walk(case):
    """Return the `Walk` of the package's backward in a case."""
    return Walk(backward_tree(case.lesson), case.lesson.backward.__globals__, case.arguments())


def changed_names(statement):
    """Return the variables that a statement assigns or may change: all in `np.add.at(dwte, …)`, dx in `dx[0] = …`."""
    names = {*stored_names(statement)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= names_in(node.value)
        if isinstance(node, ast.Expr):
            names |= names_in(node)
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names - {"np", "math"}

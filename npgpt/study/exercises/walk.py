"""A backward of the package, statement by statement: what it returns with a mistake in one."""

import ast
import copy

import numpy as np

from npgpt.study.exercises.exercise import statements
from npgpt.study.gradcheck.source import assigned_anywhere, backward_tree, names_in

RESULT = "__result__"


class Walk:
    """A lesson's backward in a `Case`, run statement by statement.

    lesson: with the backward, by default the case's
    statements: without the docstring; a `return x` assigns x to `RESULT`
    before: before[i] are the variables before statement i
    after: those at its end, None if a statement raises
    """

    def __init__(self, case, lesson=None):
        self.lesson = lesson = lesson or case.lesson
        tree = backward_tree(lesson)
        body = tree.body[ast.get_docstring(tree) is not None :]
        self.statements = [
            result_of(each) if isinstance(each, ast.Return) else each for each in body
        ]
        self.codes = [code_of(each) for each in self.statements]
        names = [each.arg for each in tree.args.args]
        outer = lesson.backward.__globals__
        self.before = [outer | dict(zip(names, case.arguments(), strict=True))]
        self.after = self.run_edited(0, {}, seen=self.before)

    def run_edited(self, first, edits, end=None, seen=None):
        """Run statements[first:end] with other ones, {i: statement}.

        Returns the variables at the end, None if one raises. seen: gets those after each statement.
        """
        names = dict(self.before[first])
        for i in range(len(self.statements))[first:end]:
            statement = edits.get(i, self.statements[i])
            written = changed_names(statement) - assigned_anywhere(statement)
            names |= copy.deepcopy({name: names[name] for name in written & names.keys()})
            try:
                with np.errstate(all="ignore"):
                    exec(code_of(statement) if i in edits else self.codes[i], names)
            except Exception:
                return None
            if seen is not None:
                seen.append(dict(names))
        return names


def result_of(node):
    """Return the assignment of x to `RESULT` for `return x`."""
    return ast.copy_location(ast.Assign([ast.Name(RESULT, ast.Store())], node.value), node)


def code_of(statement):
    return compile(ast.fix_missing_locations(ast.Module([statement], [])), "<statement>", "exec")


def changed_names(statement):
    """Return the variables that a statement assigns or may change.

    These are dx in `dx[0] = …`, and all names in `np.add.at(dwte, …)`.
    """
    names = assigned_anywhere(statement)
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            names |= names_in(node.value)
        if isinstance(node, ast.Expr):
            names |= names_in(node)
    return names - {"np"}


def made_at(statement, line):
    """Return the simple statement on a line of a statement."""
    return next((each for each in statements(statement) if each.lineno == line), statement)

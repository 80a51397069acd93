"""The lines of a pair, run once more on arrays of `Term`s: how each number is computed."""

import ast
import collections
import copy

import numpy as np

from npgpt.engine.watch import CALL, Watch, located, watched
from npgpt.study.exercises.terms import entries, opaque
from npgpt.study.exercises.walk import RESULT, changed_names, code_of, result_of
from npgpt.study.gradcheck.source import Selfless, assigned_anywhere, names_in, read_source
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.lessons.lesson import as_tuple, map_arrays

OTHERS = "_forward", "_backward", ".append"  # calls of a line that is not run again
BEFORE = "before"  # a name for `watch`
LARGEST = 1000  # entries of an array: a product of larger ones takes minutes


class Before(Watch):
    """Call `watch` before each statement, with all variables."""

    def visit_Assign(self, node):
        call = ast.parse(f"{CALL}({node.lineno}, {BEFORE!r}, locals())")
        return [*located(call, node).body, node]

    visit_AugAssign = visit_AnnAssign = visit_Expr = visit_Return = visit_Assign


def terms_of(lesson, dy, names):
    """Return (function, line) -> a list: for each time that it runs, {name: array of `Term`s}.

    names: of the arrays on the page. What cannot be computed so is left out: calls of other layers,
    whose lines show it, and of functions that do not take such numbers; and large arrays.
    """
    called = spelled(lesson.forward, lesson.backward, tuple(lesson.inputs))
    names = {name: name for name in names} | {
        old: new for old, new in called.items() if new in names
    }
    found = collections.defaultdict(list)
    constants = {name for name, value in lesson.constants.items() if callable(value)}
    gradients = [f"d{name}" for name in lesson.results]

    def followed(function):
        source = read_source(function)

        def seen(statement, scope):
            terms = made(statement, scope, names, constants)
            if RESULT in terms and function is lesson.backward:  # return dy * w
                terms |= zip(gradients, as_tuple(terms[RESULT]), strict=False)
            found[source.name, statement.first].append(terms)

        def watch(line, name, value):
            statement = source.statement_at(line)
            if statement and name == BEFORE:
                seen(statement, function.__globals__ | value)
            return value

        return watched(function, watch, visitor=Before())

    _, cache = lesson.run_forward(lesson.inputs, followed(lesson.forward))
    lesson.run_backward(map_arrays(np.copy, dy), cache, followed(lesson.backward))
    return found


def made(statement, scope, names, functions):
    """Return {name: array of `Term`s} of what a statement assigns; {} if that fails.

    names: name in the code -> on the page.
    """
    node = ast.parse(statement.text).body[0]
    try:
        node = Selfless().visit(result_of(node) if isinstance(node, ast.Return) else node)
        scope |= {
            name: value
            for name, value in vars(scope.get("self", object)).items()
            if f"self.{name}" in statement.text
        }
        calls = [ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)]
        if any(each.endswith(OTHERS) for each in calls):
            return {}
        read = [scope.get(name) for name in names_in(node)]
        if any(isinstance(each, np.ndarray) and each.size > LARGEST for each in read):
            return {}
        with np.errstate(all="ignore"):
            return in_terms(node, scope, names, functions)
    except Exception:  # of one's own lines, which may do anything
        return {}


def in_terms(node, scope, names, functions, digits=np.asarray):
    """Run a statement on arrays of `Term`s; return {name: array} of what it assigns or changes.

    scope: its variables, which it may change; names: of floating ones -> what their entries are
    called; functions: names of those that take numbers; digits: rounds the numbers. Where an array
    that it fills is 0, what was there is left out.
    """
    assigned = assigned_anywhere(node)
    changed = (changed_names(node) - assigned) & scope.keys()
    scope |= copy.deepcopy({name: scope[name] for name in changed})
    for name in names_in(node) & scope.keys():
        value = scope[name]
        if name in functions or isinstance(value, np.ufunc) and value.nin == 1:
            scope[name] = opaque(value, name)
        elif name in names and np.asarray(value).dtype.kind == "f":
            scope[name] = entries(names[name], digits(value))
            if name in changed:
                scope[name][value == 0] = 0
    exec(code_of(node), scope)
    return {names.get(name, name): scope[name] for name in (assigned | changed) & scope.keys()}

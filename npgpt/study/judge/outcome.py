"""Load a learner's file and call its backward."""

import ast
import contextlib
import copy
import dataclasses
import inspect
import types

import numpy as np

from npgpt.errors import UserError, describe, raised_at
from npgpt.files import keep_lines
from npgpt.study.exercises.exercise import find_function, is_blank, key_of, statements
from npgpt.study.exercises.walk import silent
from npgpt.study.gradcheck.source import backward_tree, parsed
from npgpt.study.gradcheck.trace import Assignment, Recorded

LONGEST = 3000              # assignments that are kept of a call


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a backward did in one case.

    value: its result, `copied`; result: itself, which a later call may change; raised: an exception in one line, or
    None; line: where it was raised, or None; changed: whether it changed its arguments; record: the `Assignment`s of
    its lines, if traced; finished: False if it came to a `...`.
    """

    value: object
    result: object
    raised: str | None
    line: int | None
    changed: bool
    record: list[Assignment]
    finished: bool


@dataclasses.dataclass(frozen=True)
class Solution:
    """A learner's backward. tree: of its `def`, or None if its lines cannot be followed; to_do: the lines of `...`."""

    function: object
    tree: ast.FunctionDef | None
    to_do: list[int]
    file: str


def load_solution(exercise):
    """Run the text of an `Exercise` and return its `Solution`.

    Raises UserError without one, and what running it raises.
    """
    lesson, file = exercise.lesson, str(exercise.path)
    tree = ast.parse(exercise.text, file)
    definition = find_function(tree, lesson.backward)
    to_do = fill_blanks(tree, definition, lesson) if definition else []
    names = {
        **(lesson.forward.__globals__ if lesson.is_own else {}),
        "__name__": "exercise",
        "__file__": file,
    }
    keep_lines(file, exercise.text)
    exec(compile(ast.fix_missing_locations(tree), file, "exec"), names)
    function = names.get(lesson.backward.__name__)
    if not callable(function):
        raise UserError(f"there is no {lesson.backward.__name__} after the file has run: the function to write must "
                        "have that name")
    tree = definition if is_plain(function, definition, file) else None
    return Solution(function, tree, to_do, file)


def solution_of(lesson, function):
    """Return the `Solution` of a function, with its blanks filled, and its text as in a file of the exercise."""
    tree, to_do, text, code = None, [], "", getattr(function, "__code__", None)
    if isinstance(function, types.FunctionType):
        with contextlib.suppress(OSError, TypeError, ValueError, SyntaxError, IndexError):     # there is no source
            tree = parsed(function)
    if isinstance(tree, ast.FunctionDef) and is_plain(function, tree, code.co_filename):
        text = ast.unparse(tree).replace(f"def {tree.name}(", f"def {lesson.backward.__name__}(", 1)
        if to_do := fill_blanks(module := ast.Module([tree], []), tree, lesson):
            names = function.__globals__ | inspect.getclosurevars(function).nonlocals
            exec(compile(ast.fix_missing_locations(module), code.co_filename, "exec"), names)
            function = names[tree.name]
    return Solution(function, tree if text else None, to_do, getattr(code, "co_filename", "")), text


def is_plain(function, definition, file):
    """Return whether a function was made by its `def` in the file, and a call runs its lines."""
    if definition is None or not isinstance(function, types.FunctionType):
        return False
    code, first = function.__code__, min(each.lineno for each in [definition, *definition.decorator_list])
    is_generator = code.co_flags & inspect.CO_GENERATOR
    return (code.co_filename, code.co_firstlineno) == (file, first) and not is_generator


def fill_blanks(tree, function, lesson):
    """Replace each statement with a `...` in a function's tree by the package's, so that the others can be judged.

    Returns the lines that had one. A statement that the package does not have ends the function.
    """
    answers = {key_of(each): each for each in statements(backward_tree(lesson))}
    left = [each for each in statements(function) if is_blank(each)]
    written = {key_of(each) for each in statements(function)}
    calls = [each for key, each in answers.items() if isinstance(each, ast.Expr) and key not in written]
    bodies = [body for node in ast.walk(tree) for _, body in ast.iter_fields(node) if isinstance(body, list)]
    for blank in left:
        answer = answers.get(key_of(blank))
        if answer is None and isinstance(blank, ast.Expr) and len(calls) == 1 and len(function.body) > 3:
            answer = calls[0]               # a bare `...`: the line that assigns nothing
        answer = copy.deepcopy(answer) or ast.parse("__unfinished__").body[0]
        for node in ast.walk(answer):       # they stand on the lines of the blank
            if hasattr(node, "lineno"):
                node.lineno, node.end_lineno = blank.lineno, blank.end_lineno
        for body in bodies:
            body[:] = [answer if each is blank else each for each in body]
    return [each.lineno for each in left]


def run_case(solution, case, traced=False, shown=False):
    """Return the `Outcome` of a solution in a `Case`. traced: record its assignments; shown: show what it prints."""
    arguments = tuple(case.arguments())
    before, value, result, raised, line, finished = contents(arguments), None, None, None, None, True
    function, record = solution.function, []
    if traced and solution.tree:
        recorded = Recorded(function, tree=solution.tree)
        function, record = recorded.function, recorded.record
    with np.errstate(all="ignore") if shown else silent():
        try:
            result = case.lesson.apply(function, arguments)
            value = copied(result)
        except KeyboardInterrupt:           # the user's own
            raise
        except BaseException as error:      # SystemExit and GeneratorExit too
            line = raised_at(error, solution.file)
            # In the place of a `...` stands an unknown name, or a line of the package's with names still to be written.
            finished = not (isinstance(error, NameError) and line in solution.to_do)
            raised = describe(error) if finished else None
    return Outcome(value, result, raised, line, contents(arguments) != before, record[:LONGEST], finished)


def copied(value):
    """Return a result with new arrays; what is no array, None, tuple, list or dict is replaced by its type."""
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    if isinstance(value, tuple | list):
        return (list if isinstance(value, list) else tuple)(map(copied, value))
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return None if value is None else type(value)


def contents(value):
    """Return a value and all that it holds in a form that can be compared by ==."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(key, contents(each)) for key, each in value.items()]
    return [*map(contents, value)] if isinstance(value, list | tuple) else value

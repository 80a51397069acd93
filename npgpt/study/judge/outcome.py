"""Load a learner's file and call its backward."""

import ast
import contextlib
import copy
import dataclasses
import inspect
import io
import traceback
import types

import numpy as np

from npgpt.engine.watch import watched
from npgpt.errors import UserError, describe, raised_at
from npgpt.files import keep_lines
from npgpt.study.exercises.exercise import (
    find_function,
    is_blank,
    key_of,
    package_statements,
    statements,
)
from npgpt.study.gradcheck.source import parsed
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.gradcheck.trace import LINES, Assignment, Recorded
from npgpt.study.lessons.lesson import Lesson
from npgpt.study.lessons.own_state import content

LONGEST = 3000  # assignments that are kept of a call


@dataclasses.dataclass
class Outcome:
    """What a backward did in one case.

    arguments: those of the call that was shown; the others are freed, as in training
    value: its result, `copied`; a list becomes a tuple
    result: the result itself, which a later call may change
    raised: an exception in one line, or None
    line: where it was raised, or None
    changed: whether it changed its arguments
    written: the first line that did so, and which argument; or None
    record: the `Assignment`s of its lines, if traced
    finished: False if it came to a `...`
    last: the last values of its variables
    names: all that the line which raised could read
    """

    arguments: tuple | None = None
    value: object = None
    result: object = None
    raised: str | None = None
    line: int | None = None
    changed: bool = False
    written: tuple | None = None
    record: list[Assignment] = dataclasses.field(default_factory=list)
    finished: bool = True
    last: dict = dataclasses.field(default_factory=dict)
    names: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Solution:
    """A learner's backward.

    tree: of its `def`, or None if its lines cannot be followed; to_do: the lines of `...`; lesson:
    with the backward that the exercise is about.
    """

    function: object
    tree: ast.FunctionDef | None
    to_do: list[int]
    file: str
    lesson: Lesson


def load_solution(exercise):
    """Run the text of an `Exercise` and return its `Solution`.

    Raises UserError without one, and what running it raises.
    """
    lesson, file = exercise.lesson, str(exercise.path)
    tree = ast.parse(exercise.text, file)
    definition = find_function(tree, lesson.backward)
    to_do = fill_blanks(tree, definition, lesson) if definition else []
    names = dict(lesson.forward.__globals__) if lesson.is_own else {}
    names |= {"__name__": "exercise", "__file__": file}
    keep_lines(file, exercise.text)
    exec(compile(ast.fix_missing_locations(tree), file, "exec"), names)
    name = lesson.backward.__name__
    function = names.get(name)
    if not callable(function):
        raise UserError(
            f"there is no {name} after the file has run: the function to write must have that name"
        )
    is_followed = is_plain(function, definition, file)
    return Solution(function, definition if is_followed else None, to_do, file, lesson)


def solution_of(lesson, function):
    """Return the `Solution` of a function, its blanks filled, and its text as in an exercise."""
    tree, to_do, text = None, [], ""
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    if isinstance(function, types.FunctionType):
        # there may be no source
        with contextlib.suppress(OSError, TypeError, ValueError, SyntaxError, IndexError):
            tree = parsed(function)
    if not isinstance(tree, ast.FunctionDef) or not is_plain(function, tree, file):
        return Solution(function, None, [], file, lesson), text
    text = ast.unparse(tree).replace(f"def {tree.name}(", f"def {lesson.backward.__name__}(", 1)
    module = ast.Module([tree], [])
    if to_do := fill_blanks(module, tree, lesson):
        names = function.__globals__ | inspect.getclosurevars(function).nonlocals
        exec(compile(ast.fix_missing_locations(module), file, "exec"), names)
        function = names[tree.name]
    return Solution(function, tree, to_do, file, lesson), text


def is_plain(function, definition, file):
    """Return whether a function was made by its `def` in the file, and a call runs its lines."""
    if definition is None or not isinstance(function, types.FunctionType):
        return False
    code = function.__code__
    first = min(each.lineno for each in [definition, *definition.decorator_list])
    is_generator = code.co_flags & inspect.CO_GENERATOR
    return (code.co_filename, code.co_firstlineno) == (file, first) and not is_generator


def fill_blanks(tree, function, lesson):
    """Replace each statement with a `...` by the package's, so that the others can be judged.

    Returns the lines that had one. A statement that the package does not have ends the function.
    """
    answers = package_statements(lesson)
    mine = statements(function)
    left = [each for each in mine if is_blank(each)]
    calls = [each for each in answers.values() if isinstance(each, ast.Expr)]
    for blank in left:
        answer = answers.get(key_of(blank))
        if answer is None and isinstance(blank, ast.Expr) and len(mine) > 2:
            answer = next(iter(calls), None)  # a bare `...`: the line that assigns nothing
        answer = copy.deepcopy(answer) or ast.parse("__unfinished__").body[0]
        for node in ast.walk(answer):  # they stand on the lines of the blank
            if hasattr(node, "lineno"):
                node.lineno, node.end_lineno = blank.lineno, blank.end_lineno
        for node in ast.walk(tree):
            for body in vars(node).values():
                if isinstance(body, list):
                    body[:] = [answer if each is blank else each for each in body]
    return [each.lineno for each in left]


def run_case(solution, case, traced=False, shown=False, into=None, instead=None):
    """Return the `Outcome` of a solution in a `Case`.

    traced: record its assignments. shown: show what it prints, and keep the arguments.
    into: arguments of an earlier call, whose arrays get the numbers of this case.
    instead: (name, line) -> what a line gives a name, in the place of its own value.
    """
    function, arguments = solution.function, tuple(case.arguments())
    if into is not None:
        arguments = written_into(into, arguments)
    outcome, before = Outcome(arguments if shown else None), [*map(content, arguments)]
    if traced and solution.tree:
        spelling = spelled(case.forward, function, tuple(case.inputs))
        recorded = Recorded(function, tree=solution.tree, spelling=spelling)
        outcome.record, outcome.last = recorded.record, recorded.last
        names = function.__code__.co_varnames

        def watch(line, name, value):
            now = [*map(content, arguments)]
            if not outcome.written and now != before:
                changed = next(i for i, each in enumerate(now) if each != before[i])
                outcome.written = line, names[changed]
            if instead and (spelling.get(name, name), line) in instead:
                value = np.array(instead[spelling.get(name, name), line])
            return recorded.watch(line, name, value)

        function = watched(function, watch, solution.tree, LINES)
    with np.errstate(all="ignore") if shown else silent():
        try:
            outcome.result = case.lesson.apply(function, arguments)
            outcome.value = copied(outcome.result)
            if isinstance(outcome.value, list):
                outcome.value = tuple(outcome.value)
        except KeyboardInterrupt:  # the user's own
            raise
        except BaseException as error:  # SystemExit and GeneratorExit too
            outcome.line = line = raised_at(error, solution.file)
            # In the place of a `...` stands an unknown name, or a line of the package's with names
            # still to be written.
            outcome.finished = not (isinstance(error, NameError) and line in solution.to_do)
            outcome.raised = describe(error) if outcome.finished else None
            outcome.names = names_at(error, solution.file)
    outcome.changed = [*map(content, arguments)] != before
    del outcome.record[LONGEST:]
    return outcome


def written_into(old, new):
    """Return new arguments in the arrays of old ones, if shape and dtype are the same."""
    if type(old) is type(new) is tuple:
        return tuple(map(written_into, old, new))
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        if (old.shape, old.dtype) == (new.shape, new.dtype):
            old[...] = new
            return old
    return new


def names_at(error, file):
    """Return all that the innermost line of a file could read when an exception passed it."""
    names = {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file:
            names = frame.f_globals | frame.f_locals
    return names


@contextlib.contextmanager
def silent():
    """Suppress output and warnings: the learner's lines have run once already."""
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        with np.errstate(all="ignore"):
            yield


def copied(value):
    """Return a result with new arrays.

    Other values than arrays, None, tuples, lists and dicts become their type.
    """
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    if isinstance(value, tuple | list):
        return (list if isinstance(value, list) else tuple)(map(copied, value))
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return None if value is None else type(value)

"""Load a learner's file, call its backward, and keep the outcome as plain data, which can leave the process."""

import ast
import base64
import contextlib
import copy
import dataclasses
import inspect
import io
import traceback
import types
import typing

import numpy as np

from npgpt.errors import one_line
from npgpt.study.exercises.exercise import find_function, is_blank, key_of, statements
from npgpt.study.gradcheck.lessons import basics_and_lessons
from npgpt.study.gradcheck.source import backward_tree
from npgpt.study.gradcheck.trace import Assignment, is_floating, recording

EXCEPTION = 200             # characters of an exception's text that are shown
DEEPEST = 12                # levels of a tree of results; that of the whole GPT-2 has 5
LARGEST = 1 << 20           # values of a result
LONGEST = 3000              # assignments that are kept of a call


class LearnerError(Exception):
    """The file cannot be judged. line: in the learner's file, or None."""

    def __init__(self, message, line=None):
        super().__init__(message)
        self.line = line


class Unfinished(Exception):
    """Raised by a `...` that no line of the package can fill."""


@dataclasses.dataclass(frozen=True)
class Strange:
    """A result that is neither an array nor a tuple or dict of arrays; only its type is kept."""

    kind: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a backward did in one case.

    value: its result, of arrays, tuples, dicts, None and `Strange`; raised: an exception in one line, or None; line:
    where it was raised, or None; changed: whether the arguments were changed; record: the `Assignment`s of its lines,
    if they were traced; finished: False if it came to a `...`.
    """

    value: object
    raised: str | None = None
    line: int | None = None
    changed: bool = False
    record: list[Assignment] = dataclasses.field(default_factory=list)
    finished: bool = True


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """What a backward did in each case, and on float32 inputs.

    to_do: the lines of `...`; followed: whether its lines were traced.
    """

    outcomes: list[Outcome]
    float32: Outcome
    to_do: list[int]
    followed: bool


@dataclasses.dataclass(frozen=True)
class Solution:
    """A learner's backward. tree: of its `def`, or None if its lines cannot be followed; to_do: the lines of `...`."""

    function: object
    tree: ast.FunctionDef | None
    to_do: list[int]
    file: str


def load(name, file):
    """The `Solution` of the lesson `name` in a file. Raises LearnerError if it does not run or has no such function."""
    with open(file, "rb") as source:
        tree = ast.parse(source.read(), str(file))
    lesson = basics_and_lessons()[name]
    definition = find_function(tree, lesson.backward)
    to_do = fill_blanks(tree, definition, lesson) if definition else []
    names = {"__name__": "exercise", "__file__": str(file), "__unfinished__": Unfinished}
    try:
        exec(compile(ast.fix_missing_locations(tree), str(file), "exec"), names)
    except BaseException as error:      # SystemExit, KeyboardInterrupt and GeneratorExit too
        raise LearnerError(describe(error), raised_at(error, file)) from None
    called = lesson.backward.__name__
    function = names.get(called)
    if not callable(function):
        what = f"{called} is {article(type(function).__name__)}" if called in names else f"there is no {called}"
        raise LearnerError(f"{what} after the file has run: the function to write must have that name")
    return Solution(function, definition if is_plain(function, definition, file) else None, to_do, str(file))


def is_plain(function, definition, file):
    """Whether a function is what its `def` in the file made, and its lines run when it is called."""
    if definition is None or not isinstance(function, types.FunctionType):
        return False
    code, first = function.__code__, min([definition.lineno, *(each.lineno for each in definition.decorator_list)])
    lazy = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return code.co_filename == str(file) and code.co_firstlineno == first and not code.co_flags & lazy


def fill_blanks(tree, function, lesson):
    """Replace each statement with a `...` in a function's tree by the package's. Returns the lines that had one.

    Then the finished lines can be judged. A statement that the package does not have ends the function.
    """
    answers = {key_of(each): each for each in statements(backward_tree(lesson))}
    left = [each for each in statements(function) if is_blank(each)]
    written = {key_of(each) for each in statements(function)}
    calls = [each for key, each in answers.items() if isinstance(each, ast.Expr) and key not in written]
    for blank in left:
        answer = answers.get(key_of(blank))
        if answer is None and isinstance(blank, ast.Expr) and len(calls) == 1 and len(function.body) > 3:
            answer = calls[0]               # a bare `...`: the line that assigns nothing
        answer = copy.deepcopy(answer) or ast.parse("raise __unfinished__").body[0]
        Replace(blank, answer).visit(tree)
    return [each.lineno for each in left]


class Replace(ast.NodeTransformer):
    """Puts a statement in the place, and on the line, of another."""

    def __init__(self, old, new):
        self.old, self.new = old, new

    def generic_visit(self, node):
        if node is not self.old:
            return super().generic_visit(node)
        for each in ast.walk(self.new):
            if hasattr(each, "lineno"):
                each.lineno, each.end_lineno = node.lineno, node.end_lineno
        return self.new


def run_cases(solution, tasks):
    """The `Outcomes` of a solution in all `Task`s. What it prints is shown once."""
    outcomes = [run_case(solution, task, traced=i == 0, shown=i == 0) for i, task in enumerate(tasks)]
    return Outcomes(outcomes, run_case(solution, tasks[0].in_float32()), solution.to_do, solution.tree is not None)


def run_case(solution, task, traced=False, shown=False):
    """The `Outcome` of a solution in a `Task`. traced: record its assignments; shown: show what it prints."""
    arguments = tuple(task.arguments())
    before, value, raised, line, finished = encode(arguments), None, None, None, True
    trace = recording([solution.function]) if traced and solution.tree else contextlib.nullcontext([])
    with np.errstate(all="ignore") if shown else silent(), trace as record:
        try:
            value = decode(encode(solution.function(*arguments)))
        except Unfinished:
            finished = False
        except BaseException as error:      # SystemExit, KeyboardInterrupt and GeneratorExit too
            raised, line = describe(error), raised_at(error, solution.file)
    return Outcome(value, raised, line, encode(arguments) != before, record[:LONGEST], finished)


@contextlib.contextmanager
def silent():
    """Print nothing, not even warnings, within it: the learner's lines have run once already."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), \
            np.errstate(all="ignore"):
        yield


def encode(value, depth=0):
    """A result as JSON data: arrays by dtype, shape and bytes, tuples and dicts, the rest by the type's name."""
    if value is None:
        return None
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiub" and value.size <= LARGEST:
        array = np.asarray(value)
        data = base64.b64encode(array.tobytes()).decode()
        return {"array": array.dtype.str, "shape": list(array.shape), "data": data}
    if depth < DEEPEST and isinstance(value, tuple):
        return {"tuple": [encode(each, depth + 1) for each in value]}
    if depth < DEEPEST and isinstance(value, dict) and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, encode(each, depth + 1)] for key, each in value.items()]}
    if inspect.iscoroutine(value):
        value.close()       # otherwise Python warns that it was never awaited
    return {"strange": value.kind if isinstance(value, Strange) else type(value).__name__}


def decode(data, depth=0):
    """The value that `encode` was given, with new arrays. Raises ValueError for data that `encode` does not make."""
    match data:
        case None:
            return None
        case {"array": str(kind), "shape": list(shape), "data": str(data)}:
            try:
                return np.frombuffer(base64.b64decode(data), np.dtype(kind)).reshape([int(n) for n in shape]).copy()
            except (TypeError, ValueError) as error:
                raise ValueError("a damaged array") from error
        case {"tuple": list(parts)} if depth <= DEEPEST:
            return tuple(decode(each, depth + 1) for each in parts)
        case {"dict": list(parts)} if depth <= DEEPEST:
            return {key: decode(each, depth + 1) for key, each in parts if type(key) in (str, int)}
        case {"strange": str(kind)}:
            return Strange(one_line(kind, 80))
    raise ValueError("a damaged result")


def to_json(value):
    """What `json.dumps` writes for a dataclass or an array."""
    match value:
        case Outcome():
            return vars(value) | {"value": encode(value.value)}
        case Assignment():
            return [*vars(value).values()]          # without the names, because there are thousands
    return vars(value) if dataclasses.is_dataclass(value) else encode(value)


def checked(value, kind):
    """A value from JSON as its annotation says: a dataclass, list[kind], a result, or plain. Raises ValueError."""
    if typing.get_origin(kind) is list:
        return [checked(each, *typing.get_args(kind)) for each in checked(value, list)]
    if dataclasses.is_dataclass(kind):
        kinds = typing.get_type_hints(kind)
        value = dict(zip(kinds, value, strict=True)) if isinstance(value, list) else checked(value, dict)
        if value.keys() != kinds.keys():
            raise ValueError(f"other fields than those of {kind.__name__}")
        return kind(**{name: checked(value[name], kinds[name]) for name in kinds})
    if kind in (object, np.ndarray):
        value = decode(value)
        if kind is np.ndarray and not is_floating(value):
            raise ValueError("not an array of floating numbers")
        return value
    if type(value) not in (typing.get_args(kind) or (kind,)):       # not isinstance: True is no line number
        raise ValueError(f"not {kind}")
    return one_line(value) if isinstance(value, str) else value


def raised_at(error, file):
    """The line of a file that raised an exception: the innermost of that file, of an endless recursion the outermost.

    None if there is none.
    """
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    return lines[0 if isinstance(error, RecursionError) else -1] if lines else None


def describe(error):
    """An exception as one short line: its type and the first line of its text."""
    try:
        text = str(error).strip().split("\n", 1)[0]
    except BaseException:       # an exception whose __str__ fails
        text = ""
    return one_line(f"{type(error).__name__}: {text}" if text else type(error).__name__, EXCEPTION)


def article(noun):
    return noun if noun == "NoneType" else f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"

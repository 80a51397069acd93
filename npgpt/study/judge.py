"""Check a learner's backward line by line, in a process with limits.

`judge` checks a function. `run_child` starts this module on a file, so that nothing of the file runs in the calling
process. The answer comes back as one line of JSON.

This protects from accidents: endless loops, processes left behind, too much memory, files or output, a damaged answer,
escape codes. It is no sandbox: the code runs as the user, and can delete the user's files, use the network, and claim
to be right. Do not check files of people whom you do not trust. All limits hold on Linux (for root, the number of
processes has no limit; they are still killed at the end). macOS may not limit memory, and a process that leaves its
process group survives there. On Windows there is only the time limit, and processes that the code started survive.
Limits hold for each process and each file, not for their sum.
"""

import contextlib
import copy
import dataclasses
import functools
import json
import os
import sys
import typing

import numpy as np

from npgpt.errors import UserError, one_line, printable
from npgpt.study.diagnosis import diagnose, gather
from npgpt.study.gradcheck import OK, TOLERANCE, WRONG, check, errors, truth
from npgpt.study.lessons import basics_and_lessons
from npgpt.study.process import run
from npgpt.study.source import read_source
from npgpt.study.trace import recording

MEMORY = 4 << 30            # bytes of address space; NumPy and BLAS take one of them before anything is computed
FILE_SIZE = 16 << 20        # bytes of a file that the learner's code writes
OPEN_FILES = 64
OUTPUT = 64 << 10           # bytes of what the learner's code prints that are shown
ANSWER = 1 << 20            # bytes of an answer; that of a block has a few thousand
EXCEPTION = 200             # characters of an exception's text that are shown
NO_GRADIENT = "no dv"       # a verdict beside those of gradcheck.py: the backward has no gradient of that name


class LearnerError(Exception):
    """The function cannot be judged. line: in the learner's file, or None."""

    def __init__(self, message, line=None):
        super().__init__(message)
        self.line = line


@dataclasses.dataclass
class Line:
    """The check of one gradient: of `variable`, at a line of the learner's file (or None).

    verdict: as in gradcheck.py, or NO_GRADIENT; relative: its error, or None; diagnosis: the mistake, if recognised.
    """

    variable: str
    line: int | None
    verdict: str
    relative: float | None
    diagnosis: str | None = None


@dataclasses.dataclass
class Report:
    """The verdict on a backward.

    notes: what is wrong beside the numbers; results: the variables whose gradients are returned; differs: names with
    other values than in the package's backward, in its order.
    """

    lines: list[Line]
    notes: list[str]
    results: list[str]
    differs: list[str]

    @property
    def right(self):
        return not self.notes and all(line.verdict != WRONG for line in self.lines)

    @property
    def first(self):
        """The line of the first wrong gradient, or None."""
        return min((line.line for line in self.lines if line.verdict == WRONG and line.line is not None), default=None)


@dataclasses.dataclass
class Refusal:
    """Why there is no `Report`: a sentence, and the line of the learner's file, or None."""

    error: str
    line: int | None


@functools.cache
def lesson_truth(name):
    """The `Truth` of a lesson, computed once."""
    return truth(basics_and_lessons()[name])


@functools.cache
def lesson_known(name):
    """What wrong gradients of a lesson are compared with (`Known`), and the record of the package's backward."""
    known = lesson_truth(name)
    lesson = known.lesson
    with recording([lesson.forward]) as forward_record:
        lesson.run_forward(lesson.inputs)
    with recording([lesson.backward]) as record:
        lesson.run_backward(known.dy, copy.deepcopy(known.cache))
    return gather(known, forward_record, record), record


def judge(name, backward, file):
    """The `Report` on a function in place of the backward of the lesson `name`.

    file: the function's file, for the line numbers of errors. Raises LearnerError if the function raises something, or
    does not return what a backward of this lesson returns.
    """
    known = lesson_truth(name)
    lesson = known.lesson
    dy, cache = copy.deepcopy((known.dy, known.cache))
    with recording([backward]) as record:
        result = guarded(file, returned, lesson, backward, dy, cache)
    notes = written_to(lesson, (known.dy, known.cache), (dy, cache))
    notes += guarded(file, other_dtype, lesson, backward)
    fresh = dataclasses.replace(known, dy=known.dy.copy(), cache=copy.deepcopy(known.cache))
    checks = guarded(file, check, lesson, backward, fresh)

    comparison, package_record = lesson_known(name)
    lines = []
    for each, true in zip(checks, [*known.inputs.values(), *known.gradients], strict=True):
        gradient = f"d{each.variable}"
        if each.verdict == OK and (gradient == lesson.upstream or lines and lines[-1].variable == each.variable):
            continue            # what was given; and `y = y + bias` has two y but one dy
        line = Line(each.variable, each.backward_line, each.verdict, finite(each.relative))
        if each.verdict == WRONG and each.variable in known.inputs:
            judge_result(line, result[gradient], true, comparison)
        elif each.verdict == WRONG:
            judge_intermediate(line, [one for one in record if one.name == gradient], true, comparison)
        lines.append(line)
    lines.sort(key=lambda line: line.line or 0)
    return Report(lines, notes, list(known.inputs), differing(package_record, record))


def judge_result(line, given, true, comparison):
    """Add the diagnosis of a wrong result. Raises LearnerError for a wrong shape that is not recognised."""
    line.diagnosis = diagnose(f"d{line.variable}", given, true, comparison)
    if line.diagnosis is None and np.shape(given) != true.shape:
        raise LearnerError(f"d{line.variable} has shape {np.shape(given)}, but {line.variable} has shape {true.shape}",
                           line.line)


def judge_intermediate(line, assigned, true, comparison):
    """Correct the verdict on an intermediate gradient, or add the diagnosis; assigned: its values, in order.

    Nobody has to use the package's names, so a missing gradient is no mistake. A gradient may be computed in parts: it
    is right if one of its values is.
    """
    if not assigned:
        line.verdict, line.relative = NO_GRADIENT, None
        return
    for one in assigned:
        error = errors(one.value, true)[1]
        if error <= TOLERANCE:
            line.verdict, line.line, line.relative = OK, one.line, error
            return
    given = assigned[-1].value
    line.diagnosis = diagnose(f"d{line.variable}", given, true, comparison)
    if line.diagnosis is None and given.shape != true.shape:
        line.diagnosis = f"its shape is {given.shape}, not {true.shape}"


def returned(lesson, backward, dy, cache):
    """{"dx": …} as a backward returns it, an array for each input; LearnerError for anything else."""
    kept = []

    def keeping(*arguments):
        kept.append(backward(*arguments))
        check_results(lesson, kept[0], line)
        return kept[0]

    line = last_return(backward)
    result = lesson.run_backward(dy, cache, keeping)
    for name in lesson.inputs:
        if f"d{name}" not in result:
            raise LearnerError(f"d{name} is missing in dp", line)
        value = result[f"d{name}"]
        if not isinstance(value, np.ndarray | np.floating) or value.dtype.kind != "f":
            what = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
            raise LearnerError(f"d{name} is {what}, not an array of floating numbers", line)
    for name in result:
        if name[1:] not in lesson.inputs:
            raise LearnerError(f"dp has {name[1:]}, which is no parameter", line)
    return result


def check_results(lesson, result, line):
    """Raise LearnerError if a backward did not return as many results as it should, with the tree in its place."""
    names = [f"d{name}" for name in lesson.inputs if "." not in name] + ["dp"] * lesson.is_composite
    wanted = f"{len(names)} ({', '.join(names)})" if len(names) > 1 else \
        f"one {'tree' if lesson.is_composite else 'array'} ({names[0]})"
    number = len(result) if isinstance(result, tuple) else 1
    if result is None or number != len(names) or isinstance(result, tuple) != (len(names) > 1):
        what = f"{number} results" if isinstance(result, tuple) else "None" if result is None else \
            f"a {type(result).__name__}"
        raise LearnerError(f"{lesson.backward.__name__} returned {what}, not {wanted}", line)
    last = result[-1] if isinstance(result, tuple) else result
    if lesson.is_composite and not isinstance(last, dict):
        raise LearnerError(f"dp is a {type(last).__name__}, not a tree of gradients (a dict)", line)


def last_return(function):
    """The line of a function's last `return`, or of its `def`."""
    source = read_source(function)
    return max((each.first for each in source.statements if each.text.startswith("return")), default=source.first)


def guarded(file, function, *arguments):
    """Call a function; an exception becomes a LearnerError with the line of `file` that raised it."""
    try:
        return function(*arguments)
    except LearnerError:
        raise
    except BaseException as error:      # SystemExit too
        line, step = None, error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename == str(file):
                line = step.tb_lineno
            step = step.tb_next
        raise LearnerError(describe(error), line) from None


def describe(error):
    """An exception as one short line: its type and the first line of its text."""
    try:
        text = str(error).strip().split("\n", 1)[0]
    except BaseException:       # an exception whose __str__ fails
        text = ""
    return one_line(f"{type(error).__name__}: {text}" if text else type(error).__name__, EXCEPTION)


def written_to(lesson, before, after):
    """A note for each argument that a backward changed in place. before, after: (dy, cache)."""
    notes = []

    def compare(name, old, new):
        if isinstance(old, np.ndarray):
            if not np.array_equal(old, new, equal_nan=True):
                notes.append(f"{name} is written to in place: make a new array, because it belongs to the caller")
        elif isinstance(old, tuple | list | dict):
            for key in old if isinstance(old, dict) else range(len(old)):
                compare(f"{name}[{key!r}]", old[key], new[key])

    compare(lesson.upstream, before[0], after[0])
    compare("cache", before[1], after[1])
    return notes


def other_dtype(lesson, backward):
    """A note for each gradient that is not float32 although all inputs are."""
    lesson = lesson.astype(np.float32)
    y, cache = lesson.run_forward(lesson.inputs)
    result = lesson.run_backward(np.ones_like(y), cache, backward)
    return [f"{name} is {value.dtype}, but all inputs are float32" for name, value in result.items()
            if np.asarray(value).dtype != np.float32]


def finite(number):
    return number if number is not None and np.isfinite(number) else None


def differing(expected, record):
    """The names whose last value is another than in the package's backward, in its order."""
    differs = []
    for name in dict.fromkeys(each.name for each in expected):
        ours = [each.value for each in expected if each.name == name][-1]
        theirs = [each.value for each in record if each.name == name]
        if theirs and errors(theirs[-1], ours)[1] > TOLERANCE:
            differs.append(name)
    return differs


def load_function(file, name):
    """Run a file and return its function of that name. Raises LearnerError as `guarded` does."""
    with open(file, "rb") as source:
        code = compile(source.read(), str(file), "exec")
    names = {"__name__": "exercise", "__file__": str(file)}
    guarded(file, exec, code, names)
    return names[name]


def run_child(exercise, seconds):
    """The `Report` on an exercise, from a child process. After `seconds` it is killed, with all that it started.

    Raises UserError if the learner's code raises, runs too long, ends the process or returns something wrong.
    """
    # -P: no packages from the learner's folder; -u: output before a sudden end is not lost.
    command = [sys.executable, "-P", "-u", "-m", __name__, str(exercise.path), exercise.lesson.name, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                   "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    how, answer, output = run(command, environment, seconds, (ANSWER, OUTPUT + 1))
    show(output)
    if how is None:
        raise UserError(f"{exercise.path}: {exercise.lesson.backward.__name__} has not ended within {seconds:g} "
                        "seconds: is there an endless loop? (--time-limit gives it longer)")
    try:
        answer = read_answer(answer)
    except (ValueError, RecursionError):
        did = "ended or disturbed its process" if how == "exit code 0" else f"ended its process ({how})"
        raise UserError(f"{exercise.path}: the code {did} before it could be checked") from None
    if isinstance(answer, Refusal):
        line = f", line {answer.line}" if answer.line else ""
        raise UserError(f"{exercise.path}{line}: {answer.error}")
    return answer


def show(output):
    """Print the output of the learner's code, up to `OUTPUT` bytes and without escape codes."""
    text = printable(output[:OUTPUT].decode(errors="replace"), kept="\n\t")
    print(text, end="" if text.endswith("\n") or not text else "\n", file=sys.stderr)
    if len(output) > OUTPUT:
        print("[more output left out]", file=sys.stderr)


def read_answer(data):
    """The `Report` or `Refusal` in a child's answer. Raises ValueError or RecursionError if it is neither.

    The learner's code may have written to it, so everything is validated.
    """
    answer = json.loads(data)
    kind = Refusal if isinstance(answer, dict) and "error" in answer else Report
    answer = checked(answer, kind)
    if kind is Report and not answer.lines:
        raise ValueError("a report without lines")
    return answer


def checked(value, kind):
    """A value from JSON as what its annotation says: a dataclass, list[kind], or plain. Raises ValueError otherwise."""
    if typing.get_origin(kind) is list:
        return [checked(each, *typing.get_args(kind)) for each in checked(value, list)]
    if dataclasses.is_dataclass(kind):
        kinds = typing.get_type_hints(kind)
        if checked(value, dict).keys() != kinds.keys():
            raise ValueError(f"other fields than those of {kind.__name__}")
        return kind(**{name: checked(value[name], kinds[name]) for name in kinds})
    if type(value) not in (typing.get_args(kind) or (kind,)):       # not isinstance: True is no line number
        raise ValueError(f"not {kind}")
    if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        raise ValueError("not a finite number")
    return one_line(value) if isinstance(value, str) else value


def limit(seconds):
    """Limit the resources of this process, as far as the system can."""
    try:
        import resource
    except ImportError:         # Windows
        return
    time = int(seconds) + 5     # more than its supervisor allows
    for name, most in (("CPU", time), ("AS", MEMORY), ("FSIZE", FILE_SIZE), ("NOFILE", OPEN_FILES), ("CORE", 0),
                       ("NPROC", 0)):       # it counts all processes of the user: 0 means that no other may be added
        with contextlib.suppress(AttributeError, ValueError, OSError):      # no system has all of them
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def main(file, name, seconds):
    """The child: judge the backward in a file and write the answer to the original standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)           # what the learner's code prints goes to standard error
    try:
        lesson_known(name)  # before the learner's code runs, which could change the package
        limit(float(seconds))
        answer = judge(name, load_function(file, basics_and_lessons()[name].backward.__name__), file)
    except (LearnerError, ImportError) as error:        # ImportError: SciPy is missing
        answer = Refusal(one_line(error), getattr(error, "line", None))
    print(json.dumps(dataclasses.asdict(answer)), file=answers, flush=True)
    os._exit(0)             # without the learner's threads and exit handlers


if __name__ == "__main__":
    main(*sys.argv[1:])

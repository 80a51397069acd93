"""Judge a learner's file in a process with limits, so that nothing of the file runs in the calling process.

`run_child` starts this module on a file. The answer comes back as one line of JSON.

This protects from accidents: endless loops, processes left behind, too much memory, files or output, a damaged answer,
escape codes. It is no sandbox: the code runs as the user, and can delete the user's files, use the network, and claim
to be right. Do not check files of people whom you do not trust. All limits hold on Linux (for root, the number of
processes has no limit; they are still killed at the end). macOS may not limit memory, and a process that leaves its
process group survives there. On Windows there is only the time limit, and processes that the code started survive.
Limits hold for each process and each file, not for their sum.
"""

import contextlib
import dataclasses
import json
import os
import sys
import typing

from npgpt.errors import UserError, one_line, printable
from npgpt.study.judge import LearnerError, Report, judge_file
from npgpt.study.process import run
from npgpt.study.truth import cases

MEMORY = 4 << 30            # bytes of address space; NumPy and BLAS take one of them before anything is computed
FILE_SIZE = 16 << 20        # bytes of a file that the learner's code writes
OPEN_FILES = 64
OUTPUT = 64 << 10           # bytes of what the learner's code prints that are shown
ANSWER = 1 << 20            # bytes of an answer; that of a block has a few thousand


@dataclasses.dataclass
class Refusal:
    """Why there is no `Report`: a sentence, and the line of the learner's file, or None."""

    error: str
    line: int | None


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
    if kind is Report and answer.right and not answer.lines:
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
        cases(name)         # before the learner's code runs, which could change the package
        limit(float(seconds))
        answer = judge_file(name, file)
    except (LearnerError, ImportError) as error:        # ImportError: SciPy is missing
        answer = Refusal(one_line(error), getattr(error, "line", None))
    print(json.dumps(dataclasses.asdict(answer)), file=answers, flush=True)
    os._exit(0)             # without the learner's threads and exit handlers


if __name__ == "__main__":
    main(*sys.argv[1:])

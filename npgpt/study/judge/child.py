"""Judge a learner's file in a process with limits, so that nothing of the file runs in the calling process.

The process judges an exercise, or checks the lines of a layer of one's own, and writes what it finds as JSON. A verdict
"right" on an exercise is checked here: the results of every case are compared again, so code that has changed NumPy or
the judge is not believed. (A layer of one's own has no truth but its own.)

This protects from accidents, such as endless loops, too much memory or output, and a damaged answer. It is no sandbox:
the code runs as the user, can delete files and use the network, and what leaves its process group survives. Do not
check files of people whom you do not trust. All limits hold on Linux, macOS may not limit memory, and on Windows there
is only the time limit. They hold for each process and each file, not for their sum.

Each process answers one request. A program that asks often keeps a spare one, which has imported everything by then.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from npgpt.errors import UserError, describe, one_line, printable, raised_at
from npgpt.files import read_python, run_python
from npgpt.study.exercises.exercise import Step
from npgpt.study.exercises.walk import silent
from npgpt.study.gradcheck.check import LineCheck, best_check, relative_error
from npgpt.study.gradcheck.truth import cases
from npgpt.study.judge.judge import explained, new_seed, verdict
from npgpt.study.judge.outcome import from_json, load_solution, to_json
from npgpt.study.judge.report import Report
from npgpt.study.judge.shapes import EXACT
from npgpt.study.lessons.own import read_pairs
from npgpt.study.lessons.own_block import block_lesson

TIME_LIMIT = 20.0           # seconds for a file, by default
MEMORY = 4 << 30            # bytes of address space; NumPy and BLAS take one of them before anything is computed
FILE_SIZE = 64 << 20        # bytes of a file that the code writes, and of an answer; a deep GPT-2's has 13 million
OUTPUT = 64 << 10           # bytes of what the learner's code prints that are shown
# -P: no packages from the learner's folder; -u: output before a sudden end is not lost.
MAIN = "-P", "-u", "-c", f"from {__name__} import main; main()"
DEATH_SIGNAL, SUBREAPER = 1, 36         # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the process found: of an exercise `report`, and the `results` of each case if all are right.

    layers: the checks of each pair in a file; error: why there is nothing else, to be said after the path.
    """

    report: Report | None = None
    results: list[list[np.ndarray | None]] = dataclasses.field(default_factory=list)
    layers: list[list[LineCheck]] = dataclasses.field(default_factory=list)
    remarks: list[str] = dataclasses.field(default_factory=list)
    error: str = ""


def run_child(exercise, seconds, seed=None):
    """Return the `Report` on an exercise, from a process that may run for `seconds`. seed: of the random cases.

    Raises UserError if the learner's file does not run, runs too long or ends the process.
    """
    seed = new_seed() if seed is None else seed
    known = None if exercise.lesson.is_own else functools.partial(cases, exercise.layer, seed)
    arguments = exercise.layer, exercise.what, seed
    return ask(exercise.path, seconds, arguments, exercise.lesson.backward.__name__, known).report


def check_layer(file, name="", inputs=(), seconds=TIME_LIMIT):
    """Return the `Answer` on a file with a pair of one's own. inputs: texts of --input.

    Raises UserError, with the line, if the file has no pair, does not run, runs too long or ends the process; OSError.
    """
    read_python(file)
    return ask(file, seconds, ("", name or "", *inputs), "the code")


def ask(path, seconds, arguments, function, known=None, run=None):
    """Return the `Answer` of the process on a file; UserError if there is none. function: what may not have ended.

    known(): the `Case`s with which right results are compared once more; run: instead of `Spare.run`.
    """
    request = json.dumps([str(path), seconds, *arguments]).encode() + b"\n"
    how, data, output = (run or SPARE.run)(request, seconds)
    text = printable(output[:OUTPUT].decode(errors="replace"), kept="\n\t")
    print(text, end="" if text.endswith("\n") or not text else "\n", file=sys.stderr)
    if len(output) > OUTPUT:
        print("[more output left out]", file=sys.stderr)
    try:
        answer = read_answer(data)
        if arguments[0] and answer.report is None and not answer.error:
            raise ValueError("no verdict")
        if known and answer.report and answer.report.right:
            confirm(answer.results, known())
    except (ValueError, TypeError, OverflowError, RecursionError):
        if how is None:
            raise UserError(f"{path}: {function} has not ended within {seconds:g} seconds: "
                            "is there an endless loop? (--time-limit gives it longer)") from None
        did = "ended or disturbed its process" if how == "exit code 0" else f"ended its process ({how})"
        raise UserError(f"{path}: the code {did} before it could be checked") from None
    if answer.error:
        raise UserError(f"{path}{answer.error}")
    return answer


class Child(subprocess.Popen):
    """Python in a process group of its own. first: a folder that is searched first for packages."""

    def __init__(self, *arguments, first=None, cwd=None):
        self.written = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        folders = [*filter(None, [first]), *map(os.path.abspath, sys.path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1",
                       "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | ({"TMPDIR": cwd} if cwd else {})
        super().__init__([sys.executable, *arguments], env=environment, stdin=subprocess.PIPE, stdout=self.written[0],
                         stderr=self.written[1], start_new_session=True, cwd=cwd)

    def run(self, request, seconds):
        """Let it answer, and kill its group. Return "exit code 3", "signal 9" or None (too long), and both outputs."""
        how, (output, errors) = None, self.written
        with output, errors:
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.communicate(request, seconds)
                    how = f"signal {-self.returncode}" if self.returncode < 0 else f"exit code {self.returncode}"
            finally:
                with contextlib.suppress(AttributeError, OSError):  # Windows has no groups; all of the group has ended
                    os.killpg(self.pid, signal.SIGKILL)
                self.kill()
                self.wait()
                self.stdin.close()
            output.seek(0)
            errors.seek(0)
            return how, output.read(FILE_SIZE), errors.read(OUTPUT + 1)


class Spare:
    """After `keep`, a process that waits for the next request; it ends when this process does."""

    thread = concurrent.futures.ThreadPoolExecutor(1)       # Linux ends a process with the thread that started it
    future = None

    def keep(self):
        """Start a process in the background."""
        self.future = self.thread.submit(Child, *MAIN)

    def run(self, request, seconds):
        """Return what `Child.run` returns; if there was a spare, start the next one."""
        future, self.future = self.future, None
        child = future.result() if future else Child(*MAIN)
        if child.poll() is not None:        # somebody ended it
            child.run(b"", 0)
            child = Child(*MAIN)
        try:
            return child.run(request, seconds)
        finally:
            if future:
                self.keep()


SPARE = Spare()


def read_answer(data):
    """Return the `Answer` in the last whole line of a process, which the learner's code may have written."""
    *_, last, _ = data.split(b"\n")
    return from_json(json.loads(last), Answer)


def confirm(results, known):
    """Raise ValueError unless results are the true ones of all `Case`s."""
    for given, case in zip(results, known, strict=True):
        for value, true in zip(given, case.results.values(), strict=True):
            if value is not None if true is None else relative_error(value, true) > EXACT:
                raise ValueError("a wrong result")


def prctl(option, value):
    """Call Linux's prctl; on other systems nothing happens."""
    if sys.platform == "linux":
        import ctypes
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def go_on_in_a_child():
    """On Linux, return in a child of this process, which waits and ends as the child does; each ends with its parent.

    So code that kills its parent ends a process that belongs to it.
    """
    prctl(DEATH_SIGNAL, 9)
    if sys.platform == "linux" and (child := os.fork()):        # macOS's BLAS does not survive a fork
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            with contextlib.suppress(OSError):          # SIGKILL has no handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)
    prctl(DEATH_SIGNAL, 9)


def limit(seconds):
    """Limit the resources of this process, as far as the system can."""
    # CPU: more than the parent allows; NPROC counts all processes of the user, so with 0 none may be added.
    for name, most in {"CPU": int(time.process_time() + seconds) + 5, "AS": MEMORY, "FSIZE": FILE_SIZE, "NOFILE": 64,
                       "CORE": 0, "NPROC": 0}.items():
        with contextlib.suppress(ImportError, AttributeError, ValueError, OSError):     # no system has all of them
            import resource
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def main():
    """The process: read a line of JSON, [file, seconds, layer, what, seed] of an exercise or [file, seconds, "", name,
    *inputs] of a layer of one's own; judge the file, and answer on the original standard output.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)           # what the learner's code prints goes to standard error
    request = sys.stdin.buffer.readline()
    if not request:         # the parent has ended
        os._exit(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)        # the learner's code has nothing to read
    file, seconds, layer, what, *more = json.loads(request)
    go_on_in_a_child()

    def send(answer):
        print(json.dumps(answer, default=to_json), file=answers, flush=True)

    try:
        limit(seconds)
        if layer:
            judge_exercise(Step(layer, what), file, *more, send)
        else:
            send(checked_pairs(file, what, more))
    except BaseException as error:          # also SystemExit, and an ImportError of the package's if SciPy is missing
        line, text = raised_at(error, file), one_line(error)
        said = f", line {line}: {describe(error)}" if line else f": {text}"
        send(Answer(error=text[len(file):] if text.startswith(file) else said))
    os._exit(0)             # without the learner's threads and exit handlers


def judge_exercise(step, file, seed, send):
    """Send the verdict on an exercise; if it is wrong, send it again with the mistake in words."""
    known, numpy = cases(step.layer, seed), dict(vars(np))      # before the code runs
    solution = load_solution(step.lesson, file)
    vars(np).update(numpy)      # a file may change NumPy, with which the judge computes
    wrong, report, results = verdict(known, solution, seed)
    send(Answer(report, [[*map(each.get, case.results)] for each, case in zip(results, known, strict=True)]
                if report.right else []))
    if wrong is not None:
        with silent(), contextlib.suppress(Exception):      # no words if the code ends otherwise this time
            send(Answer(explained(solution, known, wrong, report)))


def checked_pairs(file, name, inputs):
    """Return the `Answer` on a file, which runs in this process. inputs: texts of --input. Raises what it raises."""
    names = run_python(file)[1]
    block, checks, remarks = block_lesson(file, names), [], []
    only_block = block and (name == "block" or not any(each.endswith("_forward") for each in names))
    lessons = [] if only_block else read_pairs(file, name or None, tuple(inputs))
    for lesson in [*lessons, block] if block and name in ("", "block") else lessons:
        found, remark = best_check(lesson.at())
        checks.append(found)
        remarks += [remark] * bool(remark)
    return Answer(layers=checks, remarks=remarks)

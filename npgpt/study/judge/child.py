"""Judge a learner's file in a process with limits, so that nothing of the file runs in the calling process.

The process judges the file and writes what it finds as JSON. A verdict "right" is checked here: the results of every
case are compared again, so code that has changed NumPy or the judge is not believed.

This protects from accidents, such as endless loops, too much memory or output, and a damaged answer. It is no sandbox:
the code runs as the user, can delete files and use the network, and what leaves its process group survives. Do not
check files of people whom you do not trust. All limits hold on Linux, macOS may not limit memory, and on Windows there
is only the time limit. They hold for each process and each file, not for their sum.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile

import numpy as np

from npgpt.errors import UserError, one_line, printable
from npgpt.model.config import GPTConfig
from npgpt.study.exercises.exercise import Step
from npgpt.study.exercises.walk import silent
from npgpt.study.gradcheck.check import relative_error
from npgpt.study.gradcheck.truth import cases
from npgpt.study.judge.judge import explained, new_seed, verdict
from npgpt.study.judge.outcome import checked, describe, load, raised_at, to_json
from npgpt.study.judge.report import Report
from npgpt.study.judge.shapes import EXACT

MEMORY = 4 << 30            # bytes of address space; NumPy and BLAS take one of them before anything is computed
FILE_SIZE = 64 << 20        # bytes of a file that the code writes, and of an answer; a deep GPT-2's has 13 million
OUTPUT = 64 << 10           # bytes of what the learner's code prints that are shown


@dataclasses.dataclass(frozen=True)
class Answer:
    """A report, with the results of each case if all are right; or why there is none, and the line of the file."""

    report: Report | None
    results: list[list[np.ndarray | None]]
    error: str
    line: int | None


def run_child(exercise, seconds, seed=None, config=None):
    """The `Report` on an exercise, from a process that may run for `seconds`.

    seed: of the random cases, by default another one at each call; config: of a model, for one more case. Raises
    UserError if the learner's file does not run, runs too long or ends the process.
    """
    seed, path = new_seed() if seed is None else seed, exercise.path
    # -P: no packages from the learner's folder; -u: output before a sudden end is not lost.
    command = [sys.executable, "-P", "-u", "-m", __name__, str(path), exercise.name, str(seconds), str(seed),
               *([json.dumps(dataclasses.asdict(config))] if config else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path),
                   "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    how, data, output = run(command, environment, seconds)
    text = printable(output[:OUTPUT].decode(errors="replace"), kept="\n\t")
    print(text, end="" if text.endswith("\n") or not text else "\n", file=sys.stderr)
    if len(output) > OUTPUT:
        print("[more output left out]", file=sys.stderr)
    try:
        answer = read_answer(data)
        if answer.report and answer.report.right:
            confirm(answer.results, cases(exercise.lesson.name, seed, config))
    except (ValueError, TypeError, OverflowError, RecursionError):
        if how is None:
            raise UserError(f"{path}: {exercise.lesson.backward.__name__} has not ended within {seconds:g} seconds: "
                            "is there an endless loop? (--time-limit gives it longer)") from None
        did = "ended or disturbed its process" if how == "exit code 0" else f"ended its process ({how})"
        raise UserError(f"{path}: the code {did} before it could be checked") from None
    if answer.report is None:
        line = f", line {answer.line}" if answer.line else ""
        raise UserError(f"{path}{line}: {answer.error}")
    return answer.report


def run(command, environment, seconds):
    """Run a command for at most `seconds`, and kill its process group. Returns how it ended, and its two outputs.

    How it ended is "exit code 3" or "signal 9", or None if its time was up.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                                 start_new_session=True)
        how = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(seconds)
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
        finally:
            with contextlib.suppress(AttributeError, OSError):      # Windows has no groups; all of the group has ended
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            child.wait()
        output.seek(0)
        errors.seek(0)
        return how, output.read(FILE_SIZE), errors.read(OUTPUT + 1)


def read_answer(data):
    """The `Answer` in the last whole line of a process, which the learner's code may have written: see `checked`."""
    *_, last, _ = data.split(b"\n")
    return checked(json.loads(last), Answer)


def confirm(results, known):
    """Raise ValueError unless results are the true ones of all `Case`s."""
    for given, case in zip(results, known, strict=True):
        for value, true in zip(given, case.results.values(), strict=True):
            if value is not None if true is None else relative_error(value, true) > EXACT:
                raise ValueError("a wrong result")


def limit(seconds):
    """Limit the resources of this process, as far as the system can; on Linux, let it end with its parent."""
    # CPU: more than the parent allows; NPROC counts all processes of the user, so with 0 none may be added.
    for name, most in {"CPU": int(seconds) + 5, "AS": MEMORY, "FSIZE": FILE_SIZE, "NOFILE": 64, "CORE": 0,
                       "NPROC": 0}.items():
        with contextlib.suppress(ImportError, AttributeError, ValueError, OSError):     # no system has all of them
            import resource
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    if sys.platform == "linux":
        import ctypes
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)         # 1 is PR_SET_PDEATHSIG


def main(file, name, seconds, seed, config=None):
    """The process: judge a file, and answer on the original standard output with the verdict, then with the mistake."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)           # what the learner's code prints goes to standard error

    def send(report, results=(), error="", line=None):
        print(json.dumps(Answer(report, results, error, line), default=to_json), file=answers, flush=True)

    try:
        step = Step(*name.split(" ", 1))
        known = cases(step.layer, int(seed), config and GPTConfig(**json.loads(config)))        # before the code runs
        limit(float(seconds))
        numpy = dict(vars(np))
        solution = load(step.lesson, file)
        vars(np).update(numpy)      # a file may change NumPy, with which the judge computes
        wrong, report, results = verdict(known, solution, int(seed))
        send(report, [[*map(each.get, case.results)] for each, case in zip(results, known, strict=True)]
             if report.right else [])
        if wrong is not None:
            with silent(), contextlib.suppress(Exception):      # no words if the code ends otherwise this time
                send(explained(solution, known, wrong, report))
    except BaseException as error:          # also SystemExit, and an ImportError of the package's if SciPy is missing
        line = raised_at(error, file)
        send(None, [], describe(error) if line else one_line(error), line)
    os._exit(0)             # without the learner's threads and exit handlers


if __name__ == "__main__":
    main(*sys.argv[1:])

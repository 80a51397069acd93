"""Judge a learner's file in a fresh process with limits: nothing of it runs in the calling process.

The process judges an exercise, or checks the lines of a layer of one's own, and answers in JSON.

This protects from accidents: an endless loop, too much memory or output, or the end of the process
is one line. It is no sandbox: the code runs as the user, can delete files and use the network, and
may answer for the judge. Check files of people whom you do not trust in a container. All limits
hold on Linux, macOS may not limit memory, and on Windows there is only the time limit.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from npgpt.errors import UserError, describe, one_line, printable, raised_at
from npgpt.files import read_python
from npgpt.study.exercises.exercise import Exercise
from npgpt.study.exercises.findings import Finding
from npgpt.study.gradcheck.check import LineCheck, best_check
from npgpt.study.gradcheck.own import Verified, check_own
from npgpt.study.gradcheck.trace import Assignment
from npgpt.study.gradcheck.truth import cases
from npgpt.study.judge.judge import explained, new_seed, verdict
from npgpt.study.judge.outcome import load_solution, silent
from npgpt.study.judge.report import Line, Report
from npgpt.study.lessons.own_block import block_lesson
from npgpt.study.lessons.own_find import run_file
from npgpt.study.lessons.own_make import Missing, read_pair, usage

TIME_LIMIT = 20.0  # seconds for a file, by default
GRACE = 2.0  # more of them, in which the process can say where it is
MEMORY = 4 << 30  # bytes of address space, of which NumPy and BLAS take a quarter
FILE_SIZE = 64 << 20  # bytes of a file that the code writes, of its output, and of an answer
OUTPUT = 64 << 10  # bytes of what the learner's code prints that are shown
LATE = (
    "this has not ended within {:g} seconds: is there an endless loop, or a training that belongs "
    'below `if __name__ == "__main__":`? (--time-limit gives it longer)'
)
# -P: no packages from the learner's folder; -u: output before a sudden end is not lost.
MAIN = "-P", "-u", "-c", f"from {__name__} import main; main()"


@dataclasses.dataclass
class Answer:
    """What the process found: of an exercise `report`, of layers of one's own `layers`.

    layers: those that were checked; left: of the others, how each is called and why it was not,
    failed: for another reason than that nothing says what its inputs are;
    error: why there is nothing else.
    """

    report: Report | None = None
    layers: list[Verified] = dataclasses.field(default_factory=list)
    left: list[str] = dataclasses.field(default_factory=list)
    failed: bool = False
    error: str = ""


# what an answer holds, by the name that JSON has for it
PARTS = Answer, Report, Line, Finding, Assignment, LineCheck, Verified
KINDS: dict[str, Callable] = {"ndarray": np.array, **{each.__name__: each for each in PARTS}}


def run_child(exercise, seconds, seed=None):
    """Return the `Report` on an exercise, from a process that may run for `seconds`.

    seed: of the random cases.
    Raises UserError if the learner's file does not run, runs too long or ends the process.
    """
    seed = new_seed() if seed is None else seed
    request = exercise.layer, exercise.what, exercise.text, seed
    return ask(exercise.path, seconds, "exercise", *request).report


def check_layer(file, what="", inputs=(), seconds=TIME_LIMIT):
    """Return the `Answer` on a file with layers of one's own.

    what: one of them, "" for all; inputs: texts of --input.

    Raises UserError, with the line, if the file has no pair, does not run, runs too long or ends
    the process; OSError.
    """
    read_python(file)
    return ask(file, seconds, "layers", what, inputs)


def ask(path, seconds, action, *request):
    """Return the `Answer` of an action of `main` in a process; UserError if there is none."""
    request = json.dumps([action, seconds, str(path), *request])
    how, lines, output = run_process(request, seconds + GRACE)
    text = printable(output[:OUTPUT].decode(errors="replace"), kept="\n\t")
    if text:
        print(text.removesuffix("\n"), file=sys.stderr)
    if len(output) > OUTPUT:
        print("[more output left out]", file=sys.stderr)
    if not lines and how is None:
        raise UserError(f"{path}: {LATE.format(seconds)}")
    if not lines:
        raise UserError(f"{path}: the code ended its process ({how}) before it could be checked")
    answer = json.loads(lines[-1], object_hook=from_json)
    if answer.error:
        raise UserError(answer.error)
    return answer


def run_process(request, seconds):
    """Start `main` on a request, and end its process group after `seconds`.

    Returns "exit code 3", "signal 9" or None (too long); the lines of its answer; what it printed.
    """
    folders = os.pathsep.join(map(os.path.abspath, sys.path))
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, "PYTHONPATH": folders, **one_thread}
    how = None
    with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [sys.executable, *MAIN],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=answers,
            stderr=output,
            start_new_session=True,
        )
        try:
            child.communicate(request.encode(), seconds)
            code = child.returncode
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Windows has no groups; all of the group may have ended
            with contextlib.suppress(AttributeError, OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            child.wait()
        answers.seek(0)
        output.seek(0)
        *lines, _ = answers.read().split(b"\n")  # the last line is not whole
        return how, lines, output.read(OUTPUT + 1)


class Late(KeyboardInterrupt):
    """The time is over; code that catches all exceptions does not catch this one."""


def late(*_):
    raise Late


def limit(seconds):
    """Limit the resources of this process, as far as the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    # CPU: more than the parent allows
    limits = {"CPU": int(seconds) + 10, "AS": MEMORY, "FSIZE": FILE_SIZE, "CORE": 0}
    for name, most in limits.items():
        with contextlib.suppress(ValueError, OSError):  # macOS may not limit memory
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def main():
    """The process: read a request, [action, seconds, path, …], and answer on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the learner's code prints goes to standard error
    action, seconds, path, *request = json.load(sys.stdin)
    limit(seconds)

    def send(answer):
        print(json.dumps(answer, default=to_json), file=answers, flush=True)

    try:
        if action == "exercise":
            judge_exercise(path, *request, send)
        else:
            send(check_pairs(path, *request))
    except BaseException as error:  # also SystemExit
        said = LATE.format(seconds) if isinstance(error, Late) else None
        try:
            send(Answer(error=said_of(error, path, said)))
        except OSError:
            signal.pause()  # the code closed all files: it is said when the time is over
    os._exit(0)  # without the learner's threads and exit handlers


def said_of(error, path, said=None):
    """Return an error in a line that begins with the path, and the line in that file."""
    text = one_line(error)
    if text.startswith(path):
        return text
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"{path}, line {error.lineno}: {error.msg}"
    line = raised_at(error, path)
    if line is None:
        return f"{path}: {said or text}"
    return f"{path}, line {line}: {said or describe(error)}"


def judge_exercise(path, layer, what, text, seed, send):
    """Send the verdict on an exercise; if it is wrong, send it again with the mistake in words."""
    known = cases(layer, seed)
    solution = load_solution(Exercise(layer, what, Path(path), text))
    wrong, report = verdict(known, solution, seed)
    send(Answer(report))
    if wrong is not None:
        # no words if the code ends otherwise this time
        with silent(), contextlib.suppress(Exception, Late):
            send(Answer(explained(solution, known, wrong, report)))


def check_pairs(file, what, inputs):
    """Check the layers in a file, which runs in this process. what: one of them, or "" for all.

    Of all, a layer that cannot be checked does not keep the others from it.
    """
    names, passes = run_file(file)
    block = block_lesson(file, names)
    if block:
        passes = [each for each in passes if each.forward != "forward" or each.owner]
    wanted = [what] if what else [each.name for each in passes] + ["block"] * bool(block)
    if not wanted:
        raise UserError(
            f"{file}: there is no pair x_forward and x_backward, no class with both, and no "
            "function x_loss that returns a loss and its gradients"
        )

    def check(name):
        if name == "block" and block:
            lines, _, remark = best_check(block.at())
            return Verified(lines, measured=remark)
        return check_own(read_pair(file, name, tuple(inputs)))

    if len(wanted) == 1:
        return Answer(layers=[check(*wanted)])
    answer = Answer()
    calls = [usage(file, each) for each in passes] + [f"{file} block"]
    for name, call in zip(wanted, calls, strict=False):
        try:
            answer.layers.append(check(name))
        except Missing:
            answer.left.append(call)
        except Exception as error:
            said = said_of(error, file).removeprefix(file).lstrip(",: ")
            answer.left.append(f"{call}: {said}")
            answer.failed = True
    return answer


def to_json(value):
    """Return what `json.dumps` writes for an array or a dataclass."""
    is_array = isinstance(value, np.ndarray)
    fields = {"object": value.tolist(), "dtype": value.dtype.str} if is_array else vars(value)
    return {"class": type(value).__name__, **fields}


def from_json(found):
    """Return the array or dataclass of `to_json`."""
    return KINDS[found.pop("class")](**found)

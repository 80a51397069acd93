"""Run a learner's file in processes with limits, so that nothing of the file runs in the calling process.

The first process calls the learner's function in every case and sends the results back, as JSON. It does not know the
true gradients: the results are compared here. If they are wrong, a second process finds out where and why, and sends a
`Report`, of which only the words count.

This protects from accidents: endless loops, processes left behind, too much memory, files or output, a damaged answer,
escape codes. It is no sandbox: the code runs as the user, and can delete the user's files and use the network. Do not
check files of people whom you do not trust. All limits hold on Linux (for root, the number of processes has no limit;
they are still killed at the end). macOS may not limit memory, and a process that leaves its process group survives
there. On Windows there is only the time limit, and processes that the code started survive. Limits hold for each
process and each file, not for their sum.
"""

import contextlib
import dataclasses
import json
import os
import sys

from npgpt.errors import UserError, one_line, printable
from npgpt.model.config import GPTConfig
from npgpt.study.gradcheck.draws import draw
from npgpt.study.gradcheck.truth import Task, cases
from npgpt.study.judge.judge import explained, new_seed, verdict
from npgpt.study.judge.outcome import LearnerError, Outcomes, checked, load, run_cases, silent, to_json
from npgpt.study.judge.process import run
from npgpt.study.judge.report import Report

MEMORY = 4 << 30            # bytes of address space; NumPy and BLAS take one of them before anything is computed
FILE_SIZE = 16 << 20        # bytes of a file that the learner's code writes
OPEN_FILES = 64
OUTPUT = 64 << 10           # bytes of what the learner's code prints that are shown
ANSWER = 64 << 20           # bytes of an answer; that of the whole GPT-2 has a few million


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why there is no `Report`: a sentence, and the line of the learner's file, or None."""

    error: str
    line: int | None


def run_child(exercise, seconds, seed=None, config=None):
    """The `Report` on an exercise, from child processes. After `seconds` each is killed, with all that it started.

    seed: of the random cases; by default another one at each call; config: of a model, for one more case. Raises
    UserError if the learner's file does not run, runs too long or ends the process.
    """
    seed = new_seed() if seed is None else seed
    answer = ask(exercise, seconds, seed, config, "run")
    if isinstance(answer, Refusal):
        line = f", line {answer.line}" if answer.line else ""
        raise UserError(f"{exercise.path}{line}: {answer.error}")
    wrong, report = verdict(cases(exercise.lesson.name, seed, config), answer,
                            exercise.source if answer.followed else None)
    if wrong is not None:
        with contextlib.suppress(UserError):        # this time it disturbed its process: no words
            words = ask(exercise, seconds, seed, config, str(wrong))
            if not words.sound:
                report = dataclasses.replace(words, record=report.record)
    return dataclasses.replace(report, seed=seed)


def ask(exercise, seconds, seed, config, what):
    """The answer of a child process.

    what: "run", for `Outcomes` or a `Refusal`, which shows what the code prints; or the number of a wrong case, for a
    `Report`. Raises UserError if there is no answer.
    """
    # -P: no packages from the learner's folder; -u: output before a sudden end is not lost.
    command = [sys.executable, "-P", "-u", "-m", __name__, str(exercise.path), exercise.lesson.name, str(seconds),
               str(seed), what, *([json.dumps(dataclasses.asdict(config))] if config else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                   "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    how, answer, output = run(command, environment, seconds, (ANSWER, OUTPUT + 1))
    if what == "run":
        show(output)
    if how is None:
        raise UserError(f"{exercise.path}: {exercise.lesson.backward.__name__} has not ended within {seconds:g} "
                        "seconds: is there an endless loop? (--time-limit gives it longer)")
    try:
        answer = read_answer(answer, len(draw(exercise.lesson.name, seed, config)))
        if isinstance(answer, Report) == (what == "run"):
            raise ValueError("an answer to the other question")
        return answer
    except (ValueError, RecursionError):
        did = "ended or disturbed its process" if how == "exit code 0" else f"ended its process ({how})"
        raise UserError(f"{exercise.path}: the code {did} before it could be checked") from None


def show(output):
    """Print the output of the learner's code, up to `OUTPUT` bytes and without escape codes."""
    text = printable(output[:OUTPUT].decode(errors="replace"), kept="\n\t")
    print(text, end="" if text.endswith("\n") or not text else "\n", file=sys.stderr)
    if len(output) > OUTPUT:
        print("[more output left out]", file=sys.stderr)


def read_answer(data, count):
    """The `Outcomes` of `count` cases, the `Report` or the `Refusal` in a child's answer.

    The learner's code may have written to it, so everything is validated. Raises ValueError or RecursionError if it is
    none of them.
    """
    answer = json.loads(data)
    names = answer if isinstance(answer, dict) else ()
    answer = checked(answer, Outcomes if "outcomes" in names else Report if "lines" in names else Refusal)
    if isinstance(answer, Outcomes) and len(answer.outcomes) != count:
        raise ValueError("another number of cases")
    return answer


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


def main(file, name, seconds, seed, what, config=None):
    """The child: load a file, do what it was started for, and write the answer to the original standard output.

    what: "run", or the number of the wrong case that is to be explained; config: a model's, as JSON.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)           # what the learner's code prints goes to standard error
    seed, config = int(seed), config and GPTConfig(**json.loads(config))
    try:
        # Before the learner's code runs, which could change the package. Only the second process knows the truth.
        tasks = cases(name, seed, config) if what != "run" else [
            Task(name, setting) for setting in draw(name, seed, config)]
        limit(float(seconds))
        solution = load(name, file)
        if what == "run":
            answer = run_cases(solution, tasks)
        else:
            with silent():
                answer = explained(name, solution, tasks, int(what))
    except (LearnerError, ImportError) as error:        # ImportError: SciPy is missing
        answer = Refusal(one_line(error), getattr(error, "line", None))
    print(json.dumps(answer, default=to_json), file=answers, flush=True)
    os._exit(0)             # without the learner's threads and exit handlers


if __name__ == "__main__":
    main(*sys.argv[1:])

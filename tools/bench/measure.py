"""Let the sides of a row take turns, each in its own process, and compute the figures."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy._core._multiarray_umath import __cpu_dispatch__
from shapes import PEERS, ROWS, SIDES

ROOT = Path(__file__).resolve().parents[2]
CHUNK_SECONDS = 1.5  # length of a turn
PAUSE_SECONDS = 0.1  # between turns: the last side's threads keep spinning for a while
WARM_UP = (
    2  # turns that do not count: the first makes the model, the second tells how long a step takes
)
LIMIT = 300  # seconds that a side may take to answer; torch.compile needs the most
AVX2 = {
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": " ".join(
        name for name in __cpu_dispatch__ if name.startswith(("AVX512", "X86_V4"))
    ),
    "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch's own kernels, and the vectors of torch.compile's code
    "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3",  # all of torch.compile's code, cached apart
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "",  # none but haswell's; by default those of the CPU
}


class Failed(Exception):
    """A side's process ended; the message has its traceback."""


class Side:
    """The process of one side (see worker.py). It and its children end with the `with` block."""

    def __init__(self, side, row, folder, setup):
        """setup: a dict of "threads", "old" (the folder of the older npgpt), "out_dir" and
        "instructions".
        """
        self.log = Path(setup["out_dir"]) / "stderr" / f"{row}-{side}.txt"
        self.log.parent.mkdir(exist_ok=True)
        threads = str(setup["threads"])
        paths = [
            str(setup["old"] if side == "old" else ROOT),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in AVX2 and name != "OPENBLAS_L2_SIZE"
        }
        variables = {
            **kept,
            **(AVX2 if setup["instructions"] == "avx2" else {}),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            **dict.fromkeys(
                ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads
            ),
        }
        with open(self.log, "w") as log:
            # In a new session: a signal to its group also ends the processes of torch.compile.
            self.process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("worker.py"), side, row, folder, threads],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=variables,
                encoding="utf-8",
                start_new_session=True,
            )

    def ask(self, steps):
        """Run this many steps: {"seconds" of a step, "result" of the last one, "memory"}. Raises
        Failed.
        """
        with contextlib.suppress(BrokenPipeError):
            print(steps, file=self.process.stdin, flush=True)
        in_time, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        if in_time and (line := self.process.stdout.readline()):
            return json.loads(line)
        why = (
            f"the process ended with code {self.process.wait()}"
            if in_time
            else f"no answer within {LIMIT} s"
        )
        raise Failed(f"{self.log.read_text(errors='replace')}\n{why}".strip())

    def ask_once(self):
        """Return the result of one step; then the process ends. Raises Failed."""
        with self:
            return self.ask(1)["result"]

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


def jobs(rows, sides):
    """Return pairs (row, sides that take turns) in the order in which they are measured.

    On a GPU each side is alone, because of the memory: npgpt's sides first, torch.compile, which
    takes longest, last.
    """
    together, alone = [], []
    for row in rows:
        of_row = [side for side in SIDES if side in sides and side in ROWS[row].sides]
        if ROWS[row].device == "gpu":
            alone += [(row, [side]) for side in of_row]
        elif of_row:
            together.append((row, of_row))
    return together + sorted(alone, key=lambda job: [*SIDES].index(job[1][0]))


def measure(row, sides, rounds, setup):
    """Let sides take turns. Returns their answers {side: [answer]}, and why others failed {side:
    traceback}.
    """
    shape, answers, failed = ROWS[row], {side: [] for side in sides}, {}
    with (
        tempfile.TemporaryDirectory(prefix="npgpt-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        try:
            Side("prepare", row, folder, setup).ask_once()
        except Failed as error:
            return {}, dict.fromkeys(sides, str(error))
        processes = {side: stack.enter_context(Side(side, row, folder, setup)) for side in sides}
        for turn in range(WARM_UP + rounds):
            for side in [side for side in sides if side not in failed]:
                time.sleep(PAUSE_SECONDS)
                steps = (
                    round(CHUNK_SECONDS / answers[side][-1]["seconds"])
                    if turn
                    else shape.first_steps
                )
                try:
                    answers[side].append(processes[side].ask(max(1, steps)))
                except Failed as error:
                    failed[side] = str(error)
                    print(f"{row} {side}: {error}", file=sys.stderr)
    return {side: answers[side] for side in sides if side not in failed}, failed


def figures(shape, answers, failed):
    """Compute the figures of a row from its sides' answers, as a dict for JSON.

    time: the median of the rounds. ratio: the median over the rounds of this side's time / npgpt's
    in the same round.
    speedup: the same of the peer's time / this side's. same: whether the result after the first
    turn agrees with the first side that has not failed.
    """
    passes, first = shape.new_tokens or 1, shape.sides[0]  # passes: through the model, in a step
    rounds = {}
    for side in filter(answers.__contains__, SIDES):
        rounds[side] = [answer["seconds"] / passes for answer in answers[side][WARM_UP:]]
    peer = next((side for side in PEERS if side in rounds), None)
    row = {"description": shape.description, "sides": {}}
    for side, seconds in rounds.items():
        result, expected = (answers[other][0]["result"] for other in (side, next(iter(rounds))))
        row["sides"][side] = {
            "seconds": spread(seconds),
            "rounds": seconds,
            "ratio": spread(np.divide(seconds, rounds[first])) if first in rounds else None,
            "speedup": spread(np.divide(rounds[peer], seconds)) if peer else None,
            "tokens_per_second": shape.tokens / float(np.median(seconds)),
            "memory": answers[side][-1]["memory"],
            "result": result,
            "same": shape.same(result, expected),
        }
    row["sides"].update({side: {"failed": traceback} for side, traceback in failed.items()})
    return row


def spread(values):
    """Return the median, and the 10th and 90th percentile."""
    return dict(
        zip(("low", "median", "high"), np.percentile(values, (10, 50, 90)).tolist(), strict=True)
    )

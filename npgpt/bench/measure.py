"""The sides of a shape take turns, each in its own process, and what their times say."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from npgpt.bench.machine import peak_memory
from npgpt.bench.shapes import AXES, Generation, Recipe, Scaling, Training
from npgpt.data.batches import prepare
from npgpt.data.corpora import open_corpus
from npgpt.data.tokenizers import make_tokenizer
from npgpt.errors import UserError

PINNED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")      # they make OpenBLAS take other kernels than the processor's own
PEERS = {"eager": ["torch"], "compile": ["torch"], "transformers": ["torch", "transformers"]}   # and their packages
CHUNK_SECONDS = 1.5         # how long a side works before it is another's turn
PAUSE_SECONDS = 0.1         # between turns: the threads of the last side look for more work for a while
FEWER_ROUNDS = 3            # of whole runs and of the scaling, which has many points
LOSS_TOLERANCE = 1e-3       # between the first losses of two sides, in float32


class ChildError(Exception):
    """A process ended, or said why it cannot go on."""


class Child:
    """A process of one side; it ends with the `with` block."""

    def __init__(self, threads):
        self.threads = threads
        self.process = None

    def start(self, *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE):
        """Start Python on a module's name and its arguments."""
        self.errors = tempfile.TemporaryFile()
        # In a session of its own: Ctrl-C is for the parent, which ends its children itself.
        self.process = subprocess.Popen([sys.executable, "-m", *map(str, arguments)], stdin=stdin, stdout=stdout,
                                        stderr=self.errors, env=child_environment(self.threads), encoding="utf-8",
                                        start_new_session=True)

    def why_it_ended(self):
        """One line about a process that has ended though it should not have."""
        code = self.process.wait()
        if code < 0:
            return f"the process was killed by signal {-code}, as it is when memory runs out"
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), f"the process ended with code {code}")

    def close(self):
        """End the process if it has not ended. Its answers are complete: nothing is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.errors.close()
            self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class Worker(Child):
    """`npgpt.bench.worker` with one job."""

    def __init__(self, side, shape, threads, folder=None):
        super().__init__(threads)
        self.start("npgpt.bench.worker", stdin=subprocess.PIPE)
        self.job = {"side": side, "kind": type(shape).__name__ if shape else None,
                    "shape": dataclasses.asdict(shape) if shape else None, "threads": threads, "folder": folder}

    def ask(self, steps):
        """Let it do so many steps: {"seconds", "results", "peak_memory"}. Raises ChildError."""
        line = ""
        with contextlib.suppress(BrokenPipeError):
            if self.job:
                print(json.dumps(self.job), file=self.process.stdin)
                self.job = None
            print(json.dumps({"steps": steps}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": self.why_it_ended()}
        if "error" in answer:
            raise ChildError(one_line(answer["error"]))
        return answer


class WholeRun(Child):
    """A training run from start to end, each time it is asked; the corpus lies in `folder` (see `prepare_corpus`)."""

    def __init__(self, side, shape, threads, folder):
        super().__init__(threads)
        self.side, self.preset, self.folder = side, shape.preset, Path(folder)

    def ask(self, steps=1):
        """Do the run: {"seconds", "results": [last validation loss], "peak_memory"}. Raises ChildError."""
        out_dir = tempfile.mkdtemp(dir=self.folder)
        log = Path(out_dir) / "log.txt"
        if self.side == "npgpt":
            command = ["npgpt.cli", "train", "--preset", self.preset, "--corpus", self.folder / "corpus.txt",
                       "--tokenizer", "char", "--out-dir", out_dir, "--threads", self.threads]
        else:
            vocab_size = (self.folder / "vocab_size").read_text()
            command = ["npgpt.bench.torch_train", self.preset, vocab_size, self.folder, out_dir, self.threads]
        with open(log, "wb") as output:
            began, peak = time.perf_counter(), None
            self.start(*command, stdout=output)
            while self.process.poll() is None:
                peak = peak_memory(self.process.pid) or peak        # a process that has just ended no longer says
                time.sleep(0.02)
            seconds = time.perf_counter() - began
        losses = re.findall(r"validation loss (\d\S*)$", log.read_text(encoding="utf-8"), re.MULTILINE)
        if self.process.returncode != 0 or not losses:
            raise ChildError(one_line(self.why_it_ended()))
        self.close()
        return {"seconds": [seconds], "results": [float(losses[-1])], "peak_memory": peak}


def child_environment(threads):
    """The environment of every side: nothing that pins OpenBLAS's kernels, and the same number of threads."""
    return {**{name: value for name, value in os.environ.items() if name not in PINNED},
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))}


def one_line(text):
    """A message as one short line, its folders left out."""
    line = re.sub(r"(?:[A-Za-z]:)?[/\\](?:[^\s/\\'\"]+[/\\])+", "", " ".join(text.split()))
    return line if len(line) <= 120 else line[:119] + "…"


def installed(peer):
    """Whether the packages that a peer needs are there; they are not imported."""
    return all(importlib.util.find_spec(package) for package in PEERS[peer])


def machine(threads):
    """`describe_machine` of a process like those that are measured. Raises UserError where none can be started."""
    with Worker("machine", None, threads) as worker:
        try:
            return worker.ask(1)["results"][0]
        except ChildError as error:
            raise UserError(f"no process to measure in could be started: {error}") from None


def measure(name, shape, peers, threads, rounds):
    """The figures of a shape, a dict for JSON: those of `compare`, or of `scaling`.

    peers: which of `PEERS` to ask, of those that the shape has. Raises UserError where npgpt's own process fails; a
    peer that fails is written down as such.
    """
    peers = [peer for peer in peers if peer in shape.peers]
    if isinstance(shape, Scaling):
        return scaling(shape, peers, threads, min(rounds, FEWER_ROUNDS))
    if isinstance(shape, Recipe):
        return compare(name, shape, ["npgpt", *peers], threads, min(rounds, FEWER_ROUNDS))
    return compare(name, shape, ["npgpt", *peers, "gemm"], threads, rounds)


def compare(name, shape, sides, threads, rounds):
    """Let the sides take turns and return their `figures`. Raises UserError as `measure` does."""
    answers, failed = {side: [] for side in sides}, {}
    n_turns = shape.warm_up + rounds
    with (tempfile.TemporaryDirectory(prefix="npgpt-bench-") as folder, contextlib.ExitStack() as stack,
          tqdm(total=n_turns * len(sides), desc=name, unit="turn", leave=False, disable=None) as bar):
        try:
            prepare_folder(shape, threads, folder)
            kind = WholeRun if isinstance(shape, Recipe) else Worker
            children = {side: stack.enter_context(kind(side, shape, threads, folder)) for side in sides}
            for turn in range(n_turns):
                for side in [side for side in sides if side not in failed]:
                    bar.set_postfix_str(side)
                    time.sleep(PAUSE_SECONDS)
                    # The first two turns are one step each: they make the model, and torch.compile its code.
                    last = answers[side][-1]["seconds"] if turn >= 2 else [CHUNK_SECONDS]
                    try:
                        answers[side].append(children[side].ask(max(1, round(CHUNK_SECONDS / np.median(last)))))
                        if side in PEERS and turn == 0:
                            check_loss(shape, answers[side][0], answers["npgpt"][0])
                    except ChildError as error:
                        if side not in PEERS:
                            raise
                        failed[side] = str(error)
                        children[side].close()
                    bar.update()
        except ChildError as error:
            raise UserError(f"{name} could not be measured: {error} (leave {name} out, or free memory)") from None
    return figures(shape, {side: answers[side] for side in sides if side not in failed}, failed)


def check_loss(shape, answer, npgpts):
    """ChildError where a peer's first loss is not npgpt's: its time would be that of something else."""
    loss, expected = answer["results"][0], npgpts["results"][0]
    if isinstance(shape, Training) and not abs(loss - expected) < LOSS_TOLERANCE:
        raise ChildError(f"its first loss is {loss:.4f}, npgpt's {expected:.4f}")


def figures(shape, answers, failed):
    """What the answers of the sides that answered say, a dict for JSON.

    A round's time is the median of its steps' seconds, divided by the passes in a step; a side's time is the median of
    its rounds, and a peer's ratio the median of its rounds' times divided by npgpt's in the same round.
    """
    rounds = {side: [float(np.median(answer["seconds"])) / shape.passes for answer in of_side[shape.warm_up:]]
              for side, of_side in answers.items()}
    floor = floor_seconds(shape, answers.pop("gemm", None))
    result = {"description": shape.description, "tokens": shape.tokens, "floor_seconds": floor, "sides": {}}
    for side, of_side in answers.items():
        seconds = spread(rounds[side])
        result["sides"][side] = {
            "seconds": seconds, "rounds": rounds[side], "tokens_per_second": shape.tokens / seconds["median"],
            "ratio": spread(np.divide(rounds[side], rounds["npgpt"])),
            "floor_share": floor and floor / seconds["median"], "peak_memory": of_side[-1]["peak_memory"],
            **outcome(shape, of_side[0]["results"][0], answers["npgpt"][0]["results"][0])}
    result["sides"].update({side: {"failed": reason} for side, reason in failed.items()})
    return result


def outcome(shape, result, npgpts):
    """What a side computed, beside its time."""
    if isinstance(shape, Generation):
        return {"tokens_equal": result == npgpts}
    return {"validation_loss" if isinstance(shape, Recipe) else "first_loss": result}


def floor_seconds(shape, answers):
    """The least time of a step, or of a token in generation, that the best of all answers of "gemm" allows, or None.

    Training: the time of its matrix products at the highest rate seen. Generation: the time of reading every weight.
    """
    if answers is None:
        return None
    results = [result for answer in answers for result in answer["results"]]
    return min(results) if isinstance(shape, Generation) else shape.flops / max(results)


def spread(values):
    """The median of some numbers and their 10th and 90th percentile."""
    low, median, high = np.percentile(values, (10, 50, 90))
    return {"median": float(median), "low": float(low), "high": float(high)}


def scaling(shape, peers, threads, rounds):
    """The seconds of a step at each point of a `Scaling`, and by which power of each axis they grow."""
    sides = ["npgpt", *peers]
    points = {point: None for axis in AXES for point in shape.points(axis)}     # the base is a point of every axis
    for point in points:
        points[point] = compare(f"scaling: {point.description}", point, sides, threads, rounds)["sides"]
    result = {"description": f"{shape.base.description}, one of them changed", "axes": {}}
    for axis in AXES:
        values = getattr(shape, axis)
        seconds = {side: [points[point][side]["seconds"]["median"] for point in shape.points(axis)] for side in sides
                   if all("seconds" in points[point][side] for point in shape.points(axis))}
        result["axes"][axis] = {"values": values, "seconds": seconds,
                                "exponents": {side: exponent(values, seconds[side]) for side in seconds}}
    return result


def exponent(values, seconds):
    """The power of the values by which the seconds grow: the slope of the straight line through their logarithms."""
    return float(np.polyfit(np.log(values), np.log(seconds), 1)[0])


def prepare_folder(shape, threads, folder):
    """Write what the sides of a shape read into a folder: weights for generation, a corpus for a whole run."""
    if isinstance(shape, Generation):
        with Worker("weights", shape, threads, folder) as worker:
            worker.ask(1)
    elif isinstance(shape, Recipe):
        prepare_corpus(folder)


def prepare_corpus(folder):
    """Write corpus.txt, from which npgpt reads, and nanoGPT's token files, made of the same text, into a folder.

    The text is TinyShakespeare, or Python's help texts where that is not to be had, as for `npgpt train`.
    """
    corpus = open_corpus(progress=False)
    tokenizer = make_tokenizer("char", corpus.text)
    prepare(corpus, tokenizer, folder, progress=False)
    (Path(folder) / "corpus.txt").write_text(corpus.text, encoding="utf-8", newline="")
    (Path(folder) / "vocab_size").write_text(str(tokenizer.vocab_size))

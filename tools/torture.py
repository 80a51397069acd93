"""Torture npgpt: kill it, starve it, feed it damaged files and odd arguments; report what is lost or let in.

    python tools/torture.py                                     all parts, about ten minutes
    python tools/torture.py kills files --minutes 5 --seed 7    some parts, so long at most, with another seed
    python tools/torture.py --kills 1000 --files 100000         so many cases of a part
    python tools/torture.py files --case 4711                   one case again, step by step; its folder is kept

kills: a run that is killed goes on to the same bits. replaced: so do --overwrite, export and data prepare. limits: full
disks, little memory, two processes at once. files: damaged ones. commands: random command lines. calls: API calls that
make no sense. A case depends on (seed, part, number) alone, but for the moments of timed kills. The exit code is 1 if
anything was found. Unix only; memory is measured and limited on Linux only.
"""

import argparse
import base64
import collections
import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import math
import mmap
import multiprocessing
import multiprocessing.connection
import os
import random
import re
import resource
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import tracemalloc
import unicodedata
import unittest.mock
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tqdm import tqdm

import npgpt.cli.main
from npgpt import GPT, AdamW, GPTConfig, UserError
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.study.exercise import read_exercise

ROOT = Path(__file__).resolve().parents[1]
FORK = multiprocessing.get_context("fork")
WORKERS = 2
CPU_SECONDS = 5             # the longest that a command on tiny files may compute
MEMORY = 4 << 30            # the address space that it has
FLOOR = 32 << 20            # a damaged file may take ten times its size, and this: whole ones take some 10 MiB
TEXT = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 12
WORK = "--batch-size 2 --gradient-accumulation-steps 1 --eval-iters 2 --log-interval 1 --crop-length 0".split()
TINY = [*WORK, *"--n-layer 1 --n-head 2 --n-embd 8 --block-size 8 --threads 1".split(),
        *"--warmup-iters 2 --lr-decay-iters 20".split()]
terminal = None             # a descriptor to tell of every command, with --case


# Running a command: in this process, in a fork of it, or in a new one

class Result(NamedTuple):
    """How a command ended. code: negative for a signal."""

    code: int
    out: str
    err: str
    hung: bool = False


class Hang(BaseException):
    """What the timer raises in something that computes too long."""


@contextlib.contextmanager
def cpu_limit():
    def raise_hang(number, frame):
        raise Hang

    signal.signal(signal.SIGPROF, raise_hang)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def exit_code(function):
    """The exit code that Python would give for a function; for an exception, stderr says in brackets where it was."""
    try:
        code = function() or 0
        sys.stdout.flush()
        return code
    except SystemExit as error:
        return error.code or 0
    except BaseException as error:
        where = origin(error)
        if where == "KeyboardInterrupt":        # before npgpt was called, or after it returned
            return 130
        if not isinstance(error, RecursionError):
            traceback.print_exc()
        os.write(2, f"\n[torture: {where}]\n".encode())
        return 1


def origin(error):
    """An exception's type, and the last function of npgpt that it came through."""
    ours = os.path.dirname(npgpt.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(ours)]
    if isinstance(error, KeyboardInterrupt):
        frames = frames[:1]         # it comes anywhere
    return type(error).__name__ + (f" in {Path(frames[-1].filename).name}, {frames[-1].name}" if frames else "")


def start(arguments, folder, before=lambda: None, real=False):
    """Start `npgpt ARGUMENTS` in a folder: in a fork, which calls before() first, or in a real process."""
    out, err = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(out[1], 1)
            os.dup2(err[1], 2)
            os.closerange(3, max(*out, *err) + 1)
            os.chdir(folder)
            if real:
                os.environ["PYTHONPATH"] = str(ROOT)
                os.execv(sys.executable, [sys.executable, "-m", "npgpt.cli", *map(str, arguments)])
            open_standard_streams(line_buffering=True)

            def run():
                signal.signal(signal.SIGINT, signal.default_int_handler)
                resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
                before()
                return npgpt.cli.main.main([str(argument) for argument in arguments])
            code = exit_code(run)
        finally:
            os._exit(code)
    os.close(out[1])
    os.close(err[1])
    return pid, {out[0]: b"", err[0]: b""}, time.monotonic(), arguments


def open_standard_streams(line_buffering=False):
    """sys.stdout and sys.stderr as Python opens them, on what the descriptors 1 and 2 now are."""
    sys.stdout = open(1, "w", buffering=1 if line_buffering else -1, encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def wait(process, limit=12 * CPU_SECONDS):
    """The Result of a started process, which is killed after `limit` seconds."""
    pid, texts, began, arguments = process
    reading, hung = list(texts), False
    while reading:
        ready, _, _ = select.select(reading, [], [], max(0, began + limit - time.monotonic()))
        if not ready:
            hung = True
            os.kill(pid, signal.SIGKILL)
            break
        for descriptor in ready:
            data = os.read(descriptor, 1 << 16)
            texts[descriptor] = (texts[descriptor] + data)[:1 << 20]
            if not data:
                reading.remove(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for descriptor in texts:
        os.close(descriptor)
    return tell(arguments, Result(code, *map(decoded, texts.values()), hung or code == -signal.SIGXCPU))


def run_in_fork(arguments, folder, before=lambda: None):
    return wait(start(arguments, folder, before))


def run_here(arguments):
    """Run a command in this process, whose descriptors 1 and 2 are files; `read_exercise` is taken for one, too."""
    for descriptor in (1, 2):
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.ftruncate(descriptor, 0)
    open_standard_streams()
    with cpu_limit():
        code = exit_code(lambda: read_one(*arguments[1:]) if arguments[0] == "read_exercise" else
                         npgpt.cli.main.main([str(argument) for argument in arguments]))
    return tell(arguments, Result(code, "", decoded(os.pread(2, 1 << 20, 0))))


def read_one(path):
    try:
        read_exercise(path)
    except (UserError, OSError) as error:
        return npgpt.cli.main.fail(error)


def tell(arguments, result):
    """The result, of which the terminal is told with --case."""
    if terminal:
        command = " ".join(repr(str(argument)[:200]) for argument in arguments)
        os.write(terminal, f"npgpt {command}\n    ends with {result.code}\n{result.out[-1500:]}{result.err[-3000:]}\n"
                 .encode(errors="replace"))
    return result


def decoded(data):
    return data.decode(errors="replace")


# A finding is a text; what stands behind " | " does not tell it from others

def complaints(result, what, codes=(0, 1, 2)):
    """What is wrong with how a command ended, a list of findings."""
    err, line = result.err, (result.err.strip().splitlines() or ["(nothing)"])[-1][:200]
    if result.hung:
        return [f"{what}: takes more than {CPU_SECONDS} seconds"]
    if place := re.findall(r"^\[torture: (.+)\]$", err, re.MULTILINE):
        return [f"{place[0]} | {what}"]
    if panic := re.search(r"panicked at .*\n.*", err):
        return [f"a panic on stderr | {what}: {panic[0]}"]
    if "Traceback (most recent call last)" in err:
        return [f"{what}: traceback of {line}"]
    if result.code not in codes:
        how = f"signal {signal.Signals(-result.code).name}" if result.code < 0 else f"exit code {result.code}"
        return [f"{what}: {how} | {line}"]
    if result.code != 2:
        return []
    first, end, rest = err.partition("\n")
    one_line = first.startswith("npgpt: ") and end and not rest
    return [f"{wrong} | {what}: {err[:300]!r}" for wrong, there in (
        ("exit code 2, but stderr is not one line that begins with npgpt", not one_line),
        ("an error of more than 2,000 characters", len(first) > 2000),
        ("control characters in an error", any(unicodedata.category(char) == "Cc" for char in first))) if there]


def must_work(result, what):
    """As `complaints`, of a command that has to end with exit code 0."""
    refused = [f"{what} is refused: {result.err.strip()[-300:]}"] if result.code else []
    return complaints(result, what, codes=(0, 2, result.code)) or refused


# Killing at a random moment

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree", "fcntl.flock"}


def before_each_change(action):
    """From now on call action(paths) before this process changes the file system, and before each fsync."""
    def hook(event, args):
        if event in CHANGES or (event == "open" and isinstance(args[2], int)
                                and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            action([path for path in args[:2 if event == "os.rename" else 1] if not isinstance(path, int)])

    os.fsync = lambda descriptor: action([])
    sys.addaudithook(hook)


def kill_at(n, seen=None):
    """What arms a process: SIGKILL before its n-th change. `seen`, shared memory, is told how many there were."""
    count = itertools.count(1)

    def action(paths):
        i = next(count)
        if seen:
            seen[:8] = struct.pack("q", i)
        if i == n:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: before_each_change(action)


class End(NamedTuple):
    """A command that nobody disturbed: its seconds, how often it changed the file system, and what it made."""

    arguments: list
    seconds: float
    changes: int
    made: object


def undisturbed(arguments, folder, what):
    """The End of a command, run in a folder; what(folder): what it made."""
    seen, began = mmap.mmap(-1, 8), time.monotonic()
    result = run_in_fork(arguments, folder, kill_at(-1, seen))
    if result.code:
        raise SystemExit(f"torture: {arguments} ends with {result.code}: {result.err}")
    return End(arguments, time.monotonic() - began, struct.unpack("q", seen[:8])[0], what(folder))


def run_killed(arguments, folder, end, rng, share, signals=("SIGKILL",)):
    """Run a command and send it a signal within the first `share` of it. Returns the Result, and the signal's name."""
    name = rng.choice(signals)
    if name == "SIGKILL" and rng.random() < 0.5:
        return run_in_fork(arguments, folder, kill_at(rng.randint(1, max(1, round(end.changes * share) + 2)))), name
    real = name != "SIGINT" and rng.random() < 0.05     # a Ctrl-C while Python itself starts is not npgpt's
    process = start(arguments, folder, real=real)
    time.sleep(rng.uniform(0, 1.1 * end.seconds * share) + (rng.uniform(0, 0.8) if real else 0))
    os.kill(process[0], getattr(signal, name))
    return wait(process), name


# kills, replaced, limits

RUNS = {name: options.split() for name, options in {
    "plain": "--eval-interval 1",
    "dropout": "--eval-interval 2 --dropout 0.2 --gradient-accumulation-steps 3",
    "float64": "--eval-interval 3 --dtype float64 --no-tie-word-embeddings --tokenizer byte",
    "no bias": "--eval-interval 5 --no-bias --seed 5",
    "rare": "--eval-interval 1000",                     # most kills come before its second checkpoint
    "rare64": "--eval-interval 1000 --dtype float64 --dropout 0.1"}.items()}
ITERS = 15


def train(name, *more):
    return ["train", "--out-dir", "out", "--corpus", "text.txt", *TINY, *RUNS[name], "--max-iters", ITERS, *more]


RESUME = f"train --out-dir out --resume --max-iters {ITERS}".split()
OVERWRITE = train("dropout", "--seed", 2, "--overwrite")
MADE_FROM_A_RUN = {"export": "export out --out new/exported".split(), "plot": "plot out --out new/loss.png".split(),
                   "prepare": "data prepare text.txt --tokenizer char --out new/prepared".split()}


def trained(folder):
    """What a run has made: the numbers of its last checkpoint, its best step, and all that was measured, in order."""
    checkpoint = read_checkpoint(find_checkpoint(folder / "out"))
    records = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("tokens_per_second", None)
    return {"numbers": [(checkpoint.folder / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer")],
            "best step": (checkpoint.state["best_step"], checkpoint.state["best_loss"]),
            "losses": [record for record in records if "loss" in record],
            "evaluations": [record for record in records if "val_loss" in record]}


def new_files(folder):
    """Path -> bytes of the files below the folder new."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in (folder / "new").rglob("*")
            if path.is_file() and path.name != ".npgpt.lock"}


def new_folder(path):
    """Make a folder with a text to train on, and a folder for what is made."""
    (path / "new").mkdir(parents=True)
    (path / "text.txt").write_text(TEXT)
    return path


def setup_runs(folder):
    """The undisturbed ends, and in the folder half a run that was stopped."""
    ends = {name: undisturbed(train(name), new_folder(folder / name), trained) for name in RUNS}
    ends["half"] = half = new_folder(folder / "half")
    undisturbed([*train("plain"), "--eval-interval", 3, "--max-iters", 6], half, trained)
    for name, arguments in {"resume": RESUME, "overwrite": OVERWRITE, **MADE_FROM_A_RUN}.items():
        here = shutil.copytree(half, folder / name)
        ends[name] = undisturbed(arguments, here, new_files if name in MADE_FROM_A_RUN else trained)
    return ends


def kills(rng, number, folder, ends):
    early = rng.random() < 0.5
    name = rng.choice(["rare", "rare64"] if early else list(RUNS))
    arguments = train(name)
    for _ in range(rng.choice([1, 1, 2, 4])):
        result, sent = run_killed(arguments, folder, ends[name], rng, 0.5 if early else 1.0,
                                  ("SIGKILL", "SIGKILL", "SIGKILL", "SIGINT", "SIGTERM"))
        if found := wrong_ending(result, sent, folder) or wrong_checkpoints(folder):
            return found
        arguments = RESUME if saved(folder) else train(name)
    return afterwards(name, rng, folder, ends, result)


def wrong_ending(result, sent, folder):
    """What is wrong with how a training ended that was sent a signal."""
    if result.code == 2 or sent == "SIGKILL":
        return [] if result.code == -signal.SIGKILL else must_work(result, "train after a kill")
    if result.code == 0:
        right = not result.err and ("--resume" in result.out or "best validation loss" in result.out)
        return [] if right else [f"{sent}: does not say how to go on | {result.out[-100:]} {result.err[-100:]}"]
    finished = (folder / f"out/step-{ITERS:08d}").exists()
    training = re.search(r"^step +\d+:", result.out, re.MULTILINE) and not finished
    return complaints(result, f"{sent} {'in' if training else 'before or after'} training",
                      codes=() if training else (130, -signal.SIGTERM))


def saved(folder):
    """Whether there is a checkpoint, even if only a command finds it: --overwrite hides the old ones before it ends."""
    try:
        return bool(find_checkpoint(folder / "out"))
    except UserError:
        return False


def wrong_checkpoints(folder):
    """What is wrong with the checkpoints of a run that was cut off, if there are any."""
    try:
        for which in ("latest", "best") if saved(folder) else ():
            read_checkpoint(find_checkpoint(folder / "out", which))
    except Exception as error:
        return [f"the {which} checkpoint cannot be read: {error!r}"]
    return []


def differences(folder, end):
    """How a finished run differs from the undisturbed one."""
    try:
        made = trained(folder)
    except Exception as error:
        return [f"the finished run cannot be read: {error!r}"]
    wrong = ", ".join(what for what in made if made[what] != end.made[what])
    there = {path.name for path in (folder / "out").iterdir()} - {"metrics.jsonl", ".npgpt.lock"}
    steps = {name for name in there if re.fullmatch(r"step-\d{8}", name)}
    return ([f"the finished run is not the undisturbed one: {wrong}"] if wrong else []) + (
        [f"left behind in a run | {sorted(there)}"] if there > steps or len(steps) > 2 else [])


def replaced(rng, number, folder, ends):
    shutil.copytree(ends["half"], folder, dirs_exist_ok=True)
    name = rng.choice(["overwrite", "overwrite", "export", "prepare"])
    for _ in range(rng.choice([1, 1, 2])):
        result, _ = run_killed(ends[name].arguments, folder, ends[name], rng, rng.choice([0.2, 1.0]))
        if result.code != -signal.SIGKILL:
            return must_work(result, name)
    return afterwards(name, rng, folder, ends, result)


def afterwards(name, rng, folder, ends, result):
    """What is wrong after a command was cut off: it must work now, and nothing be lost or left behind."""
    if name in MADE_FROM_A_RUN:
        if result.code and (found := must_work(run_in_fork(ends[name].arguments, folder), f"{name} afterwards")):
            return found
        made = new_files(folder)
        if left := made.keys() - ends[name].made.keys():
            return [f"left behind by {name} | {sorted(left)}"]
        return [] if made == ends[name].made else [f"{name} afterwards writes other bytes"]
    if name not in RUNS and not saved(folder):
        return [f"{name}: neither the old run is there nor the new one"]
    if found := wrong_checkpoints(folder):
        return found
    arguments = RESUME
    if not saved(folder):
        arguments = train(name)
    elif name == "overwrite" and rng.random() < 0.3:
        arguments = OVERWRITE
    elif name == "overwrite" and read_checkpoint(find_checkpoint(folder / "out")).state["options"]["seed"] != 2:
        name = "resume"         # it is the old run, which goes on to its own end
    flag = next((f" {word}" for word in ("--resume", "--overwrite") if word in arguments), "")
    return must_work(run_in_fork(arguments, folder), f"train{flag} afterwards") or differences(folder, ends[name])


def limits(rng, number, folder, ends):
    kind = rng.choice(["two", "disk", "file size", "memory"])
    name = rng.choice(["rare", "float64", "resume", "overwrite", *MADE_FROM_A_RUN])
    if kind == "two":
        return two_at_once(rng, folder, ends)
    place, size = folder / "place", rng.randrange(120_000)
    place.mkdir()
    disk = kind == "disk" and subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={300_000}", "tmpfs", place],
                                             capture_output=True).returncode == 0

    def limit():
        if kind == "memory":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + size * 1000,) * 2)
        elif not disk:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 3,) * 2)

    try:
        if name in RUNS:
            shutil.copytree(folder, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("place"))
        else:
            shutil.copytree(ends["half"], place, dirs_exist_ok=True)
        if disk:
            free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
            (place / "filler").write_bytes(bytes(max(0, free - size // 4096 * 4096)))
        result = run_in_fork(ends[name].arguments, place, limit)
        found = complaints(result, f"{name} with little {kind}") or wrong_checkpoints(place)
        if result.code == 2 and not re.search(r"memory|\bout\b|/", result.err):
            found.append(f"{name} with little {kind}: names no file | {result.err}")
        (place / "filler").unlink(missing_ok=True)
        shutil.copytree(place, folder / "saved")
    finally:
        if disk:
            subprocess.run(["umount", place], check=True)
    shutil.rmtree(place)
    (folder / "saved").rename(place)
    return found or afterwards(name, rng, place, ends, result)


def two_at_once(rng, folder, ends):
    """Two processes on one run: one goes on, the other says so in a line, or waits; the end is as undisturbed."""
    name = rng.choice(["plain", "resume", "overwrite"])
    if name == "resume":
        shutil.copytree(ends["half"], folder, dirs_exist_ok=True)
    processes = [start(ends["plain" if name == "overwrite" else name].arguments, folder)]
    time.sleep(rng.choice([0, rng.uniform(0, ends["plain"].seconds)]))
    processes.append(start(ends[name].arguments, folder))
    results = [wait(process) for process in processes]
    what = f"two at once, train and {name}"
    found = [complaint for result in results for complaint in complaints(result, what)]
    both = results[0].out + results[1].out
    waited = name == "overwrite" or re.search(f"^resuming .* at step {ITERS}$", both, re.MULTILINE)
    if all(result.code for result in results):
        found.append(f"{what}: neither goes on | {results[0].err} {results[1].err}")
    elif not any(result.code for result in results) and not waited:
        found.append(f"{what}: both go on")
    end = ends["plain" if name == "overwrite" and results[1].code else name]
    return found or [f"{what}: {difference}" for difference in differences(folder, end)]


# files

DEEP = "[" * 2000 + "]" * 2000
NUMBERS = ["-1", "0", "1", "2", "0.5", "-0.0", "1e308", "1e400", "1e-320", "1" + "0" * 25, "9" * 400, "9" * 5000]
TEXTS = ['""', '"x"', '"gpt2"', '"\\ud800"', '"../../x"', '"/etc/passwd"', '"/dev/zero"', '"\\u0000"',
         '"\\u001b[31m\\n"', f'"{"x" * 100_000}"']
NASTY = [["null", "true", "false"], [*NUMBERS, "NaN", "-Infinity"], TEXTS, ["[]", "{}", "[[1]]", '{"a": 1}'],
         [DEEP, '{"a":' * 2000 + "1" + "}" * 2000]]
NASTY_TOML = [["true", "1979-05-27"], [*NUMBERS, "nan", "-inf"], [*TEXTS, "'''x\ny'''"], ["[]", "{}", "{a = 1}"],
              [DEEP, "{a=" * 2000 + "1" + "}" * 2000]]


def damage(rng, name, data):
    """The bytes of a file, damaged in a way that suits it."""
    if rng.random() < 0.3 or name.endswith((".bin", ".txt", ".py")):
        return damage_bytes(rng, data)
    if name.endswith(".safetensors"):
        (length,) = struct.unpack("<Q", data[:8])
        if rng.random() < 0.2:
            numbers = np.frombuffer(data[8 + length:], np.float32) * np.float32(10.0 ** rng.randrange(1, 39))
            return data[:8 + length] + numbers.tobytes()
        header = (damage_json if rng.random() < 0.8 else damage_bytes)(rng, data[8:8 + length])
        header += b" " * (-len(header) % 8)
        return struct.pack("<Q", len(header)) + header + data[8 + length:]
    if name.endswith(".json"):
        return damage_json(rng, data)
    lines = data.splitlines()
    i = rng.randrange(len(lines))
    if name.endswith(".jsonl"):
        lines[i] = damage_json(rng, lines[i])
    else:
        key, value = lines[i].partition(b" = ")[0], rng.choice(rng.choice(NASTY_TOML)).encode()
        lines[i] = rng.choice([key + b" = " + value] * 5 + [b"", lines[i] + b"\n" + key + b" = 1", value + b" = 1"])
    return b"\n".join(lines) + b"\n"


def damage_bytes(rng, data):
    i, n = rng.randrange(len(data) + 1), rng.choice([1, 2, 8, 64, 1000])
    if rng.random() < 0.2:
        data = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 20])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)
    brackets = rng.choice([b"[", b"(", b'{"":', b'"', b"-", b"\0"]) * 3000
    return rng.choice([data[:i], data[i:], b"", rng.randbytes(rng.randrange(2000)),
                       *(data[:i] + middle + data[i + n:] for middle in (b"", bytes(n), rng.randbytes(n))),
                       *(data[:i] + middle + data[i:] for middle in (rng.randbytes(n), data[i:i + n] * 100, brackets))])


def damage_json(rng, data):
    """Replace, delete, rename, repeat or swap a value at a random place of a JSON text."""
    def keys():
        return list(container) if isinstance(container, dict) else range(len(container))

    root = container = {"": json.loads(data)}
    key = ""
    while container[key] and isinstance(container[key], (dict, list)) and rng.random() < (0.97 if not key else 0.75):
        container = container[key]
        key = rng.choice(keys())
    old, hole, raw = container[key], "\0hole", rng.choice(rng.choice(NASTY))
    actions = ["replace"] * 5 + ["number"] * 2 + ["delete", "rename", "repeat", "swap"] * (container is not root)
    action = rng.choice(actions)
    if action == "number" and isinstance(old, (int, float)):
        container[key] = rng.choice([old + 1, old - 1, old * 2, -old, float(old), old * 1000, str(old), bool(old)])
    elif action == "delete":
        del container[key]
    elif action == "rename" and isinstance(container, dict):
        container[hole], raw = container.pop(key), rng.choice(TEXTS)
    elif action == "repeat":
        name = f"{json.dumps(key)}: " if isinstance(container, dict) else ""
        container[key], raw = hole, f"{json.dumps(old)}, {name}{rng.choice([raw, json.dumps(old)])}"
    elif action == "swap":
        other = rng.choice(keys())
        container[key], container[other] = container[other], old
    else:
        container[key] = hole
    return json.dumps(root[""]).replace(json.dumps(hole), raw).encode("utf-8", "surrogatepass")


def train_tokenizers(folder):
    """Three families of tokenizer.json, made by the library itself. Returns their names: none without the library."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        return []
    size = {"vocab_size": 60, "show_progress": False}
    families = {
        "wordpiece": (models.WordPiece(unk_token="[UNK]"), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(),
                      trainers.WordPieceTrainer(special_tokens=["[UNK]", "[SEP]"], **size)),
        "bpe": (models.BPE(), pre_tokenizers.ByteLevel(), decoders.ByteLevel(),
                trainers.BpeTrainer(special_tokens=["<|endoftext|>"], **size)),
        "unigram": (models.Unigram(), pre_tokenizers.Metaspace(), decoders.Metaspace(),
                    trainers.UnigramTrainer(special_tokens=["<unk>"], unk_token="<unk>", **size))}
    for name, (model, pre_tokenizer, decoder, trainer) in families.items():
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
        tokenizer.train_from_iterator([TEXT], trainer)
        description = json.loads(tokenizer.to_str())
        if name == "unigram":       # a map of characters as T5 has one: a trie, here of 256 empty units
            charsmap = base64.b64encode(struct.pack("<I", 1024) + bytes(1024)).decode()
            description["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap}
        (folder / f"{name}.json").write_text(json.dumps(description))
    return list(families)


def setup_files(folder):
    """Whole files, and what reads them: a list of (folder to copy, file, commands)."""
    cases = []

    def add(here, files, *lines):
        commands = [line.replace("WORK", " ".join(WORK)).replace("TINY", " ".join(TINY)).split() for line in lines]
        cases.extend((here, Path(file), commands) for file in files)

    anew = "--corpus text.txt --out-dir new/run --max-iters 1"
    for name in ("char", "byte", *train_tokenizers(folder)):
        here, hf = new_folder(folder / name), name not in ("char", "byte")
        tokenizer = f"hf:../{name}.json" if hf else name
        end = undisturbed([*train("rare"), "--max-iters", 2, "--tokenizer", tokenizer], here,
                          lambda here: find_checkpoint(here / "out", "best").relative_to(here))
        files = ["npgpt_tokenizer.json"] if hf else ["state.json", "state.json", "config.json", "npgpt_tokenizer.json",
                                                     "model.safetensors", "optimizer.safetensors"]
        add(here, [end.made / file for file in files] if name != "byte" else [],
            "info out", "eval out", "eval out --which latest", "export out --out new/it",
            "sample out --max-new-tokens 2", "sample out --max-new-tokens 2 -n 2",
            "train --resume --out-dir out --max-iters 3 WORK", f"train --init-from out {anew} WORK")
        if name == "byte":
            continue
        model = new_folder(folder / f"{name}-model")        # as one of the hub, with its tokenizer.json if it has one
        undisturbed(["export", f"../{name}/out", "--out", "model"], model, new_files)
        of_model = ["info model", "eval model --corpus text.txt", "sample model --max-new-tokens 2",
                    "export model --out new/it", f"train --init-from model {anew} WORK"]
        if hf:
            (model / "model/npgpt_tokenizer.json").unlink()
            add(model, ["model/tokenizer.json"], *of_model, f"train --tokenizer hf:model {anew} TINY",
                "data prepare text.txt --tokenizer hf:model/tokenizer.json --out new/it")
            continue
        add(here, ["out/metrics.jsonl"], *["train --resume --out-dir out --max-iters 3 WORK"] * 6, "plot out")
        add(model, ["model/config.json", "model/model.safetensors", "model/npgpt_tokenizer.json"], *of_model)
        shards = shutil.copytree(model, folder / "shards")
        split_into_shards(shards / "model")
        add(shards, ["model/model.safetensors.index.json", "model/model-1.safetensors"], *of_model)
    tokens = shutil.copytree(folder / "char", folder / "tokens")
    undisturbed("data prepare text.txt --tokenizer char --out tokens".split(), tokens, new_files)
    add(tokens, ["tokens/train.bin", "tokens/val.bin", "tokens/npgpt_tokenizer.json"], "eval out --corpus tokens",
        "train --corpus tokens --out-dir new/run --max-iters 1 TINY")
    small = new_folder(folder / "small")
    preset = (ROOT / "npgpt/training/presets/char-cpu.toml").read_bytes()
    (small / "preset.toml").write_bytes(b"\n".join(line for line in preset.splitlines() if b" = " in line))
    add(small, ["text.txt"], f"train {anew} TINY", "data prepare text.txt --tokenizer char --out new/it")
    add(small, ["preset.toml"], "info --preset preset.toml", f"train --preset preset.toml {anew} TINY")
    exercise = new_folder(folder / "exercise")
    undisturbed("exercise linear --out linear.py".split(), exercise, new_files)
    (exercise / "exercises").mkdir()
    (exercise / "exercises/progress.json").write_text(json.dumps({"exercises": {
        "linear level 1": {"solved": "2026-01-01", "tries": 2, "hints": {"dweight": 1}},
        "gelu_tanh bug 3": {"tries": 1, "hints": {}}}}))
    add(exercise, ["exercises/progress.json"], "exercise")
    add(exercise, ["linear.py"], "read_exercise linear.py")
    return cases


def split_into_shards(model):
    from safetensors.numpy import load_file, save_file

    tensors = list(load_file(model / "model.safetensors").items())
    shards = {"model-0.safetensors": dict(tensors[:5]), "model-1.safetensors": dict(tensors[5:])}
    for file, part in shards.items():
        save_file(part, model / file)
    (model / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {name: file for file, part in shards.items() for name in part}}))
    (model / "model.safetensors").unlink()


def files(rng, number, folder, cases):
    whole = [(here, file, command) for here, file, commands in cases for command in commands]
    here, file, commands = rng.choice(cases)
    arguments = rng.choice(commands)
    if number < len(whole):             # first every command on its whole file: it has to work
        here, file, arguments = whole[number]
    shutil.copytree(here, folder, dirs_exist_ok=True)
    data = (here / file).read_bytes()
    if number >= len(whole):
        data = damage(rng, file.name, data)
    (folder / file).write_bytes(data)
    state = file.parent / "state.json"
    if "step-" in str(file) and file != state and rng.random() < 0.6:       # as if damaged before its digest was taken
        content = json.loads((folder / state).read_bytes())
        content["sha256"][file.name] = hashlib.sha256(data).hexdigest()
        (folder / state).write_text(json.dumps(content))
    os.chdir(folder)
    traced = terminal or number < len(whole) or rng.random() < 0.02     # slow, but it counts zeros that nobody touched
    if traced:
        tracemalloc.start()
    before = resident("VmRSS", reset=True)
    result = run_here(arguments)
    taken = resident("VmHWM") - before
    if traced:
        taken = max(taken, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    what = f"{arguments[0]}, {file.name}"
    needed = number < len(whole) or file.name == "metrics.jsonl" and arguments[0] == "train"    # whose numbers are lost
    found = (must_work if needed else complaints)(result, what)
    if taken > FLOOR + 10 * len(data):
        found.append(f"{what}: more than ten times its size in memory | {taken >> 20} MiB for {len(data)} bytes")
    return found, taken


def resident(field, reset=False):
    """VmRSS, or VmHWM (its peak since the last reset), of this process in bytes; 0 where the system is not Linux."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        return 1024 * int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])
    except OSError:
        return 0


# commands

ODD_NUMBERS = ["0", "-1", "1e400", "nan", "1.5", "", "10_0", "٣", "4000000000", *(f"{10**i}" for i in (10, 18, 19, 30)),
               "1e-320"]
STRINGS = ["", "--", "-n=--", "-", ".", "missing", "missing/x", "text.txt", "run", "model", "/dev/null", "/dev/zero",
           os.fsdecode(b"\xff\xfe"), "x" * 4000, "a/" * 2100, "\x1b[31mred", "a\nb", "'", "é✓",
           "model/model.safetensors", "hf:", "hf:bpe.json", "hf:/dev/zero", "no/where", "~", "*", "char", "byte",
           "gpt2", "tokens", "preset.toml"]
NEVER_MUCH = {"max_iters", "gradient_accumulation_steps", "max_new_tokens"}     # whoever asks for much waits for long
GOOD_LINES = {"train": ["--out-dir", "new/run", "--corpus", "text.txt", *TINY, "--max-iters", "2"], "eval": ["run"],
              "sample": ["run", "--max-new-tokens", "2"], "export": ["run", "--out", "new/it"], "plot": ["run"],
              "data prepare": ["text.txt", "--tokenizer", "char", "--out", "new/it"], "study": ["linear"],
              "data get": ["tinyshakespeare"], "gradcheck": ["linear"], "exercise": ["linear", "gelu_tanh"]}


def setup_commands(folder):
    """A folder with all that a good command line could name."""
    setup_files(folder)
    here = new_folder(folder / "commands")
    for source, name in (("char/out", "run"), ("char-model/model", "model"), ("tokens/tokens", "tokens")):
        shutil.copytree(folder / source, here / name)
    for file in (folder / "small/preset.toml", *folder.glob("bpe.json")):
        shutil.copy(file, here)
    return here


@functools.cache
def all_flags():
    """[(words of a command, action of its parser)] of the real parsers, without what opens a browser or takes long."""
    found = []
    for name, module in npgpt.cli.main.COMMANDS.items():
        parser = argparse.ArgumentParser(add_help=False)
        module.add_arguments(parser)
        nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        parsers = [(f"{name} {word}", each) for action in nested for word, each in action.choices.items()]
        found += [(words, action) for words, each in parsers or [(name, parser)] for action in each._actions]
    return [(words, action) for words, action in found if words != "bench" and action.dest not in ("help", "open")
            and (words, action.dest) != ("gradcheck", "layer")]


def odd_values(action):
    """The values of a flag to try, strings; None for a switch."""
    if action.nargs == 0:
        return [None]
    numbers = ["1", "2"] if action.dest in NEVER_MUCH else ["1", "2", *ODD_NUMBERS]
    return [*(action.choices or ()), *(numbers if action.type in (int, float) else STRINGS)]


def commands(rng, number, folder, template):
    folder = folder / "inside"
    shutil.copytree(template, folder)
    single = [(words, action, value) for words, action in all_flags() for value in odd_values(action)]
    random.Random(0).shuffle(single)
    words, action, value = single[number % len(single)]     # first every flag with every value by itself
    others = [other for command, other in all_flags() if command == words and other.option_strings] or [action]
    changes = [(action, value)]
    if number >= len(single):
        changes += [(other, rng.choice(odd_values(other))) for other in rng.choices(others, k=rng.randint(1, 5))]
    tried = " ".join(action.dest for action, _ in changes)
    arguments = GOOD_LINES.get(words, []).copy()
    for action, value in changes:
        if not action.option_strings:
            arguments[:1] = [str(value)]
        else:
            flag = rng.choice(action.option_strings)
            arguments += [flag] if value is None else [f"{flag}={value}"] if rng.random() < 0.3 else [flag, str(value)]
    arguments = [*words.split(), *arguments]
    variant = rng.choice(["", "", "", "", "ascii", "homeless"])

    def prepare():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.dont_write_bytecode = True
        tempfile.tempdir = str(folder)
        if variant == "ascii":
            os.environ.update(LANG="C", PYTHONIOENCODING="ascii:strict")
            sys.stdout.reconfigure(encoding="ascii", errors="strict")
        elif variant == "homeless":
            os.environ.pop("HOME", None)
        before_each_change(stay_inside)

    def stay_inside(paths):
        for path in map(os.fsdecode, paths):
            whole = os.path.abspath(path)
            if whole not in ("/dev/null", "/dev/zero") and not whole.startswith(str(folder)):
                place = os.path.dirname(whole).encode(errors="replace")
                os.write(2, b"\n[torture: writes outside of its folder, in " + place + b"]\n")
                raise PermissionError(13, "torture: this is outside", path)

    found = complaints(run_in_fork(arguments, folder, prepare), words, codes=(0, 1, 2, 130))
    if not stat.S_ISCHR(os.stat("/dev/null").st_mode):
        found.append("/dev/null is no device any more")
    return [f"{text} | {tried} {variant}" for text in found]


# calls: none of them makes sense, so UserError, and nothing changed, is the only right answer

TYPES = [None, "1", [], {}, math.nan, b"1"]
IDS = [None, [[1, 2], [3]], "To be", [[None]], {},
       *(np.zeros(shape, int) for shape in ((1, 2, 2), (3,), (), (0, 3), (2, 0))),
       *(np.ones((2, 3), dtype) for dtype in (float, bool, complex, object)), np.full((2, 3), 2**64 - 1, np.uint64),
       *(np.full((2, 3), value) for value in (-2, 7, 10**6))]
TOO_LONG = np.zeros((2, 7), int)
TARGETS = [*(np.full((2, 3), value) for value in (-1, -2, 7)), np.zeros((2, 3)), np.zeros((2, 2), int), "x", 1]
WHOLE = [-1, 0, 1.5, True, *TYPES]              # where a positive whole number is wanted
SHARE = [-0.1, 1.0, 2, math.inf, True, "1", [], math.nan]
SWITCH = [0, 1, "true", []]
THREADS = [0, -1, 1.5, 10**30, True, "1", math.nan]
ID = [-1, 1.5, "1", True, []]
FIELDS = {
    "vocab_size": [*WHOLE, 10**18], "block_size": [*WHOLE, 10**18], "n_layer": [*WHOLE, 10**9], "qkv_bias": SWITCH,
    "n_head": [*WHOLE, 3, 10**18], "n_embd": [*WHOLE, 2**40], "n_inner": [-1, 0, 1.5, True, *TYPES[1:], 2**50],
    "layer_norm_epsilon": [0, None, *SHARE], "activation": ["relu", None, 1, [], {}], "dropout": [None, *SHARE],
    "bos_token_id": ID, "eos_token_id": ID,
    **dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), SHARE),
    **dict.fromkeys(("bias", "tie_word_embeddings", "causal", "scale_attn_weights", "embedding_layer_norm",
                     "scale_attn_by_inverse_layer_idx"), [*SWITCH, None])}


class Scene:
    """A small model and its optimizer, which have taken a step, and what they were then."""

    def __init__(self, rng):
        self.shape = {"vocab_size": 7, "block_size": 6, "n_layer": 1, "n_head": 2, "n_embd": 4,
                      "bias": rng.random() < 0.7, "tie_word_embeddings": rng.random() < 0.5}
        self.dtype = rng.choice(["float32", "float64"])
        self.model = GPT(GPTConfig(**self.shape), seed=rng.randrange(100), dtype=self.dtype, threads=1)
        self.optimizer = AdamW(self.model.params, threads=1)
        self.idx = np.arange(6).reshape(2, 3)
        self.grads = self.model.loss_and_grads(self.idx, self.idx)[1]
        self.optimizer.step(self.grads)
        self.before = self.now()

    def now(self):
        arrays = (self.model.params, self.optimizer.m, self.optimizer.v)
        return [bytes(np.asarray(array.flat)) for array in arrays], self.optimizer.t, self.model.config

    def batch(self, odd):
        return {"idx": self.idx, "targets": self.idx, **odd}

    def step(self, grads="good", max_norm=1.0, lr=1e-3):
        """A step with gradients that are described in words."""
        if isinstance(grads, dict):
            grads = GPT(GPTConfig(**self.shape | grads), dtype=self.dtype).params.zeros_like()
        elif grads == "another dtype":
            grads = GPT(GPTConfig(**self.shape), dtype="float64" if self.dtype == "float32" else "float32").params
        elif grads == "not finite":
            self.grads["wte.weight"] = np.nan
        elif grads == "plain dict":
            grads = dict(self.grads)
        self.optimizer.lr = lr
        self.optimizer.step(self.grads if grads in ("good", "not finite") else grads, max_norm)

    def assign(self, where, item):
        where[item[0]] = item[1]


CALLS = {       # what -> (the call, {argument: odd values})
    "GPTConfig": (lambda s, **odd: GPT(GPTConfig(**s.shape | odd), threads=1), FIELDS),
    "GPT": (lambda s, **odd: GPT(**{"config": s.model.config, **odd}), {
        "config": [None, 5, {}, "gpt2"], "seed": [-1, 1.5, "x", [-1]], "threads": THREADS,
        "kernels": [None, "fast", 1, []], "dtype": ["int8", "float16", "", None, complex, 5, [], "tf32"],
        "device": [None, "tpu", 5, "gpu:x", "", []]}),
    "forward": (lambda s, **odd: s.model.forward(**s.batch(odd)), {
        "idx": [*IDS, TOO_LONG], "targets": TARGETS, "rng": [5, "x", []]}),
    "backward": (lambda s, **odd: GPT(s.model.config).backward(), {"no forward": [0]}),
    "loss_and_grads": (lambda s, **odd: s.model.loss_and_grads(**s.batch(odd)), {
        "idx": [*IDS, TOO_LONG], "targets": [None, *TARGETS], "rng": [5, "x"],
        "count": [-1, 0, True, 1.5, math.nan, "1", []]}),
    "evaluate": (lambda s, **odd: s.model.evaluate(**s.batch(odd)), {
        "idx": [*IDS, TOO_LONG], "targets": [None, *TARGETS]}),
    "generate": (lambda s, **odd: s.model.generate(**{"idx": s.idx, "max_new_tokens": 2, **odd}), {
        "temperature": [-1, math.nan, math.inf, None, "1"], "top_k": [0, 1.5, -1, True, "1", math.nan],
        "top_p": [0, 2, -0.1, math.nan, "1"], "seed": [-1, 1.5, "x"], "eos_token_id": [1.0, -1, "x", 10**9, True],
        "max_new_tokens": [-1, 1.5, None, "1", True, math.nan], "idx": IDS}),
    "AdamW": (lambda s, **odd: AdamW(**{"params": s.model.params, **odd}), {
        "params": [None, {}, np.zeros(3)], "lr": [math.nan, math.inf, -1, "1", None], "threads": THREADS,
        "betas": [(0.9,), (0.9, 0.95, 0.99), 0.9, None, (), (1.0, 0.9), (0.9, -0.1), (math.nan, 0.9), "ab"],
        "eps": [0, -1, math.nan, math.inf, "1", None], "weight_decay": [-1, math.nan, math.inf, "1", None]}),
    "AdamW.step": (lambda s, **odd: s.step(**odd), {
        "grads": [{"n_embd": 8}, {"n_layer": 2}, {"vocab_size": 9}, "another dtype", "not finite", "plain dict", None],
        "max_norm": [-1, 0, math.nan, "1", []], "lr": [math.nan, math.inf, -1, "1", None]}),
    "params[name] = value": (lambda s, item: s.assign(s.model.params, item), {"item": [
        ("typo", None), ("typo", 0), (5, 0), (None, 0), ("wte.weight", None), ("wte.weight", np.zeros(3)),
        ("wte.weight", "x"), ("ln_f.weight", np.zeros((4, 1))), ("ln_f.weight", [1, 2]), ("ln_f.weight", None)]}),
    "grads[name] = value": (lambda s, item: s.assign(s.grads, item), {"item": [
        ("typo", None), ("typo", 0), ("ln_f.weight", None), ("wte.weight", None), ("wte.weight", np.zeros((7, 5)))]}),
    "from_pretrained": (lambda s, **odd: GPT.from_pretrained(**{"name_or_path": "missing", **odd}), {
        "name_or_path": ["missing", "", None, 5, "a/b/c", ".", "no.safetensors", [], "x" * 5000, "\0"]}),
    "save_pretrained": (lambda s, folder: s.model.save_pretrained(folder), {"folder": [None, 5, [], 1.5]}),
}


def calls(rng, number, folder, made):
    single = [(name, {key: value}) for name, (_, odd) in CALLS.items() for key in odd for value in odd[key]]
    name, arguments = single[number] if number < len(single) else rng.choice(single)
    if number >= len(single):           # first every odd value by itself, then two together
        key = rng.choice(list(CALLS[name][1]))
        arguments = {key: rng.choice(CALLS[name][1][key]), **arguments}
    os.chdir(folder)
    call = f"{name}({'several' if len(arguments) > 1 else ''.join(arguments)})"
    scene, shown = Scene(rng), " ".join(f"{name} {arguments}"[:300].split())
    tell([shown], Result(0, "", ""))
    found = []
    try:
        with cpu_limit():
            CALLS[name][0](scene, **arguments)
        found.append(f"{call}: accepted without a word | {shown}")
    except UserError as error:
        if "\n" in str(error) or len(str(error)) > 2000:
            found.append(f"{call}: an error of several lines, or too long | {shown}")
    except (Exception, Hang) as error:
        found.append(f"{origin(error)} | {shown}")
    if scene.now() != scene.before:
        found.append(f"{call}: something was changed | {shown}")
    if number % 100 == 0:               # this one makes sense
        tiny, greedy = (scene.model.generate(scene.idx, 4, temperature=value) for value in (1e-320, 0.0))
        if (tiny != greedy).any():
            found.append("generate(temperature=1e-320) does not draw the likeliest token")
    return found


# Workers, and the report

class Part(NamedTuple):
    case: object                # (random, number, folder, what setup made) -> findings, or (findings, bytes taken)
    setup: object               # (folder) -> whatever, or None
    count: int                  # of cases, by default
    limit: int                  # seconds, after which a worker that does not answer is killed
    here: bool                  # whether the worker runs commands in its own process


PARTS = {"kills": Part(kills, setup_runs, 600, 240, False), "replaced": Part(replaced, setup_runs, 300, 240, False),
         "limits": Part(limits, setup_runs, 400, 240, False), "files": Part(files, setup_files, 20_000, 15, True),
         "commands": Part(commands, setup_commands, 3000, 90, False), "calls": Part(calls, None, 1000, 15, True)}


class Finding(NamedTuple):
    part: str
    case: int
    text: str
    command: str                # that shows it again

    @property
    def group(self):
        return self.part, re.sub(r"\.[0-9a-f]{8}\b|\d+", "N", self.text.split(" | ")[0])


class Row(NamedTuple):
    part: str
    cases: int = 0
    findings: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    memory: int = 0


def work(name, seed, folder, made, connection):
    """In a process of its own: do the cases whose numbers come through the pipe."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # a Ctrl-C is for the process above
    if PARTS[name].here:
        for descriptor in (1, 2):                       # files, so that Rust's messages are seen as well
            os.dup2(os.open(folder / f"output-{os.getpid()}-{descriptor}", os.O_RDWR | os.O_CREAT), descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while True:
        number = connection.recv()
        here, began = new_folder(folder / f"case-{number}"), time.monotonic()
        try:
            answer = PARTS[name].case(random.Random(f"{seed} {name} {number}"), number, here, made)
        except Exception as error:      # this program's own, or of a product so broken that it cannot be asked
            answer = [f"the case itself fails: {error!r} | {traceback.format_exc()[-600:]}"]
        found, memory = answer if isinstance(answer, tuple) else (answer, 0)
        os.chdir(folder)
        if not terminal:
            shutil.rmtree(here, ignore_errors=True)
        connection.send((number, [text.replace(f"{here}/", "") for text in found], time.monotonic() - began, memory))


class Worker:
    """A process that does cases of a part, one at a time."""

    def __init__(self, name, seed, folder, made):
        self.folder = folder
        self.connection, other = FORK.Pipe()
        self.process = FORK.Process(target=work, args=(name, seed, folder, made, other))
        self.process.start()
        other.close()
        self.number = None              # of the case that it does

    def give(self, number):
        self.number, self.since = number, time.monotonic()
        self.connection.send(number)

    def answer(self, limit):
        """What it sent, or that it died, or hangs in C; None where there is still hope."""
        late = time.monotonic() - self.since > limit
        try:
            if self.connection.poll():
                return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(5)
        code = self.process.exitcode
        if code is None and not late:
            return None
        self.stop()
        text = f"does not end within {limit} seconds" if code is None else f"the process dies with exit code {code}"
        with contextlib.suppress(OSError):
            text += f" | {(self.folder / f'output-{self.process.pid}-2').read_text(errors='replace')[-500:]}"
        return self.number, [text], time.monotonic() - self.since, 0

    def stop(self):
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def do_cases(name, numbers, seed, folder, made, deadline):
    """Yield (number, findings, seconds, memory) of each case of a part, until the deadline."""
    numbers, workers = iter(numbers), [Worker(name, seed, folder, made) for _ in range(WORKERS)]
    try:
        while True:
            for i, worker in enumerate(workers):
                idle = worker.number is None and time.monotonic() < deadline
                if idle and (number := next(numbers, None)) is not None:
                    if not worker.process.is_alive():
                        workers[i] = worker = Worker(name, seed, folder, made)
                    worker.give(number)
            busy = [worker for worker in workers if worker.number is not None]
            if not busy:
                return
            multiprocessing.connection.wait([worker.connection for worker in busy], timeout=1)
            for worker in busy:
                if (answer := worker.answer(PARTS[name].limit)) is not None:
                    worker.number = None
                    yield answer
    finally:
        for worker in workers:
            worker.stop()


@contextlib.contextmanager
def quiet_world(folder):
    """Within it, this process and its forks have nothing of the user's home, no network, and no locks in common."""
    environment = {"HOME": folder, "HF_HOME": folder, "MPLCONFIGDIR": folder, "TIKTOKEN_CACHE_DIR": folder,
                   "NPGPT_DATA_DIR": "", "HF_HUB_OFFLINE": 1, "RUST_BACKTRACE": 0, "TOKENIZERS_PARALLELISM": "false",
                   **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")}
    patch = unittest.mock.patch
    with patch.dict(os.environ, {name: str(value) for name, value in environment.items()}), \
            patch("inspect.getsource", functools.cache(inspect.getsource)), \
            patch("os.fsync", lambda descriptor: None), \
            patch("npgpt.cli.train.SAMPLE_TOKENS", 2, create=True):     # these three for speed: no plug is pulled here
        tqdm.set_lock(threading.RLock())            # tqdm's own is shared by forks, and a killed one would keep it
        tqdm.monitor_interval = 0
        for module in ("matplotlib.figure", "tokenizers"):
            with contextlib.suppress(ImportError):
                __import__(module)
        yield


def run(parts=tuple(PARTS), counts=(), seed=0, minutes=math.inf, progress=True, case=None, findings=None, rows=None):
    """Do the cases of some parts. Returns the findings; `findings` and `rows`, lists, are filled as it goes."""
    global terminal
    findings, rows = [] if findings is None else findings, [] if rows is None else rows
    terminal = None
    memory = "/dev/shm" if "TMPDIR" not in os.environ and os.access("/dev/shm", os.W_OK) else None      # fast, on Linux
    scratch = Path(tempfile.mkdtemp(prefix="torture-", dir=memory)).resolve()
    end = time.monotonic() + 60 * minutes
    try:
        with quiet_world(scratch):
            for i, name in enumerate(parts):
                began, folder, row = time.monotonic(), scratch / name, Row(name)
                rows.append(row)
                folder.mkdir()
                made = PARTS[name].setup and PARTS[name].setup(folder)
                terminal = None if case is None else os.dup(2)
                numbers = range(dict(counts).get(name, PARTS[name].count)) if case is None else [case]
                deadline = began + (end - began) / (len(parts) - i)
                with tqdm(total=len(numbers), desc=f"{name:<9}", unit="case", disable=not progress) as bar:
                    for number, found, seconds, memory in do_cases(name, numbers, seed, folder, made, deadline):
                        again = f"python tools/torture.py {name} --seed {seed} --case {number}"
                        findings += [Finding(name, number, text, again) for text in found]
                        row = rows[-1] = Row(name, row.cases + 1, row.findings + bool(found), time.monotonic() - began,
                                             max(row.slowest, seconds), max(row.memory, memory))
                        bar.set_postfix_str(f"{row.findings} with findings", refresh=False)
                        bar.update()
    finally:
        if terminal:
            os.close(terminal)
            print(f"the folder of the case: {scratch}/{name}/case-{case}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    return findings


def report(rows, findings):
    """Print each kind of finding once, and a row for each part."""
    groups = collections.defaultdict(list)
    for finding in findings:
        groups[finding.group].append(finding)
    for (part, _), group in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        print(f"\n{part}, {len(group)} times: {group[0].text[:500]}\n    {group[0].command}")
    print(f"\n{'part':<10}{'cases':>9}{'found':>9}{'kinds':>7}{'seconds':>9}{'slowest':>10}{'memory':>10}")
    for row in rows:
        kinds = sum(part == row.part for part, _ in groups)
        memory = f"{row.memory >> 20} MiB" if row.memory else ""
        print(f"{row.part:<10}{row.cases:>9,}{row.findings:>9,}{kinds:>7}{row.seconds:>9.0f}{row.slowest:>8.2f} s"
              f"{memory:>10}")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; by default all")
    parser.add_argument("--minutes", type=float, default=math.inf, help="the longest that all parts together may take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="do one case of one part again, and tell what happens")
    for name, part in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=part.count, metavar="N",
                            help=f"cases; by default {part.count}")
    args = parser.parse_args(argv)
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(unknown)}")
    if args.case is not None and len(args.parts) != 1:
        parser.error("--case is of one part: name it")
    findings, rows = [], []
    with contextlib.suppress(KeyboardInterrupt):
        run(args.parts or list(PARTS), vars(args), args.seed, args.minutes, True, args.case, findings, rows)
    report(rows, findings)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

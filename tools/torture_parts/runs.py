"""Runs that are killed, replaced, short of disk or memory, or trained by two processes."""

import os
import re
import resource
import shutil
import signal
import time
from collections import namedtuple
from pathlib import Path

from torture_parts.running import complaints, must_work, run, start, wait

TEXT = (
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 12
)
WORK = (
    "--batch-size 2 --gradient-accumulation-steps 1 --eval-iters 2 --log-interval 1 --crop-length 0"
)
TINY = (
    f"{WORK} --n-layer 1 --n-head 2 --n-embd 8 --block-size 8 --threads 1 --warmup-iters 2 "
    "--lr-decay-iters 20"
)
TRAIN = f"train --out-dir out --corpus text.txt {TINY} --max-iters 15"
ANEW = {
    "plain": f"{TRAIN} --eval-interval 1",
    "dropout": f"{TRAIN} --eval-interval 2 --dropout 0.2 --gradient-accumulation-steps 3",
    "float64": f"{TRAIN} --eval-interval 3 --dtype float64 --no-tie-word-embeddings --no-bias "
    "--tokenizer byte",
    "rare": f"{TRAIN} --eval-interval 1000 --dropout 0.1",
}  # most kills come before its second checkpoint
HALF = f"{TRAIN} --eval-interval 3 --max-iters 6"
RESUME = "train --out-dir out --resume --max-iters 15"
FROM_HALF = {
    "resume": RESUME,
    "overwrite": f"{ANEW['dropout']} --seed 2 --overwrite",
    "export": "export out --out new/exported",
    "plot": "plot out --out new/loss.png",
    "prepare": "data prepare text.txt --tokenizer char --out new/prepared",
}
COMMANDS = ANEW | FROM_HALF
KILLED = (0, -signal.SIGKILL, -signal.SIGTERM, 130, 143)

End = namedtuple("End", "seconds changes made")  # of a command that was not disturbed


def new_folder(path):
    """Make a folder with a training text and an empty folder `new`."""
    (path / "new").mkdir(parents=True)
    (path / "text.txt").write_text(TEXT)
    return path


def must_end(line, folder):
    """Run a command of the set-up. Return its Result."""
    result = run(line, folder)
    if result.code:
        raise SystemExit(f"torture: {line} ends with {result.code}: {result.err}")
    return result


def setup_runs(folder):
    """Return name -> End of every command. "half" has a run that was stopped half way."""
    must_end(HALF, new_folder(folder / "half"))
    ends = {}
    for name, line in COMMANDS.items():
        began, here = time.monotonic(), begin(name, folder / name, folder)
        result = must_end(line, here)
        ends[name] = End(time.monotonic() - began, result.changes, content(here))
    return ends


def begin(name, here, folder):
    """Put the command's input into a folder."""
    if name in ANEW:
        return here if here.exists() else new_folder(here)
    return shutil.copytree(folder / "half", here, dirs_exist_ok=True)


def content(folder):
    """Return path -> bytes of every file below a folder, without values that differ between equal
    runs.
    """
    found = {}
    for path in folder.rglob("*"):
        if path.name != ".npgpt.lock":
            data = b"" if path.is_dir() else path.read_bytes()
            # Not the speed and the name of the corpus.
            data = re.sub(rb'"tokens_per_second": [^,}]+|"name": "[^"]*"', b"", data)
            found[str(path.relative_to(folder))] = (
                sorted(data.splitlines()) if path.suffix == ".jsonl" else data
            )
    return found


def kills(rng, number, folder, ends, names=(*ANEW, "rare", "rare", "resume")):
    """Kill a command, repeat it, and perhaps kill it again; the end must be as if nothing had
    happened.

    It is killed before a change on disk, or by a signal after a time.
    """
    name = names[number % len(names)]
    begin(name, folder, folder.parent)
    share = rng.choice([0.2, 0.5, 1.0])
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        line = next_line(name, rng, folder)
        if rng.random() < 0.6:
            result = run(
                line, folder, kill_at=rng.randint(1, round(ends[name].changes * share) + 2)
            )
        else:
            process = start(line, folder)
            time.sleep(rng.uniform(0, 1.1 * ends[name].seconds * share))
            os.kill(
                process.pid,
                rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM]),
            )
            result = wait(process)
        if found := complaints(result, f"{name}, killed", KILLED):
            return found
    return afterwards(name, rng, folder, ends)


def replaced(rng, number, folder, ends):
    """Kill commands that replace what is there."""
    return kills(rng, number, folder, ends, ["overwrite"])


def next_line(name, rng, folder):
    """Return the command that continues one that was killed."""
    saved = any(folder.glob("out/step-*/state.json"))
    resume = saved if name in ANEW else name == "overwrite" and rng.random() < 0.7
    return RESUME if resume else COMMANDS[name]


def afterwards(name, rng, folder, ends):
    """Repeat a command that was killed: it must work, lose nothing and leave nothing behind. Return
    findings.
    """
    for finished in ("exported", "prepared"):  # a second one is refused
        shutil.rmtree(folder / "new" / finished, ignore_errors=True)
    line = next_line(name, rng, folder)
    again = f"{name} afterwards, {'with --resume' if line == RESUME else 'once more'}"
    right = (
        ["overwrite", "resume"] if name == "overwrite" and line == RESUME else [name]
    )  # new or old run
    return must_work(run(line, folder), again) or differences(
        folder, [ends[each] for each in right], again
    )


def differences(folder, ends, what):
    """Return how a folder differs from the first of some right ends; nothing if it equals one of
    them.
    """
    made = content(folder)
    if any(made == end.made for end in ends):
        return []
    right = ends[0].made
    wrong = [path for path in {**made, **right} if made.get(path) != right.get(path)]
    return [f"{what}: not as undisturbed | {wrong}"]


def limits(rng, number, folder, ends):
    """Run a command with a full disk, a limit on file size or memory, or beside a second one.
    Return findings.
    """
    kind = rng.choice(["two", "disk", "file size", "memory"])
    if kind == "two":
        return two_at_once(rng, folder, ends)
    name = rng.choice(["rare", "float64", *FROM_HALF])
    begin(name, folder, folder.parent)
    size, more = (
        rng.randrange(40_000),
        int(2 ** rng.uniform(14, 25)),
    )  # bytes of a file, and of memory
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = {
        "memory": (resource.RLIMIT_AS, (used + more,) * 2),
        "file size": (resource.RLIMIT_FSIZE, (size, size)),
    }
    options = (
        {"full_at": rng.randint(1, ends[name].changes)}
        if kind == "disk"
        else {"before": lambda: resource.setrlimit(*limit[kind])}
    )
    result = run(COMMANDS[name], folder, **options)
    found = complaints(result, f"{name} with little {kind}")
    if result.code == 2 and not re.search(r"memory|\bout\b|/", result.err):
        found.append(f"{name} with little {kind}: names no file | {result.err}")
    return found or afterwards(name, rng, folder, ends)


def two_at_once(rng, folder, ends):
    """Start two processes in one run: one continues, the other refuses in one line, or waits.
    Return findings.
    """
    names = rng.choice([("plain", "plain"), ("resume", "resume"), ("plain", "overwrite")])
    begin(names[0], folder, folder.parent)
    first = start(COMMANDS[names[0]], folder)
    time.sleep(rng.choice([0, rng.uniform(0, ends["plain"].seconds)]))
    second = start(COMMANDS[names[1]], folder)
    results, what = [wait(first), wait(second)], f"two at once, {' and '.join(names)}"
    found = [complaint for result in results for complaint in complaints(result, what)]
    waited = names[1] == "overwrite" or re.search(
        "^resuming .* at step 15$", results[0].out + results[1].out, re.M
    )
    if all(result.code for result in results):
        found.append(f"{what}: both are refused | {results[0].err} {results[1].err}")
    elif not any(result.code for result in results) and not waited:
        found.append(f"{what}: both train")
    return found or differences(folder, [ends[names[0] if results[1].code else names[1]]], what)

"""Run a command in a fork of this process, watch it, perhaps kill it, and judge how it ended.

Every command is limited in time and memory, and may write only below its own folder; a violation is
reported on stderr, in a line `[torture: …]`.
"""

import errno
import math
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections import namedtuple

os.environ["NUMBA_DISABLE_JIT"] = (
    "1"  # by NumPy: a process that compiles needs memory, and writes to a cache
)

import npgpt.cli.main
import npgpt.cli.train
from npgpt.engine.cpu import cpu_kernels

cpu_kernels()  # tries to load Numba, 120 MiB, before memory is measured

npgpt.cli.train.draw_if_possible = lambda out_dir: ""  # slower than a run here
CPU_SECONDS = 10  # more than any command on tiny files needs
WALL_SECONDS = 60
MEMORY = 4 << 30  # bytes of address space
MOST_OUTPUT = 1 << 20  # bytes read of stdout and of stderr; then the pipe is closed
CHANGES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.truncate",
    "shutil.rmtree",
    "fcntl.flock",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
verbose = False  # with --case

Process = namedtuple("Process", "line pid out err changes")
Result = namedtuple("Result", "code out err changes memory")  # code: negative for a signal


def run(line, folder, **options):
    """Start a command and wait for it; the options are those of `start`."""
    return wait(start(line, folder, **options))


def start(line, folder, before=lambda: None, kill_at=None, full_at=math.inf):
    """Start `npgpt` with the arguments in a line, in a folder, after before().

    kill_at=n: SIGKILL before its n-th change of the file system. full_at=n: the disk is full from
    then on.
    """
    changes = multiprocessing.RawValue("q", 0)  # shared with the fork
    (out, child_out), (err, child_err) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what --text - reads
            os.dup2(child_out, 1)
            os.dup2(child_err, 2)
            os.closerange(3, 256)
            sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)
            sys.stderr = open(
                2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            os.chdir(folder)
            tempfile.tempdir = os.environ["HOME"] = str(folder)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.alarm(WALL_SECONDS)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            before()
            watch(str(folder), changes, kill_at, full_at)
            code = npgpt.cli.main.main(line.split())
            sys.stdout.flush()
        except SystemExit as error:
            code = error.code or 0
        except BaseException as error:
            text, code = traceback.format_exc(), 1
            if (
                isinstance(error, KeyboardInterrupt) and npgpt.cli.main.__file__ not in text
            ):  # before or after main
                text, code = "", 130
            os.write(2, text.encode(errors="backslashreplace"))
        finally:
            os._exit(code)
    os.close(child_out)
    os.close(child_err)
    return Process(line, pid, out, err, changes)


def watch(folder, changes, kill_at, full_at):
    """Count every change of the file system, including fsync; kill at one; refuse changes outside
    of the folder.
    """

    def change(event, paths=(), allowed=()):
        changes.value += 1
        if changes.value == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        for path in map(os.path.abspath, map(os.fsdecode, paths)):
            if event == "open":  # it follows links; other events do not
                path = os.path.realpath(path)
            inside = (
                f"{path}/".startswith(f"{folder}/") or "__pycache__" in path
            )  # Numba's, at its first run
            if path not in allowed and not inside:
                print(
                    f"\n[torture: writes outside of its folder, in {os.path.dirname(path)}]",
                    file=sys.stderr,
                )
                raise PermissionError(13, "torture: this is outside", path)
        if changes.value >= full_at and event in ("open", "os.mkdir", "os.fsync"):
            raise OSError(errno.ENOSPC, "No space left on device", *paths)

    def hook(event, args):
        if (
            event == "open"
            and isinstance(args[2], int)
            and args[2] & WRITING
            and not isinstance(args[0], int)
        ):
            change(
                event, args[:1], allowed=("/dev/null", "/dev/zero")
            )  # may be opened, not replaced
        elif event in CHANGES:
            change(
                event,
                [
                    path
                    for path in args[: 2 if event == "os.rename" else 1]
                    if not isinstance(path, int)
                ],
            )

    os.fsync = lambda descriptor: change("os.fsync")
    sys.addaudithook(hook)


def wait(process):
    """Wait for a command. Returns its Result."""
    texts = []
    for descriptor in (process.out, process.err):
        with open(descriptor, "rb") as file:
            texts.append(file.read(MOST_OUTPUT).decode(errors="replace"))
    _, status, usage = os.wait4(process.pid, 0)
    grown = usage.ru_maxrss - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB, on Linux
    result = Result(os.waitstatus_to_exitcode(status), *texts, process.changes.value, 1024 * grown)
    if verbose:
        print(
            f"{process.line}\n    ends with {result.code}\n{result.out[-1500:]}{result.err[-3000:]}"
        )
    return result


# A finding is a text. Findings of one kind are equal up to the first " | ".


def complaints(result, what, codes=(0, 2)):
    """Return what is wrong with the end of a command, a list of findings."""
    note = r"(?m)^npgpt: not in the checkpoint, so drawn by lora_block\.py: .*\n"
    err, last = (
        re.sub(note, "", result.err),
        (result.err.strip().splitlines() or ["(nothing)"])[-1][:200],
    )
    if result.code in (-signal.SIGXCPU, -signal.SIGALRM):
        return [f"{what}: takes more than {CPU_SECONDS} seconds"]
    if noted := re.search(r"^\[torture: (.+)\]$", err, re.MULTILINE):
        return [f"{noted[1]} | {what}"]
    if re.search(r"panicked at |Traceback \(most recent call last\)", err):
        return [f"{what}: {last.partition(':')[0]} | {err[-1500:]}"]
    if result.code not in codes:
        return [f"{what}: exit code {result.code} | {last}"]
    if result.code == 2 and not re.fullmatch(r"npgpt: [^\x00-\x1f\x7f-\x9f]{1,2000}\n", err):
        return [f"exit code 2, but stderr is not one short, printable line | {what}: {err[:300]!r}"]
    return []


def must_work(result, what):
    """Return `complaints` of a command that must end with exit code 0."""
    refused = [f"{what} is refused: {result.err.strip()[-300:]}"] if result.code else []
    return complaints(result, what, codes=(0, 2, result.code)) or refused

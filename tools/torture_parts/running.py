"""Run a job in a fork of this process, watched and perhaps killed, and judge how it ended.

A job is the arguments of `npgpt`, or a function. Every job is limited in time and memory, and can write only below its
own folder. What a job itself finds wrong it says on stderr, in a line `[torture: …]`.
"""

import collections
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

import numpy as np

import npgpt.cli.main
import npgpt.cli.train
from npgpt.engine.cpu import cpu_kernels

if cpu_kernels() != "numpy":        # Numba and its compiler need 120 MiB, which are not the damaged file's
    from npgpt.engine import compiled, few_rows  # noqa: F401 (here, because it tries whether its cache can be written)

    compiled.gelu_tanh_forward(np.ones((1, 8), np.float32))

npgpt.cli.train.draw_if_possible = lambda out_dir: ""       # a picture takes longer than a run of these
CPU_SECONDS = 10            # a command on tiny files computes for less, even if XLA compiles
WALL_SECONDS = 60
MEMORY = 4 << 30            # bytes of address space
MOST_OUTPUT = 1 << 20       # bytes of stdout or stderr that are read; then the pipe is closed
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree", "fcntl.flock"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
verbose = False             # with --case

Process = collections.namedtuple("Process", "job pid out err changes")
Result = collections.namedtuple("Result", "code out err changes memory")    # code: negative for a signal


def run(job, folder, **options):
    """Start a job and wait for it; the options are those of `start`."""
    return wait(start(job, folder, **options))


def start(job, folder, before=lambda: None, kill_at=None, full_at=None):
    """Start a job in a folder, after before().

    kill_at=n: SIGKILL before its n-th change of the file system. full_at=n: the disk is full from then on.
    """
    changes = multiprocessing.RawValue("q", 0)          # shared with the fork
    (out, child_out), (err, child_err) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(child_out, 1)
            os.dup2(child_err, 2)
            os.closerange(3, 256)
            sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)
            sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
            os.chdir(folder)
            tempfile.tempdir = str(folder)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.alarm(WALL_SECONDS)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            before()
            watch(str(folder), changes, kill_at, full_at or math.inf)
            code = exit_code(job if callable(job) else lambda: npgpt.cli.main.main([str(each) for each in job]))
        except KeyboardInterrupt:           # before npgpt was called, or after it returned
            code = 130
        finally:
            os._exit(code)
    os.close(child_out)
    os.close(child_err)
    return Process(job, pid, out, err, changes)


def watch(folder, changes, kill_at, full_at):
    """From now on count what this process changes on disk (each fsync too), be killed, and refuse what is outside."""
    def change(event, paths=(), allowed=()):
        changes.value += 1
        if changes.value == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        for path in map(os.path.abspath, map(os.fsdecode, paths)):
            if path not in allowed and not f"{path}/".startswith(f"{folder}/"):
                note(f"writes outside of its folder, in {os.path.dirname(path)}")
                raise PermissionError(13, "torture: this is outside", path)
        if changes.value >= full_at and event in ("open", "os.mkdir", "os.fsync"):
            raise OSError(errno.ENOSPC, "No space left on device", *paths)

    def hook(event, args):
        if event == "open" and isinstance(args[2], int) and args[2] & WRITING and not isinstance(args[0], int):
            change(event, args[:1], allowed=("/dev/null", "/dev/zero"))     # to be opened, never to be renamed over
        elif event in CHANGES:
            change(event, [path for path in args[:2 if event == "os.rename" else 1] if not isinstance(path, int)])

    os.fsync = lambda descriptor: change("os.fsync")
    sys.addaudithook(hook)


def note(text):
    """Say from within a job what is wrong."""
    os.write(2, f"\n[torture: {text}]\n".encode(errors="backslashreplace"))


def exit_code(function):
    """The exit code that Python would give for a function; for an exception stderr says where in npgpt it was."""
    try:
        code = function() or 0
        sys.stdout.flush()
        return code
    except SystemExit as error:
        return error.code or 0
    except BaseException as error:
        ours = os.path.dirname(npgpt.__file__)
        places = [frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(ours)]
        if isinstance(error, KeyboardInterrupt) and not places:
            return 130
        traceback.print_exc(limit=20)
        note(f"{type(error).__name__} in {(places or ['no function of npgpt'])[-1]}")
        return 1


def wait(process):
    """The Result of a started job."""
    out, err = (read_text(descriptor) for descriptor in (process.out, process.err))
    _, status, usage = os.wait4(process.pid, 0)
    grown = usage.ru_maxrss - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss        # KiB, on Linux
    result = Result(os.waitstatus_to_exitcode(status), out, err, process.changes.value, 1024 * grown)
    if verbose:
        shown = "a call" if callable(process.job) else " ".join(repr(str(each)[:200]) for each in process.job)
        print(f"{shown}\n    ends with {result.code}\n{out[-1500:]}{err[-3000:]}", file=sys.stderr)
    return result


def read_text(descriptor):
    with open(descriptor, "rb") as file:
        return file.read(MOST_OUTPUT).decode(errors="replace")


# A finding is a text. Findings of one kind are equal up to the first " | ".

def complaints(result, what, codes=(0, 2)):
    """What is wrong with how a job ended, a list of findings."""
    err, last = result.err, (result.err.strip().splitlines() or ["(nothing)"])[-1][:200]
    if result.code in (-signal.SIGXCPU, -signal.SIGALRM):
        return [f"{what}: takes more than {CPU_SECONDS} seconds"]
    if noted := re.findall(r"^\[torture: (.+)\]$", err, re.MULTILINE):
        return [f"{noted[0]} | {what}"]
    if unwanted := re.search(r"panicked at .*\n.*|Traceback \(most recent call last\)", err):
        return [f"{what}: {unwanted[0]} | {last}"]
    if result.code not in codes:
        return [f"{what}: exit code {result.code} | {last}"]
    if result.code == 2 and not re.fullmatch(r"npgpt: [^\x00-\x1f\x7f-\x9f]{1,2000}\n", err):
        return [f"exit code 2, but stderr is not one short, printable line | {what}: {err[:300]!r}"]
    return []


def must_work(result, what):
    """As `complaints`, of a command that has to end with exit code 0."""
    refused = [f"{what} is refused: {result.err.strip()[-300:]}"] if result.code else []
    return complaints(result, what, codes=(0, 2, result.code)) or refused

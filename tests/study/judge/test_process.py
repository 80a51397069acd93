"""The supervisor kills all that a command started, however it ends, and drops output beyond a limit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npgpt.study.judge import process
from tests.conftest import traced

pytestmark = pytest.mark.slow           # starts many processes, and waits for them
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
PYTHON = [sys.executable, "-I", "-S"]
# Every process writes its id into a file; the first one waits for all.
LEAVES = """
import os, sys, time
def note():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
note()
if os.fork() == 0:
    note(); time.sleep(60)
if sys.platform == "linux" and os.fork() == 0:
    os.setsid(); note(); time.sleep(60)
if sys.platform == "linux" and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note(); time.sleep(60)
    os._exit(0)
while open("pids").read().count("\\n") < (4 if sys.platform == "linux" else 2):
    time.sleep(0.01)
"""
ENDS = {"ends": "os._exit(3)", "is killed": "os.kill(os.getpid(), 9)", "goes on": "time.sleep(60)",
        "has closed its files": "os.closerange(0, 64); time.sleep(60)"}


def all_gone():
    """Whether the processes of LEAVES have ended, perhaps a moment later."""
    pids = [int(line) for line in Path("pids").read_text().split()]
    assert len(pids) >= 2
    for _ in range(100):
        if not any(map(alive, pids)):
            return True
        time.sleep(0.05)
    return False


def alive(pid):
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@needs_fork
@pytest.mark.parametrize(("end", "how"), [
    ("ends", "exit code 3"), ("is killed", "signal 9"), ("goes on", None), ("has closed its files", None)])
def test_what_a_command_leaves_behind_is_ended(end, how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()
    seconds = 60 if how else 1.5
    assert process.run([*PYTHON, "-c", LEAVES + ENDS[end]], None, seconds, (10, 10)) == (how, b"", b"")
    assert time.monotonic() - start < 5.0 and all_gone()


@pytest.mark.usefixtures("ctrl_c")
@needs_fork
@pytest.mark.parametrize("by", ["SIGINT", "SIGKILL"])
def test_nothing_survives_the_caller_either(by, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [*PYTHON, "-c", LEAVES + "open('ready', 'w'); " + ENDS["goes on"]]
    code = f"import runpy; runpy.run_path({process.__file__!r})['run']({command}, None, 60, (10, 10))"
    caller = subprocess.Popen([*PYTHON, "-c", code], stderr=subprocess.DEVNULL)
    while not Path("ready").exists() and caller.poll() is None:
        time.sleep(0.01)
    caller.send_signal(getattr(signal, by))
    assert caller.wait(5) != 0 and all_gone()


@needs_fork
def test_a_supervisor_that_is_killed_takes_the_rest_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = LEAVES.replace('sys.platform == "linux"', "False") + "os.kill(os.getppid(), 9); time.sleep(60)"
    start = time.monotonic()
    assert process.run([*PYTHON, "-c", script], None, 1.5, (10, 10)) == (None, b"", b"")
    assert time.monotonic() - start < 5.0 and all_gone()


def test_a_flood_is_read_and_dropped():
    flood = "import os\nwhile True:\n    os.write(1, b'x' * 65536), os.write(2, b'y' * 65536)"
    start = time.monotonic()
    result, peak = traced(lambda: process.run([*PYTHON, "-c", flood], None, 1.0, (1000, 100000)))
    assert result == (None, b"x" * 1000, b"y" * 100000)
    assert peak < 2 << 20 and time.monotonic() - start < 4.0


def test_what_is_written_and_how_it_ended_come_back():
    script = "import sys; print(sys.stdin.read(), end='1'); sys.stderr.write('2'); sys.exit(200)"
    assert process.run([*PYTHON, "-c", script], None, 20, (10, 10)) == ("exit code 200", b"1", b"2")

"""The process of a learner's file ends with all that it started, however it or its caller ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npgpt.study.exercises.exercise import read_exercise
from npgpt.study.judge.child import run_child
from tests.helpers.runs import refusing

NO_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
pytestmark = [pytest.mark.slow, NO_FORK]
LEAVES = """# npgpt exercise: linear, level 3
import os, time
child = os.fork()
if child == 0:
    time.sleep(60)
open("pids", "w").write(f"{os.getpid()} {child}")
open("ready", "w")
"""


def all_gone():
    """Whether the processes whose ids were written have ended, perhaps a moment later."""
    pids, end = Path("pids").read_text().split(), time.monotonic() + 5.0
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return len(pids) == 2 and not any(map(alive, pids))


def alive(pid):
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(int(pid), 0)
        return not Path("/proc/self").exists() or ") Z" not in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("os._exit(200)", "exit code 200"),
        ("while True: pass", "endless loop"),
        ("os.closerange(0, 64); time.sleep(60)", "endless loop"),
    ],
)
def test_what_a_file_leaves_behind_is_ended(end, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(LEAVES + end)
    start = time.monotonic()
    with refusing(says):
        run_child(read_exercise("mine.py"), 3.0)
    assert time.monotonic() - start < 10.0 and all_gone()


@pytest.mark.usefixtures("ctrl_c")
def test_the_process_does_not_survive_ctrl_c_either(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(LEAVES + "time.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-m", "npgpt", "exercise", "check", "mine.py"],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as caller:
        while not Path("ready").exists() and caller.poll() is None:
            time.sleep(0.01)
        caller.send_signal(signal.SIGINT)
        assert caller.wait(5) == 130 and caller.stderr.read() == b"interrupted\n" and all_gone()

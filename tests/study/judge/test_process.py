"""The process of a learner's file ends with its group, however it or its caller ends; its output has a limit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npgpt.errors import UserError
from npgpt.study.exercises.exercise import read_exercise
from npgpt.study.judge.child import OUTPUT, run, run_child

pytestmark = pytest.mark.slow           # starts many processes, and waits for them
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
PYTHON = [sys.executable, "-I", "-S"]
# Both processes write their ids into a file; the first one waits for the other.
LEAVES = """
import os, time
def note():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
note()
if os.fork() == 0:
    note(); time.sleep(60)
while open("pids").read().count("\\n") < 2:
    time.sleep(0.01)
"""
ENDS = {"ends": "os._exit(3)", "is killed": "os.kill(os.getpid(), 9)", "goes on": "time.sleep(60)",
        "has closed its files": "os.closerange(0, 64); time.sleep(60)"}


def all_gone():
    """Whether the processes that wrote their ids have ended, perhaps a moment later."""
    pids = [int(line) for line in Path("pids").read_text().split()]
    assert pids
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
    assert run([*PYTHON, "-c", LEAVES + ENDS[end]], None, seconds) == (how, b"", b"")
    assert time.monotonic() - start < 5.0 and all_gone()


@pytest.mark.usefixtures("ctrl_c")
@needs_fork
@pytest.mark.parametrize("by", ["SIGINT", pytest.param("SIGKILL", marks=pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux ends a process with its parent"))])
def test_the_process_does_not_survive_the_caller_either(by, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("# npgpt exercise: linear, level 3\nimport os, time\n"
                               "open('pids', 'w').write(str(os.getpid()))\nopen('ready', 'w')\ntime.sleep(60)\n")
    code = ("from npgpt.study.exercises.exercise import read_exercise\nfrom npgpt.study.judge.child import run_child\n"
            "run_child(read_exercise('mine.py'), 60)")
    caller = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    while not Path("ready").exists() and caller.poll() is None:
        time.sleep(0.01)
    caller.send_signal(getattr(signal, by))
    assert caller.wait(5) != 0 and all_gone()


def test_a_flood_of_output_ends_at_the_limit_of_a_file(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("# npgpt exercise: linear, level 3\nimport os\nwhile True:\n    os.write(1, b'x' * 65536)\n")
    with pytest.raises(UserError, match=r"mine.py, line 4: OSError: .*File too large"):
        run_child(read_exercise(file), 60.0)
    assert len(capsys.readouterr().err) < 70000


def test_what_is_written_and_how_it_ended_come_back():
    script = "import sys; print(sys.stdin.read(), end='1'); sys.stderr.write('2' * 100000); sys.exit(200)"
    assert run([*PYTHON, "-c", script], None, 20) == ("exit code 200", b"1", b"2" * (OUTPUT + 1))

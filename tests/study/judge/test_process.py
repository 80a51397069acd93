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
from npgpt.study.judge.child import OUTPUT, SPARE, Child, run_child

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")]
LEAVES = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(60)
open("pids", "w").write(f"{os.getpid()} {child}")
"""


def all_gone():
    """Whether the processes whose ids were written have ended, perhaps a moment later."""
    pids, end = Path("pids").read_text().split(), time.monotonic() + 5.0
    while any(map(alive, map(int, pids))) and time.monotonic() < end:
        time.sleep(0.05)
    return pids != [] and not any(map(alive, map(int, pids)))


def alive(pid):
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize(("end", "result"), [
    ("print(sys.stdin.read(), end='1', flush=True); sys.stderr.write('2' * 100000); os._exit(200)",
     ("exit code 200", b"1", b"2" * (OUTPUT + 1))),
    ("os.kill(os.getpid(), 9)", ("signal 9", b"", b"")),
    ("time.sleep(60)", (None, b"", b"")),
    ("os.closerange(0, 64); time.sleep(60)", (None, b"", b"")),
])
def test_what_a_command_leaves_behind_is_ended(end, result, tmp_path, monkeypatch):
    """How it ended and what it wrote come back."""
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()
    assert Child("-I", "-S", "-c", LEAVES + end).run(b"", 60 if result[0] else 1.5) == result
    assert time.monotonic() - start < 5.0 and all_gone()


@pytest.mark.usefixtures("ctrl_c")
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


@pytest.fixture
def spare(tmp_path):
    """Keep a spare process. spare(body) -> the report on a backward of linear with this body."""
    def check(body, seconds=60.0):
        file = tmp_path / "mine.py"
        file.write_text(f"# npgpt exercise: linear, level 3\ndef linear_backward(dy, cache):\n    {body}\n")
        return run_child(read_exercise(file), seconds)

    SPARE.keep()
    yield check
    SPARE.future.result().run(b"", 60)
    SPARE.future = None


def test_each_request_has_a_process_of_its_own_that_was_started_before(spare, capsys):
    """It is as limited as any."""
    ids = []
    for _ in range(2):
        ids.append(SPARE.future.result().pid)
        report = spare("import os, resource, sys; print(os.getppid(), hasattr(os, 'ours'), [sys.stdin.read()], "
                       "resource.getrlimit(resource.RLIMIT_NPROC)); os.ours = True")
        assert report.faults and capsys.readouterr().err == f"{ids[-1]} False [''] (0, 0)\n" and not alive(ids[-1])
    assert len({*ids, SPARE.future.result().pid}) == 3


def test_a_spare_process_that_has_ended_or_loops_is_replaced(spare):
    ended = SPARE.future.result()
    ended.kill()
    ended.wait()
    assert spare("return dy").faults
    start = time.monotonic()
    with pytest.raises(UserError, match="endless loop"):
        spare("while True: pass", 1.0)
    assert time.monotonic() - start < 5.0 and spare("return dy").faults


@pytest.mark.parametrize("by", ["SIGTERM", "SIGKILL"])
def test_a_spare_process_ends_with_its_parent(by, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = ("import time\nfrom npgpt.study.judge.child import SPARE\nSPARE.keep()\n"
            "print(SPARE.future.result().pid, file=open('pids', 'w'), flush=True)\nprint()\ntime.sleep(60)")
    with subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as caller:
        caller.stdout.readline()
        caller.send_signal(getattr(signal, by))
    assert all_gone()

"""Rooms that can be left out: without one of them a model is trained, writes and is evaluated."""

import subprocess
import sys

import pytest

PROGRAM = """
import importlib.abc, sys

class Deleted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == room or name.startswith(room + ".") for room in sys.argv[1].split()):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Deleted())
from npgpt.cli.main import main

tiny = "--max-iters 2 --eval-iters 1 --n-layer 1 --n-embd 8 --n-head 1 --block-size 8"
assert main(["train", "--corpus", "text", *tiny.split()]) == 0
assert main(["sample", "--max-new-tokens", "5"]) == 0
assert main(["eval"]) == 0
assert not [name for name in sys.modules if any(name.startswith(room) for room in sys.argv[1].split())]
sys.exit(main(sys.argv[2].split()))
"""


@pytest.mark.parametrize(("rooms", "command", "says"), [
    ("npgpt.engine.xla", "eval --kernels xla", "No module named 'npgpt.engine.xla'"),
    ("npgpt.engine.loops", "eval --kernels numba", "No module named 'npgpt.engine.loops'"),
    ("npgpt.study", "learn", "No module named 'npgpt.study'")])
def test_a_room_can_be_left_out(rooms, command, says, tmp_path):
    """A command that needs the room says so in one line."""
    (tmp_path / "text").write_text("to be, or not to be. " * 50)
    found = subprocess.run([sys.executable, "-c", PROGRAM, rooms, command], cwd=tmp_path, capture_output=True,
                           text=True)
    assert found.returncode == (2 if says else 0) and "Traceback" not in found.stderr, found.stderr
    assert not says or says in found.stderr.splitlines()[-1]

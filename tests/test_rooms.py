"""Rooms and libraries that can be left out: without them a model trains, writes, is evaluated."""

import json
import re
import subprocess
import sys

PROGRAM = """
import importlib.abc, json, sys

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
rooms = tuple(sys.argv[1].split())
assert not [name for name in sys.modules if name.startswith(rooms)]
for command in json.loads(sys.argv[2]):
    assert main(command.split()) == 2, command
"""


LEFT_OUT = {
    "npgpt.engine.xla": "eval --kernels xla",
    "npgpt.engine.loops": "eval --kernels numba",
    "npgpt.study": "learn",
}


def test_rooms_can_be_left_out(tmp_path):
    """A command that needs a room says so in one line."""
    (tmp_path / "text").write_text("to be, or not to be. " * 50)
    rooms, commands = " ".join(LEFT_OUT), json.dumps([*LEFT_OUT.values()])
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, rooms, commands],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0 and "Traceback" not in found.stderr, found.stderr
    for line, room in zip(found.stderr.splitlines()[-3:], LEFT_OUT, strict=True):
        assert f"No module named '{room}'" in line


CORE = """
import importlib.machinery, json, sys

KNOWN = {*sys.stdlib_module_names, "npgpt", "numpy", "safetensors", "threadpoolctl", "tqdm"}

class Core(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return super().find_spec(name, path, target) if name.partition(".")[0] in KNOWN else None

sys.meta_path = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, Core]
import numpy as np
from npgpt import Trainer, TrainOptions, load
from npgpt.cli.main import main

tiny = "--max-iters 2 --eval-iters 1 --n-layer 1 --n-embd 8 --n-head 1 --block-size 8"
for command in ("train --corpus text --tokenizer char " + tiny, "train --resume --max-iters 3",
                "sample --max-new-tokens 5", "eval", "score --text be", "info",
                "export --out exported", "data prepare text --tokenizer byte --out ids",
                "gradcheck layernorm", "exercise layernorm", "sample tiny --max-new-tokens 5"):
    assert main(command.split()) == 0, command
model, tokenizer = load("exported")
Trainer(model, *2 * [tokenizer.encode("to be, or not" * 9)], TrainOptions(max_iters=2)).run()
assert tokenizer.decode(model.generate(tokenizer.encode("to be")[None], 3)[0])[:5] == "to be"
print("the core works", file=sys.stderr)
for command in json.loads(sys.argv[1]):
    assert main(command.split()) == 2, command
"""

LACKING = {
    "sample gpt2": "pip install huggingface-hub",
    "sample someones/model": "no folder someones/model here.*pip install huggingface-hub",
    "data prepare text --tokenizer gpt2 --out y": "pip install tiktoken",
    "train --corpus text --out-dir y --tokenizer gpt2": "pip install tiktoken",
    "data prepare text --tokenizer hf:some.json --out y": r"npgpt\[hf\]",
    "train --corpus text --out-dir y --activation gelu": r"npgpt\[gelu\]",
    "plot out": r"npgpt\[plot\]",
    "study": r"npgpt\[study\]",
    "sample --kernels xla": r"npgpt\[xla\]",
    "sample --kernels numba": r"npgpt\[fast\]",
    "sample --device gpu": r"npgpt\[cuda12\]",
}


def test_the_core_needs_four_libraries(tmp_path):
    """All of Python and NumPy, safetensors, threadpoolctl and tqdm; what needs more names it."""
    (tmp_path / "text").write_text("to be, or not to be. " * 50)
    (tmp_path / "some.json").write_text("{}")
    found = subprocess.run(
        [sys.executable, "-c", CORE, json.dumps([*LACKING])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    lines = found.stderr.partition("the core works\n")[2].splitlines()
    for line, says in zip(lines, LACKING.values(), strict=True):
        assert re.search(says, line), line
    assert not (tmp_path / "y").exists()

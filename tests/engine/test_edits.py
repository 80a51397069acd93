"""The line you study is the line that trains: each function of the lesson is edited, and each engine trains with it."""

import ast
import functools
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import npgpt
from npgpt import layers
from npgpt.engine import sources
from npgpt.engine.cpu import is_installed

ROOT = Path(npgpt.__file__).parent
IN_USE = "".join(path.read_text() for room in ("model", "engine") for path in (ROOT / room).rglob("*.py"))
FILES = {name: Path(getattr(layers, name).__code__.co_filename) for name in layers.__all__ if name.islower()
         and name in IN_USE}        # a new layer need not be in GPT-2
FILES |= {"adamw_update": ROOT / "engine" / "update.py"}
ENGINES = ["reference", "numpy", *["numba", "auto", "two ranks"] * (find_spec("numba") is not None),
           *["mkl"] * is_installed(), *["xla"] * (find_spec("jax") is not None)]
PROGRAM = """
import json, sys
import numpy as np
from npgpt import GPT, AdamW, GPTConfig
from tests.engine.distributed.world import ranks

config = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=16, **json.loads(sys.argv[1]))
idx, targets = np.random.default_rng(0).integers(0, 11, (2, 4, 8))

def last_loss(model):
    optimizer = AdamW(model.params, lr=0.02, engine=model.engine)
    for _ in range(4):
        loss, _ = optimizer.train_step([(idx, targets)], [None], targets.size, max_norm=1.0)
    return float(loss)

for engine in sys.argv[2:]:
    if engine == "two ranks":
        with ranks(2, config, "float32") as model:
            loss = last_loss(model)
    else:
        loss = last_loss(GPT(config, threads=2, kernels=engine))
    print(json.dumps([engine, loss]), flush=True)
"""


@functools.cache
def trained(folder, fields, engines):
    """Return the last loss of each engine, by the package in a folder, and what was written to standard error."""
    variables = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT.parent}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, fields, *engines], cwd=folder, env=variables,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines())), done.stderr


def fields_of(name):
    """Return the fields of a config, as JSON, whose model calls a function."""
    return '{"lora_rank": 2}' if name.startswith("lora") else '{"activation": "gelu"}' if "exact" in name else "{}"


def edited(tree, name):
    """Multiply the first result of a function by 0.9, and add something: Adam does not see the scale of a gradient.

    What is added to a sum over the batch is such a sum, too: an engine adds up the parts of a batch.
    """
    more = "0.1 * dx.sum(axis=(0, 1))" if name == "embedding_backward" else "0.001"
    function = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name)
    *_, last = function.body
    if name == "adamw_update":
        function.body[-1:] = [*ast.parse("p *= 0.9\np += 0.001").body, last]
    elif isinstance(last.value, ast.Tuple):
        last.value.elts[0] = ast.parse(f"{ast.unparse(last.value.elts[0])} * 0.9 + {more}").body[0].value
    else:
        last.value = ast.parse(f"{ast.unparse(last.value)} * 0.9 + {more}").body[0].value
    return ast.unparse(tree)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "layernorm_backward" else pytest.mark.slow)
                                  for name in FILES])
def test_every_engine_trains_with_an_edited_line(name, tmp_path):
    before, _ = trained(ROOT.parent, fields_of(name), ("reference",))
    shutil.copytree(ROOT, tmp_path / "npgpt", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "npgpt" / FILES[name].relative_to(ROOT)
    file.write_text(edited(ast.parse(file.read_text()), name))
    losses, told = trained(tmp_path, fields_of(name), tuple(ENGINES))
    assert losses == pytest.approx(dict.fromkeys(ENGINES, losses["reference"]), abs=2e-4)
    assert abs(losses["reference"] - before["reference"]) > 1e-3
    replaced = name in sources.TESTED and name != "linear_backward"         # that only in a model with LoRA
    assert told.count(f"npgpt: {name} was edited") == replaced


def test_the_lesson_has_the_code_that_its_replacements_were_tested_with():
    """After a change on purpose, when the tests of engine/ have passed: copy what this prints to engine/sources.py."""
    found = {name: sources.digest(getattr(layers, name).__code__) for name in sources.TESTED}
    assert found == sources.TESTED, f"TESTED = {found}"

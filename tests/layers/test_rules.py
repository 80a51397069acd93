"""The rules of the lesson: plain functions of NumPy, in pairs, each file complete by itself."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npgpt import layers
from npgpt.model import transformer
from npgpt.study.gradcheck import basics

FILES = sorted(path for path in Path(layers.__file__).parent.glob("*.py") if path.name != "__init__.py")
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def imported(tree):
    """The modules that the statements of a tree import, with their full names."""
    return {name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])}


@EACH_FILE
def test_imports_numpy_and_in_a_function_scipy(path):
    tree = ast.parse(path.read_text())
    outside = {name for node in tree.body if not isinstance(node, ast.FunctionDef) for name in imported(node)}
    assert outside <= {"numpy", "math"}
    assert imported(tree) - outside <= {"scipy.special"}


@EACH_FILE
def test_each_forward_is_followed_by_its_backward_and_neither_has_a_hook(path):
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert functions
    for forward, backward in zip(functions[::2], functions[1::2], strict=True):
        assert forward.name.endswith("_forward") and backward.name == forward.name.replace("forward", "backward")
        given, upstream = ([each.arg for each in function.args.args] for function in (forward, backward))
        assert len(upstream) == 2 and upstream[0].startswith("d")       # dy and the cache: no array to write to
        assert not set(given) & {"out", *(f"d{name}" for name in given)}
        for function in (forward, backward):
            arguments = function.args
            assert not (function.decorator_list or arguments.vararg or arguments.kwonlyargs or arguments.kwarg)


@pytest.mark.parametrize("path", [*FILES, Path(transformer.__file__), Path(basics.__file__)],
                         ids=lambda path: path.name)
def test_a_backward_quotes_lines_of_its_forward(path):
    """Each comment on a line of its own is a line of the forward, or begins with one and goes on in words."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    lines, quoted = path.read_text().split("\n"), 0
    for backward in functions:
        if backward.name.endswith("_backward"):
            forward = next(each for each in functions if each.name == backward.name.replace("backward", "forward"))
            code = {line.partition("  # ")[0].strip() for line in lines[forward.lineno:forward.end_lineno]} - {""}
            for line in lines[backward.lineno:backward.end_lineno]:
                if line.strip().startswith("# "):
                    quote = line.strip(" #")
                    assert any(quote == each or quote.startswith((f"{each}, ", f"{each}: ")) for each in code), quote
                    quoted += 1
    assert quoted


STANDALONE = """
import importlib.util, sys
import numpy as np

class NumPyOnly:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {"numpy", *sys.stdlib_module_names}:
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, NumPyOnly())
found = {}
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("copied_" + path[:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found |= {name: value for name, value in vars(module).items() if hasattr(value, "__code__")}
x, w, heads = np.ones((2, 3, 4)), np.ones((4, 4)), np.ones((2, 2, 3, 4))
arguments = {"linear": (x, w), "head": (x, w), "layernorm": (x, w[0], w[0]), "gelu_tanh": (x,), "dropout": (x, x),
             "embedding": (np.ones((2, 3), int), w, w), "attention": (heads, heads, heads, 0.5),
             "cross_entropy": (x, np.ones((2, 3), int)), "lora": (x, w, w[0], w, w), "gelu_exact": (x,)}
assert {name.rpartition("_")[0] for name in found} == set(arguments), found
for name, given in arguments.items():
    if name == "gelu_exact":        # the last one: SciPy has the error function
        sys.meta_path.pop(0)
    y, cache = found[name + "_forward"](*given)
    found[name + "_backward"](np.ones_like(y), cache)
print(sorted(name for name in sys.modules if name.startswith("npgpt")))
"""


def test_each_file_runs_alone_with_nothing_but_numpy(tmp_path):
    for path in FILES:
        shutil.copy(path, tmp_path)
    child = subprocess.run([sys.executable, "-I", "-c", STANDALONE, *(path.name for path in FILES)], cwd=tmp_path,
                           capture_output=True, text=True)
    assert child.stdout == "[]\n", child.stderr

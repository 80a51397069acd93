"""The rules of the lesson: plain functions of NumPy, in pairs, each file complete by itself."""

import ast
from pathlib import Path

import pytest

from npgpt import layers
from npgpt.model import transformer
from npgpt.study.lessons import basics

FILES = sorted(
    path for path in Path(layers.__file__).parent.glob("*.py") if path.name != "__init__.py"
)
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


@EACH_FILE
def test_imports_numpy_and_in_a_function_scipy(path):
    for line in path.read_text().splitlines():
        if line.strip().startswith(("import ", "from ")):
            assert line in ("import numpy as np", "import math") or line.startswith(
                "    from scipy.special import "
            )


def functions_of(path):
    tree = ast.parse(path.read_text())
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize(
    "path", [*FILES, Path(transformer.__file__), Path(basics.__file__)], ids=lambda path: path.name
)
def test_a_backward_quotes_lines_of_its_forward(path):
    """Each comment on a line of its own quotes a line of the forward; words may follow it."""
    lines, quoted = path.read_text().split("\n"), 0
    bodies = {each.name: lines[each.lineno : each.end_lineno] for each in functions_of(path)}
    for name, body in bodies.items():
        if name.endswith("_backward"):
            forward = bodies[name.replace("backward", "forward")]
            code = {line.partition("  # ")[0].strip() for line in forward}
            for line in body:
                if line.strip().startswith("# "):
                    quote = line.strip(" #")
                    quotes = {quote, quote.partition(", ")[0], quote.partition(": ")[0]}
                    assert code & quotes or any(
                        quote.startswith(f"{each}, ") for each in code - {""}
                    ), quote
                    quoted += 1
    assert quoted

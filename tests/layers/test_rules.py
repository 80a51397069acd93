"""The rules of the lesson: plain functions of NumPy, in pairs, each file complete by itself."""

import ast
from pathlib import Path

import pytest

from npgpt import layers
from npgpt.model import transformer
from npgpt.study.lessons import basics

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
    functions = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name != "causal_mask"
    ]        # a constant, without a gradient
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
    """Each comment on a line of its own quotes a line of the forward; words may follow it."""
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

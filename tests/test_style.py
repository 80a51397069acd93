"""How the code reads: what ruff has no rule for."""

import ast
import sys
from pathlib import Path

import pytest

from npgpt.cli.main import main
from npgpt.layers import layernorm_backward

ROOT = Path(__file__).resolve().parents[1]
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def nested(tree):
    """Return the lines of comprehensions that contain another one."""
    lines = []
    for outer in ast.walk(tree):
        if isinstance(outer, COMPREHENSIONS):
            inside = [node for node in ast.walk(outer) if isinstance(node, COMPREHENSIONS)]
            lines += [outer.lineno] * (len(inside) > 1)
    return lines


@pytest.mark.parametrize("folder", ["npgpt", "tests", "tools"])
def test_no_comprehension_contains_another(folder):
    files = (ROOT / folder).rglob("*.py")
    found = {str(file.relative_to(ROOT)): nested(ast.parse(file.read_text())) for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_nine_frames_lead_from_the_command_to_a_backward(text_file, tmp_path, monkeypatch):
    frames = []

    def count(frame, event, _):
        if event == "call" and frame.f_code is layernorm_backward.__code__ and not frames:
            while frame.f_code is not main.__code__:
                frames.append(frame.f_code.co_name)
                frame = frame.f_back

    monkeypatch.chdir(tmp_path)
    tiny = "--max-iters 1 --eval-iters 1 --n-layer 1 --n-embd 8 --n-head 1 --block-size 8"
    sys.setprofile(count)
    try:
        main(["train", "--kernels", "reference", "--corpus", str(text_file), *tiny.split()])
    finally:
        sys.setprofile(None)
    assert len(frames) + 1 <= 9, frames

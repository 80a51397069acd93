"""The stored mistakes: they are current, really wrong, and what the judge says of them."""

import ast
import dataclasses
import functools
import json
import re
import sys
from pathlib import Path

import pytest

from npgpt.layers import gelu_exact_backward
from npgpt.study.lessons import basics
from npgpt.study.lessons.table import chosen_lessons, lesson_named
from npgpt.study.page.edits import typed_statements
from npgpt.study.page.page import studied_layer
from npgpt.study.page.planted import FILE

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import plant  # noqa: E402

LESSONS = {each.name: each for each in chosen_lessons("all")}


@functools.cache
def data_of(name):
    """Return what the page's script gets of a lesson."""
    return studied_layer(LESSONS[name])["data"]


def test_it_is_current_and_small():
    """Nearly every line has three wrong texts: all 144 lines that run in the plain case."""
    stale = [name for name in LESSONS if not data_of(name)["planted"]]
    assert not stale, f"the code of these lessons has changed: run python tools/plant.py {' '.join(stale)}"
    text = FILE.read_text(encoding="utf-8")
    assert len(text.encode()) <= 150_000 and list(json.loads(text)) == sorted(LESSONS)
    assert not re.search(r"seed|/tmp|\.py\b|line None|or None", text)
    typed = {(name, line) for name, lesson in LESSONS.items() for line in typed_statements(lesson)}
    found = {(name, line): texts for name in LESSONS for line, texts in data_of(name)["planted"].items()}
    assert found.keys() <= typed and len(found) == len(typed) - 1
    for (name, line), texts in found.items():
        right = ast.unparse(ast.parse(typed_statements(LESSONS[name])[line]["text"]))
        assert len({right, *(ast.unparse(ast.parse(each["text"])) for each in texts)}) == 4, (name, line)
        assert all(each["answer"]["verdict"] == "wrong" and each["answer"]["text"] for each in texts)
        assert not any(each["answer"]["arrays"] for each in texts[1:])


@pytest.mark.slow
@pytest.mark.parametrize(("i", "name"), [*enumerate(LESSONS)])
def test_the_judge_still_says_so(i, name):
    lesson, places = LESSONS[name], plant.places_of(LESSONS[name])
    texts = json.loads(FILE.read_text(encoding="utf-8"))[name]["lines"]
    line = list(texts)[(i + 2) % len(texts)]
    for is_first, each in zip((True, False, False), texts[line], strict=True):
        answer = plant.answer(lesson, line, each["text"])
        assert plant.stored(answer, line, places, is_first) == each["answer"], each["text"]


def test_other_code_has_none(tmp_path):
    other = dataclasses.replace(LESSONS["gelu_tanh"], backward=gelu_exact_backward)
    assert studied_layer(other)["data"]["planted"] == {}
    text = Path(basics.__file__).read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(f"{text}\nLESSON = {{'x': 'N C', 'gain': 'N 1', 'bias': 'C'}}\n")
    own = lesson_named(f"{tmp_path / 'mine.py'}:broadcast")
    assert own.name == "broadcast" and studied_layer(own)["data"]["planted"] == {}

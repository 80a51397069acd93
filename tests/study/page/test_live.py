"""The answers to the live page: checks of edited lines."""

import json
import threading

import pytest

from npgpt import load
from npgpt.study.gradcheck.source import read_source
from npgpt.study.page import live
from npgpt.study.page.live import Live
from tests.study.page.conftest import LESSONS, VIEWS

RIGHT = "dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)"
# view: a piece of the edited line | the new text | verdict | the first wrong line, after this one
# | what is said
EDITS = rf"""
layernorm: dx = | {RIGHT}     # of my own\nprint('here') | right | - | "text": "right | here\n
layernorm: dx = | half = 0.5 * rstd\ndx = half * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat) | \
wrong | 0 | line is $LINE | "name": "half" | "name": "dx" | "verdict": "WRONG" | 0.5
gpt: head_backward | dx, dwte_head = ops.head_backward(0.5 * dlogits, head) | wrong | 0 | \
"b$LINE": [{{"name": "dx" | {{"name": "dwte_head"
layernorm: dx = | pass\ndx = ) | error | - | line $LINE:
layernorm: dx = | dx = nothing | wrong | 0 | NameError: name 'nothing' is not defined
layernorm: dx = | | wrong | 1 | dx
layernorm: dx = | dx = 'é\ud800' | wrong | 0 | dx is of type str
layernorm_long_way: dvar = | dvar = -0.5 * drstd * rstd**3 | right | - |
layernorm_long_way: dvar = | dvar = drstd * rstd | wrong | 0 |
"""


@pytest.fixture
def judged():
    """judged(view, line, text) -> the answer on an edited line, through JSON."""
    page = Live(LESSONS.values(), *load("tiny"), "a model")

    def judge(view, line, text):
        answer = page.judge_edit({"layer": view, "edits": {f"b{line}": text}})
        return json.loads(json.dumps(answer, allow_nan=False))

    judge.page = page
    return judge


def line_with(view, code):
    """The number of the line of a view's backward that has this code."""
    return next(x.first for x in read_source(VIEWS[view].backward).statements if code in x.text)


@pytest.mark.parametrize("row", EDITS.replace("\\\n", "").strip().split("\n"))
def test_an_edited_line_is_judged(judged, capfd, row):
    place, text, verdict, after, *words = map(str.strip, row.split("|"))
    view, code = place.split(": ")
    line = line_with(view, code)
    escapes = {r"\n": "\n", r"\ud800": "\ud800"}
    for escape, character in escapes.items():
        text = text.replace(escape, character)
    answer = judged(view, line, text)
    assert answer["verdict"] == verdict, answer["text"]
    assert answer["first"] == (None if after == "-" else f"b{line + int(after)}")
    said = json.dumps(answer)
    for each in words:
        assert each.replace("$LINE", str(line)) in said
    assert "/tmp" not in answer["text"] and "Traceback" not in answer["text"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_one_check_at_a_time(judged, monkeypatch):
    """A second one waits until the first has ended. Code that loops is ended."""
    line = line_with("layernorm", "dx =")
    monkeypatch.setattr(live, "SECONDS", 1.0)
    answer = judged("layernorm", line, "while True: pass")
    assert answer["verdict"] == "error" and "endless loop" in answer["text"]
    assert "--time-limit" not in answer["text"]
    monkeypatch.setattr(live, "SECONDS", 60.0)  # for a busy machine
    checking = judged.page.checking
    checking.acquire()
    threading.Timer(0.3, checking.release).start()
    assert judged("layernorm", line, RIGHT)["verdict"] == "right" and not checking.locked()

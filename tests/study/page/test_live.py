"""The answers to the live page: checks of edited lines, and texts."""

import ast
import json
import threading

import pytest

from npgpt import load
from npgpt.study.exercises.exercise import read_exercise, statements
from npgpt.study.gradcheck.source import backward_tree, read_source
from npgpt.study.lessons.table import chosen_lessons
from npgpt.study.page import live
from npgpt.study.page.edits import edited, view_name, views_of
from npgpt.study.page.live import Live

LESSONS = {each.name: each for each in chosen_lessons("all")}
VIEWS = {view_name(view): view for each in LESSONS.values() for view in views_of(each)}
NORM = LESSONS["layernorm"]
RIGHT = "dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)"
DX = next(each.first for each in read_source(NORM.backward).statements if each.text.startswith("dx = "))


@pytest.fixture
def page():
    return Live(LESSONS.values(), *load("tiny"), "a model")


@pytest.fixture
def check(page):
    """check(text) -> the answer on an edited line of LayerNorm, through JSON."""
    return lambda text: json.loads(json.dumps(
        page.judge_edit({"layer": "layernorm", "edits": {f"b{DX}": text}}), allow_nan=False))


def test_a_right_edit(check):
    answer = check(RIGHT + "     # of my own\nprint('here')")
    assert answer["verdict"] == "right" and answer["text"].startswith("right") and answer["first"] is None
    assert {each["name"]: (each["line"], each["verdict"]) for each in answer["lines"]}["dx"] == (f"b{DX}", "ok")
    assert answer["output"] == "here\n"


def test_a_wrong_edit_of_several_lines(check):
    answer = check("half = 0.5 * rstd\ndx = half * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)")
    assert (answer["verdict"], answer["first"]) == ("wrong", f"b{DX}") and f"line is {DX}" in answer["text"]
    wrong = [each for each in answer["lines"] if each["verdict"] == "WRONG"]
    assert "dx" in {each["name"] for each in wrong} and {each["line"] for each in wrong} == {
        f"b{DX}"
    }
    assert "0.5" in str(wrong)
    assert [each["name"] for each in answer["arrays"][f"b{DX}"]] == ["half", "dx"]


def test_an_edited_line_shows_its_own_arrays(page):
    """gpt_backward assigns dx four times."""
    line = next(each.first for each in read_source(LESSONS["gpt"].backward).statements if "head_backward" in each.text)
    edits = {f"b{line}": "dx, dwte_head = ops.head_backward(0.5 * dlogits, head)"}
    half = page.judge_edit({"layer": "gpt", "edits": edits})
    assert {each["name"] for each in half["arrays"][f"b{line}"]} == {"dx", "dwte_head"}
    assert half["first"] == f"b{line}"


@pytest.mark.parametrize("text, first, says", [
    ("pass\ndx = )", None, f"line {DX}: "),
    ("dx = nothing", DX, "NameError: name 'nothing' is not defined"),
    ("", DX + 1, "dx"),                     # the statement is deleted
    ("dx = 'é\ud800'", None, "dx is of type str"),
])
def test_code_that_does_not_run_is_reported_in_one_line(check, capfd, text, first, says):
    answer = check(text)
    assert answer["verdict"] in ("error", "wrong") and says in answer["text"], answer["text"]
    assert first is None or answer["first"] == f"b{first}"
    assert "/tmp" not in answer["text"] and "Traceback" not in answer["text"] and capfd.readouterr() == ("", "")


def test_one_check_at_a_time(page, check, monkeypatch):
    """A second one waits until the first has ended. Code that loops is ended."""
    monkeypatch.setattr(live, "SECONDS", 1.0)
    answer = check("while True: pass")
    assert answer["verdict"] == "error" and "endless loop" in answer["text"] and "--time-limit" not in answer["text"]
    monkeypatch.setattr(live, "SECONDS", 60.0)      # for a busy machine
    page.checking.acquire()
    threading.Timer(0.3, page.checking.release).start()
    assert check(RIGHT)["verdict"] == "right" and not page.checking.locked()


def test_a_line_of_the_long_way(page):
    statements_ = read_source(NORM.long_way).statements
    line = next(each.first for each in statements_ if each.targets == ("dvar",))
    for text, verdict in (("dvar = -0.5 * drstd * rstd**3", "right"),
                          ("dvar = drstd * rstd", "wrong")):
        answer = page.judge_edit({"layer": "layernorm_long_way", "edits": {f"b{line}": text}})
        assert answer["verdict"] == verdict, answer["text"]
        assert answer["first"] == (f"b{line}" if verdict == "wrong" else None)


@pytest.mark.parametrize("name", VIEWS)
def test_edited_lines_are_in_their_places(name, tmp_path):
    """The package's own lines, put in their places, are its backward."""
    lesson, path = VIEWS[name], tmp_path / "file.py"
    source, own = read_source(lesson.backward), statements(backward_tree(lesson))
    lines = {source.first + each.lineno - 1: ast.unparse(each) for each in own}
    done, places = edited(lesson, lines, path)
    path.write_text(done)
    mine = read_exercise(path).statements
    assert [*map(ast.unparse, mine)] == [*map(ast.unparse, own)]
    assert [places[each.lineno] for each in mine] == [*lines]

"""The answers to the live page: checks of edited lines, moved numbers, texts, and the run that trains."""

import ast
import json
import threading

import numpy as np
import pytest

from npgpt import load
from npgpt.study.exercises.exercise import level_text, levels_of, read_exercise
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import backward_tree, read_source
from npgpt.study.lessons.table import chosen_lessons
from npgpt.study.page import live, tiny_run
from npgpt.study.page.edits import asked_lines, edited
from npgpt.study.page.live import Live
from npgpt.study.page.page import studied_layer
from npgpt.study.page.steps import known_truth
from tests.study.judge.solutions import solved

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")

LESSONS = {each.name: each for each in chosen_lessons("all")}
NORM = LESSONS["layernorm"]
RIGHT = "dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)"
DX = next(each.first for each in read_source(NORM.backward).statements if each.text.startswith("dx = "))


@pytest.fixture
def page(tmp_path):
    return Live(tmp_path / "mine", *load("tiny"), "a model")


@pytest.fixture
def check(page):
    """check(text, level, shown) -> the answer on an edited line of LayerNorm, through JSON."""
    return lambda text, level=0, shown=(): json.loads(json.dumps(page.judge_edit(
        {"layer": "layernorm", "level": level, "edits": {f"b{DX}": text}, "shown": [*shown]}), allow_nan=False))


def test_a_right_edit(page, check):
    answer = check(RIGHT + "     # of my own\nprint('here')")
    assert answer["verdict"] == "right" and answer["text"].startswith("right") and answer["first"] is None
    assert {each["name"]: (each["line"], each["verdict"]) for each in answer["lines"]}["dx"] == (f"b{DX}", "ok")
    assert answer["output"] == "here\n" and answer["solved"] is None
    assert not page.folder.exists()         # free editing solves nothing


def test_a_wrong_edit_shows_each_name(check):
    """Also drstd, which is in no line of the package's backward: its true values were measured."""
    answer = check(f"drstd = (dxhat * xhat / rstd).sum(axis=-1, keepdims=True)\nshape = drstd[0]\nd{RIGHT}\ndx = -ddx")
    assert (answer["verdict"], answer["first"]) == ("wrong", f"b{DX}") and f"line is {DX}" in answer["text"]
    [wrong] = [each for each in answer["lines"] if each["verdict"] == "WRONG" and each["name"] == "dx"]
    assert wrong["line"] == f"b{DX}" and wrong["said"]
    shown = {each["name"]: [each[which] and each[which]["values"] for which in ("given", "true")]
             for each in answer["arrays"][f"b{DX}"]}
    assert list(shown) == ["drstd", "dx", "shape", "ddx"] and shown["shape"][1] is None
    assert np.allclose(shown["dx"][1], truth(NORM).inputs["x"].ravel(), rtol=1e-3, atol=1e-3)
    for name in ("dx", "drstd"):
        assert np.allclose(*shown[name], rtol=1e-3, atol=1e-3) == (name == "drstd")


def test_an_edited_line_shows_the_true_array_of_that_line(page):
    """gpt_backward assigns dx five times. A line that is named is one of the page's, also of an `if`."""
    line = next(each.first for each in read_source(LESSONS["gpt"].backward).statements if "head_backward" in each.text)
    half, swapped = (page.judge_edit({"layer": "gpt", "level": 0, "shown": [], "edits": edits}) for edits in (
        {f"b{line}": "dx, dhead_weight, dhead_bias = ops.head_backward(0.5 * dlogits, head)"},
        {f"b{line - 3}": "embedding, ln_f, drop, blocks, ln_e, head, config = cache"}))
    for each in half["arrays"][f"b{line}"]:
        assert np.allclose(np.multiply(2.0, each["given"]["values"]), each["true"]["values"], rtol=1e-3, atol=1e-9)
    assert swapped["verdict"] == "wrong" and "None" not in str([each["said"] for each in swapped["lines"]])


@pytest.mark.parametrize("text, first, says", [
    ("pass\ndx = )", DX, f"line {DX}: "),
    ("dx = nothing", DX, "NameError: name 'nothing' is not defined"),
    ("import os; os._exit(3)", None, "ended its process"),
    ("", DX + 1, "dx"),                     # the statement is deleted
    ("return 1", None, "returned"),
    ("dx = 'é\ud800'", None, "dx is a str"),
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


def test_a_level_that_is_solved_is_solved_for_learn(page, check):
    answer = check("...", 1)
    assert answer["verdict"] == "unfinished" and str(DX) in answer["text"] and answer["solved"] is None
    assert (shown := check(RIGHT, 1, [f"b{DX}"]))["verdict"] == "right" and shown["solved"] is None
    assert check("dx = dxhat", 1)["solved"] is None and page.progress({}) == {"solved": []}
    assert check(RIGHT, 1)["solved"] == "layernorm level 1"
    assert page.progress({}) == {"solved": ["layernorm level 1"]}
    file = page.folder / "layernorm-level1.py"
    assert file.read_text() == solved(NORM, 1).replace("file.py", str(file)).split("    dx = ")[0] + f"    {RIGHT}\n" \
        "    return dx, dweight, dbias\n"
    file.write_text(file.read_text() + "# mine\n")
    assert check(RIGHT, 1)["solved"] and file.read_text().endswith("# mine\n")         # it stays


@pytest.mark.parametrize("name", LESSONS)
def test_each_level_of_each_layer_is_the_exercise(name, tmp_path):
    """The file has the same `...` as that of learn, and the package's own lines in them solve it."""
    lesson, path = LESSONS[name], tmp_path / "file.py"
    source = read_source(lesson.backward)
    for level in (int(what[-1]) for what in levels_of(name) if what != "long way"):
        lines = asked_lines(lesson, level)
        begun, _ = edited(lesson, level, {}, path)
        assert (begun == level_text(lesson, level, path) or level == 3) and begun.count("= ...") >= len(lines) - 1
        done, places = edited(lesson, level, {line: source.statement_at(line).text for line in lines}, path)
        path.write_text(done)
        assert ast.unparse(read_exercise(path).function.body[1:]) == ast.unparse(backward_tree(lesson).body[1:])
        for number, text in enumerate(done.split("\n"), 1):
            if places.get(number) in lines:
                assert text.strip().split("(")[0] in source.statement_at(places[number]).text


@pytest.mark.parametrize("name", LESSONS)
def test_a_number_that_moves(page, name):
    """The slope is that of the curve, and the arrays are those of the moved lesson; on the spot, those of the page."""
    lesson = LESSONS[name]
    for each, array in lesson.inputs.items():
        answer = page.move({"layer": name, "name": each, "index": [0] * array.ndim, "value": 100.0})
        json.dumps(answer, allow_nan=False)
        assert len(answer["curve"]) == 41 and answer["curve"][20] == [100.0, answer["loss"]]
    name, array = next(iter(lesson.inputs.items()))
    index = tuple(np.unravel_index(np.abs(known_truth(lesson.name).inputs[name]).argmax(), array.shape))
    value = float(array[index])
    here, low, high = (
        page.move({"layer": lesson.name, "name": name, "index": [*map(int, index)], "value": value + step})
        for step in (0.0, -1e-4, 1e-4))
    for way, moved in zip(studied_layer(lesson)["data"]["ways"], here["ways"], strict=True):
        assert moved == {name: way[name] for name in ("steps", "arrays", "parts")}
    assert here["slope"] == pytest.approx((high["loss"] - low["loss"]) / 2e-4, rel=1e-5)
    if lesson.name != "embedding":      # there a row that nobody reads changes nothing
        assert low["ways"][0]["arrays"] != high["ways"][0]["arrays"] or lesson.name == "dropout"


def test_the_tiny_run(page, monkeypatch):
    """It trains only what is asked for, once."""
    monkeypatch.setattr(tiny_run, "STEPS", 12)
    train = page.actions["/train"]
    first, again, last = (train({"since": step}) for step in (0, 2, 10))
    assert len(first["loss"]) == 5 and again["loss"][:3] == first["loss"][2:] and len(again["loss"]) == 5
    assert len(last["loss"]) == 2 and last["loss"][-1] < first["loss"][0] and train({"since": 12})["loss"] == []
    assert list(first["norms"]) == ["wte", "wpe", "h.0", "h.1", "ln_f"]
    assert all(len(norms) == 5 for norms in json.loads(json.dumps(first["norms"], allow_nan=False)).values())

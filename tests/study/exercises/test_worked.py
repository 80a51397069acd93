"""Worked examples: a line with numbers. What is shown is computed by the line that trains."""

import math
import re
from pathlib import Path

import pytest

from npgpt.study.exercises import worked as module
from npgpt.study.exercises.exercise import Step, levels_of, notes_of
from npgpt.study.exercises.terms import entries, written
from npgpt.study.exercises.worked import symbol, text_of, worked
from npgpt.study.lessons.table import LESSONS

STEPS = [
    Step(layer, what)
    for layer in LESSONS
    for what in levels_of(layer)
    if what in ("long way", "level 1")
]
# a line | what is shown, in order
SHOWN = """
linear dweight | dweight[0,2] = rows[0,0]·dy_rows[0,2] + rows[1,0]·dy_rows[1,2]\n | \n\
(3,4) = (3,2) @ (2,4): rows.T @ dy_rows, the only order that fits\n\
┌────────┐   ┌────┐   ┌────────┐\n│        │ = │    │ @ │        │\n│ | └────────┘   └────┘
linear dbias | dbias[1] = dy_rows[0,1] + dy_rows[1,1]\n | (4,) = dy_rows.sum(axis=0)
linear drows | dy_rows[0,0]·weight[2,0] + dy_rows[0,1]·weight[2,1] + … + dy_rows[0,3]·weight[2,3]
lora dlora_a | @ (2,3): rows.T @ dlow\n
embedding np.add.at | dwte[2,0] = dtoken[0,0,0] + dtoken[1,0,0]\n
layernorm mean_dxhat | mean_dxhat[0,1,0] = (dxhat[0,1,0] + dxhat[0,1,1] + dxhat[0,1,2]) / 3\n
layernorm dx | rstd[0,1,0]·(dxhat[0,1,0] - mean_dxhat[0,1,0] - xhat[0,1,0]·mean_dxhat_xhat[0,1,0])\n
gelu_tanh dinner | dtanh[0,1,2]·(1 - tanh[0,1,2]·tanh[0,1,2])\n
chain du | du[0,1] = dv[0,1]·cos(u[0,1])\n | ·cos(-0.33)\n
difference up | up[1,0] = f(x[1,0] + h)\n | = f(0.10 + 0.10)\n
dropout dx | dx[0,1,2] = dy[0,1,2]·mask[0,1,2]\n | (1,2,3) = (1,2,3) * (1,2,3)
mlp dhidden | (1,2,5) = gelu_backward((1,2,5), gelu)
block dx_mid | dx_mid[0,1,2] = dx_out[0,1,2] + dx_mid_normed[0,1,2]\n
"""


@pytest.fixture
def in_one_line(monkeypatch):
    monkeypatch.setattr(module, "WIDTH", 500)


@pytest.mark.usefixtures("in_one_line")
@pytest.mark.parametrize("row", re.split(r"\n(?=\w+ [\w.]+ \|)", SHOWN.strip()))
def test_what_is_shown(row):
    line, *parts = row.split(" | ")
    layer, key = line.split()
    text, at = "\n".join(worked(Step(layer, "level 3"), key)) + "\n", 0
    for part in parts:
        assert part in text[at:], text
        at = text.index(part, at)


@pytest.mark.usefixtures("in_one_line")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_numbers_make_the_result(step):
    """Nearly: they are rounded. Left out is a sum that is not shown whole; f is unknown."""
    names = {name: getattr(math, name) for name in ("exp", "log", "sqrt", "cos")}
    keys = [*notes_of(step.lesson)]
    seen = 0
    for key in keys:
        text = "\n".join(worked(step, key))
        if found := re.search(r"(?m)^ += (.+)\n +?= (-?[\d.]+)$", text):
            numbers, result = found.groups()
            if "…" in numbers or "f(" in numbers:
                continue
            made = eval(numbers.replace("·", "*").replace("^", "**"), names)
            assert made == pytest.approx(float(result), rel=0.011, abs=0.01), text
            seen += 1
        assert text or step.layer == "gpt" or key in ("dot", "true") or "mean_" in key
    assert seen or step.lesson.is_composite or step.layer in ("difference", "cross_entropy")


def test_long_sums_are_broken_below_their_beginning():
    first, second, *_ = worked(Step("layernorm", "level 1"), "mean_dxhat_xhat")
    assert first.endswith("dxhat[0,1,1]·xhat[0,1,1]") and len(first) < 80
    assert second == " " * 25 + "+ dxhat[0,1,2]·xhat[0,1,2]) / 3"


TERMS = """a - (b - c) | a - b - c | a·(b + c) | a / (b·c) | -(a + b) | (-a)·b | 1 - a·a
(a + b) / 2 | (a·b)^2 | a + b + … + a | a·(-0.5)""".replace("\n", " | ")


@pytest.mark.parametrize("text", TERMS.split(" | "))
def test_terms_of_a_sum_and_brackets(text):
    numbers = {"a": 2.0, "b": -3.0, "c": 5.0}
    code = text.replace("·", "*").replace("^", "**").replace("…", "c")
    term = eval(code, {name: entries(name, value) for name, value in numbers.items()})
    assert (written(term, symbol, 3), term.value) == (text, eval(code, numbers))


@pytest.mark.parametrize(
    "row",
    "-0.0016 -0.0016, -0.001 -0.001, -1e-12 0.00, 0.0949 0.095, 0.095 0.10, -1 -1.00".split(", "),
)
def test_two_digits(row):
    number, text = row.split()
    assert text_of(float(number)) == text


def test_ones_own_layer_has_one_or_none(tmp_path, monkeypatch):
    """Its shapes are its own; a line that cannot run on such numbers has none, and no error."""
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text("""
import numpy as np
LESSON = {"x": "2 3"}
def double_forward(x):
    y = 2.0 * x
    return y, x
def double_backward(dy, cache):
    dx = dy * 2.0
    return dx
def odd_forward(x):
    y = 2.0 * x
    return y, x
def odd_backward(dy, cache):
    dx = np.array([float(each) for each in dy.flat]).reshape(dy.shape) * 2.0
    return dx
""")
    shown = worked(Step("my.py:double", "level 3"), "dx")
    assert shown[0] == "dx[0,2] = dy[0,2]·2" and shown[-1] == "(2,3) = (2,3) * 2.0"
    assert worked(Step("my.py:odd", "level 3"), "dx") == []

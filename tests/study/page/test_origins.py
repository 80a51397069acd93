"""Where a number comes from: what the page says of each entry is what the line computes."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from npgpt.study.exercises.terms import entries
from npgpt.study.gradcheck.check import check_lesson
from npgpt.study.lessons.table import chosen_lessons, lesson_named
from npgpt.study.page.edits import view_name, views_of
from npgpt.study.page.origins import CHOICES, FIRST, first_lines, origin
from npgpt.study.page.steps import Steps, known_truth

VIEWS = {view_name(view): view for each in chosen_lessons("all") for view in views_of(each)}
OPERATIONS = {
    "+": lambda *terms: math.fsum(terms), "-": lambda a, b: a - b, "·": lambda a, b: a * b,
    "/": lambda a, b: a / b, "^": lambda a, b: a**b, "negative": lambda a: -a, "max": max,
    "abs": abs, "log1p": math.log1p, "erf": math.erf,
    "f": lesson_named("difference").constants["f"],
    **{name: getattr(math, name) for name in ("exp", "log", "sqrt", "sin", "cos", "tanh")},
}


def value_of(tree, slots):
    """The value of a tree, from the numbers of its slots."""
    if isinstance(tree, list):
        return OPERATIONS[tree[0]](*(value_of(each, slots) for each in tree[1:]))
    return float(tree) if isinstance(tree, str) else slots[tree]


def entries_of(found, shape):
    """Yield (index, tree, [(name, place), …]) of each entry, by what `origin` found."""
    for entry, index in enumerate(np.ndindex(*shape)):
        number = found.get("which", [0] * (entry + 1))[entry]
        slots = found["slots"][number]
        if isinstance(slots, dict):
            places = slots[entry]
        else:
            places = [(name, np.dot(steps, [1, *index])) for name, *steps in slots]
        yield index, found["trees"][number], [(found["names"][i], int(at)) for i, at in places]


def steps_of(lesson):
    known = known_truth(lesson.key)
    checks = check_lesson(lesson, known=known)
    return Steps(lesson, known, {each.variable: each.backward_line for each in checks})


@pytest.mark.parametrize("name", VIEWS)
def test_each_entry_has_the_terms_that_are_said(name):
    """From the rounded numbers of the page, with an evaluation of its own."""
    steps = steps_of(VIEWS[name])
    lines, seen = [], 0
    for step in steps.steps:
        read = {name: steps.arrays[i] for name, i in step["at"].items()}
        for name_, i in step["arrays"]:
            found, made = step["from"].get(name_), steps.arrays[i]
            if found is None:
                lines.append((step["line"], name_))
                continue
            values = np.reshape(np.array(made["values"], float), made["shape"])
            size = np.abs(values[np.isfinite(values)]).max(initial=0.1)
            if name_ == "slope":        # the difference of nearly equal numbers
                continue
            for index, tree, places in entries_of(found, made["shape"]):
                slots = [float(read[of]["values"][at]) for of, at in places]
                expected = pytest.approx(values[index], rel=5e-3, abs=5e-3 * size)
                assert value_of(tree, slots) == expected
                seen += 1
    assert seen or name in ("mlp", "gpt")
    texts = {f"{side}{each.first}": each.text for side, source in steps.sources.items()
             for each in source.statements}
    for line, name_ in lines:       # arguments, what a cache holds, calls of layers, whole numbers
        text = texts.get(line, "def")
        whole = all(float(each).is_integer() for each in next(
            steps.arrays[i]["values"] for step in steps.steps if step["line"] == line
            for other, i in step["arrays"] if other == name_) if each != "-inf")
        is_call = "_forward(" in text or "_backward(" in text or "config." in text
        assert text == "def" or text.endswith("= cache") or is_call or whole, (name_, text)


def test_the_embedding_adds_at_the_positions_of_a_token():
    lesson = lesson_named("embedding")
    steps, idx = steps_of(lesson), lesson.constants["idx"]
    [found] = [step["from"]["dwte"] for step in steps.steps if "dwte" in step["from"]]
    for (token, channel), _, places in entries_of(found, lesson.inputs["wte"].shape):
        expected = [position * 6 + channel for position in np.flatnonzero(idx == token)]
        assert places == [("dtoken", at) for at in expected]


def test_other_numbers_than_the_lines_are_not_shown():
    """A line that draws random numbers has others when it runs again."""
    x = np.arange(6.0).reshape(2, 3)
    terms = 2.0 * entries("x", x)
    assert origin(terms, 2.0 * x, {"x": (2, 3)})["names"] == ["x"]
    assert origin(terms, 2.0 * x + 1e-6, {"x": (2, 3)}) is None
    assert origin(terms, 2.0 * x, {"y": (2, 3)}) is origin(x, x, {"x": (2, 3)}) is None


def test_the_first_screen():
    found = first_lines()
    assert [*found] == [*FIRST] and {*CHOICES} < {*found}
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape) for name, shape in (
        ("x", (2, 3)), ("weight", (3, 2)), ("y", (2, 2)), ("dy", (2, 2)))}
    for code, line in found.items():
        expected = eval(code, dict(arrays))
        assert line["shape"] == np.shape(expected)
        for index, tree, places in entries_of(line["from"], line["shape"]):
            slots = [arrays[name].flat[at] for name, at in places]
            assert value_of(tree, slots) == pytest.approx(np.asarray(expected)[index], rel=1e-5)


OWN = """
import numpy as np
calls = []
def N_forward(x, shape):
    C = x * shape
    for i in range(2):
        C = (C
             + i * x)
    N = np.where(C > 0, C, 0.1 * C)
    np.multiply(N, 1.0, out=N)
    state = {}
    state["n"] = state.get("n", 0) + 1
    N = N * state["n"]
    calls.append(1)
    return (N ** 2).sum(axis=-1), (x, shape, C, N)
def N_backward(dy, cache):
    x, shape, C, N = cache
    dN = dy[..., None] * 2.0 * N
    dC = dN * np.where(C > 0, 1.0, 0.1)
    dx = np.zeros_like(x)
    for i in range(2):
        dx += i * dC
    dx += dC * shape
    return dx, (dC * x).sum(axis=0)
def data_forward(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    p = e / np.sum(e, axis=-1, keepdims=True)
    return p, p
def data_backward(dp, p):
    dx = p * (dp - np.sum(dp * p, axis=-1, keepdims=True))
    return dx
def walk_forward(x, w):
    y = np.einsum("bi,ij->bj", x, w)
    h = np.maximum(y, 0)
    return h, (x, w, y)
def walk_backward(dh, cache):
    x, w, y = cache
    dy = np.where(y > 0, dh, 0.0)
    dx = dy @ w.T
    dw = np.dot(x.T, dy)
    return dx, dw
def softsign_forward(x):
    y = np.log1p(np.exp(x)) + x / (1 + abs(x))
    return y, x
def softsign_backward(dy, x):
    return dy * (1 / (1 + np.exp(-x)) + 1 / (1 + np.abs(x)) ** 2)
class Scale:
    def __init__(self):
        self.weight = np.arange(1.0, 4.0)
    def forward(self, x):
        self.x = x
        y = self.x * self.weight
        return y
    def backward(self, dy):
        self.dweight = (dy * self.x).sum(axis=0)
        dx = dy * self.weight
        return dx
"""


def test_ones_own_layers(tmp_path, monkeypatch):
    """Loops, conditions, arrays that are changed in place, attributes; no line has an effect."""
    monkeypatch.chdir(tmp_path)
    Path("made_of.py").write_text(OWN)
    before = sys.gettrace()
    for key, expected in (
            ("made_of.py:N --input x=4,3 --input shape=3", {"C", "N", "dN", "dC", "dx"}),
            ("made_of.py:data --input x=4,4", {"e", "p", "dx"}),
            ("made_of.py:walk --input x=4,3 --input w=3,2", {"y", "h", "dy", "dx", "dw"}),
            ("made_of.py:softsign --input x=3,3", {"y", "dx"}),
            ("made_of.py:Scale --input x=4,3", {"y", "dweight", "dx"})):
        lesson = lesson_named(key)
        steps = steps_of(lesson)
        known = {name for step in steps.steps for name in step["from"]}
        assert expected <= known, known
        assert all(name in step["from"] for step in steps.steps for name, _ in step["arrays"]
                   if name == "C" and step["line"][0] == "f")
        for step in steps.steps:
            for name, found in step["from"].items():
                made = steps.arrays[dict(step["arrays"])[name]]
                for index, tree, places in entries_of(found, made["shape"]):
                    slots = [steps.arrays[step["at"][of]]["values"][at] for of, at in places]
                    value = np.reshape(made["values"], made["shape"])[index]
                    assert value_of(tree, slots) == pytest.approx(value, rel=5e-3, abs=1e-2)
    assert sys.gettrace() is before
    large = steps_of(lesson_named("made_of.py:walk --input x=40,50 --input w=50,2"))
    assert {name for step in large.steps for name in step["from"]} == {"h", "dy", "dx"}

"""Where a number comes from: what the page says of each entry is what the line computes."""

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from npgpt.study.exercises.terms import entries
from npgpt.study.gradcheck.source import read_source
from npgpt.study.lessons.table import lesson_named
from npgpt.study.page.origins import CHOICES, FIRST, first_lines, origin
from tests.study.page.conftest import OWN, VIEWS, for_each, studied

OPERATIONS = {
    "+": lambda *terms: math.fsum(terms),
    "-": lambda a, b: a - b,
    "·": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "^": lambda a, b: a**b,
    "negative": lambda a: -a,
    "max": max,
    "abs": abs,
    "log1p": math.log1p,
    "erf": math.erf,
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


def assert_terms(data, tolerance=5e-3):
    """Each entry with terms is what they make, from the rounded numbers of the page.

    Return the (line, name, values) of what has no terms.
    """
    missing = []
    for step in data["steps"]:
        read = {name: data["arrays"][i] for name, i in step["at"].items()}
        for name, i in step["arrays"]:
            found, made = step["from"].get(name), data["arrays"][i]
            values = np.reshape(np.array(made["values"], float), made["shape"])
            if found is None:
                missing.append((step["line"], name, values[np.isfinite(values)]))
                continue
            if name == "slope":  # the difference of nearly equal numbers
                continue
            size = np.abs(values[np.isfinite(values)]).max(initial=0.1)
            for index, tree, places in entries_of(found, made["shape"]):
                slots = [float(read[of]["values"][at]) for of, at in places]
                expected = pytest.approx(values[index], rel=tolerance, abs=tolerance * size)
                assert value_of(tree, slots) == expected
    return missing


@for_each(VIEWS)
def test_each_entry_has_the_terms_that_are_said(name):
    """None have arguments, what a cache holds, calls of layers, and whole numbers."""
    lesson = VIEWS[name]
    sources = {"f": read_source(lesson.forward), "b": read_source(lesson.backward)}
    for line, variable, values in assert_terms(studied(name)["data"]):
        statement = sources[line[0]].statement_at(int(line[1:]))
        is_call = statement and re.search(r"_(for|back)ward\(|config\.|= cache$", statement.text)
        assert not statement or is_call or (values == values.round()).all(), (line, variable)


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
    x, weight, y, dy = np.random.default_rng(0).standard_normal((4, 2, 2))
    x, weight = np.c_[x, x[:, :1]], np.r_[weight, weight[:1]]  # (2, 3) and (3, 2)
    arrays = {"x": x, "weight": weight, "y": y, "dy": dy}
    for code, line in found.items():
        expected = eval(code, dict(arrays))
        assert line["shape"] == np.shape(expected)
        for index, tree, places in entries_of(line["from"], line["shape"]):
            slots = [arrays[name].flat[at] for name, at in places]
            assert value_of(tree, slots) == pytest.approx(np.asarray(expected)[index], rel=1e-5)


OWN_LAYERS = """
N --input x=4,3 --input shape=3 | C N dN dC dx
data --input x=4,4 | e p dx
walk --input x=4,3 --input w=3,2 | y h dy dx dw
softsign --input x=3,3 | y dx
Scale --input x=4,3 | y dweight dx
"""


def test_ones_own_layers(tmp_path, monkeypatch):
    """Loops, conditions, arrays that are changed in place, attributes; no line has an effect."""
    monkeypatch.chdir(tmp_path)
    Path("made_of.py").write_text(OWN)
    before = sys.gettrace()
    for row in OWN_LAYERS.strip().split("\n"):
        key, names = row.split(" | ")
        data = studied(f"made_of.py:{key}")["data"]
        assert {*names.split()} <= names_with_terms(data)
        missing = {name for line, name, _ in assert_terms(data) if line[0] == "f"}
        assert "C" not in missing
    assert sys.gettrace() is before
    large = studied("made_of.py:walk --input x=40,50 --input w=50,2")["data"]
    assert names_with_terms(large) == {"h", "dy", "dx"}


def names_with_terms(data):
    return {name for step in data["steps"] for name in step["from"]}

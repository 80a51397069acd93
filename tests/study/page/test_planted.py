"""The planted mistakes: each really is wrong, and what is said of its numbers is true."""

import re

import numpy as np
import pytest

from npgpt.study.exercises.exercise import read_exercise
from npgpt.study.gradcheck.check import relative_error
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.trace import Recorded
from npgpt.study.judge.outcome import load_solution
from npgpt.study.lessons.lesson import map_arrays
from npgpt.study.lessons.table import chosen_lessons
from npgpt.study.page.edits import edited, view_name, views_of
from npgpt.study.page.page import studied_layer
from npgpt.study.page.steps import known_truth

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")

LESSONS = {view_name(view): view for each in chosen_lessons("all") for view in views_of(each)}
NUMBER = re.compile(
    r"(d[\w.]+)(?:\[([\d, ]+)\])? is (\S+), the central difference ([^\s,;]+)(?:, ratio ([^\s,;]+))?"
)


@pytest.mark.parametrize("name", LESSONS)
def test_it_is_wrong_and_its_numbers_are_true(name, tmp_path):
    """The edited function is made as for the judge, and runs as a whole."""
    lesson = LESSONS[name]
    known = known_truth(lesson.key)
    # the last gradient of a name is that of its first value
    measured = {f"d{each.name}": each.true for each in reversed(known.variables)}
    measured |= {f"d{each}": true for each, true in known.inputs.items()}
    planted = studied_layer(lesson)["data"]["planted"]
    assert {int(line[1:]) for line in planted} <= {
        each.first for each in read_source(lesson.backward).statements}
    for line, mistake in planted.items():
        assert mistake["answer"]["first"] == line
        path = tmp_path / f"{line}.py"
        path.write_text(edited(lesson, {int(line[1:]): mistake["text"]}, path)[0])
        solution = load_solution(read_exercise(path))
        backward = Recorded(solution.function, tree=solution.tree)
        arguments = map_arrays(np.copy, (known.dy, known.cache))
        with np.errstate(all="ignore"):
            given = lesson.run_backward(*arguments, backward.function)
        errors = [relative_error(given.get(f"d{key}"), true) for key, true in known.inputs.items()]
        assert max(errors) > 0.01, mistake["text"]
        values = {assigned.name: assigned.value for assigned in backward.record} | given
        said = "; ".join(mistake["answer"]["lines"][0]["said"])
        for named, index, value, difference, ratio in NUMBER.findall(said):
            at = tuple(map(int, index.split(", "))) if index else ()
            assert float(value) == pytest.approx(values[named][at], rel=1e-4, abs=1e-12)
            assert float(difference) == pytest.approx(measured[named][at], rel=1e-4, abs=1e-12)
            if ratio:
                expected = values[named][at] / measured[named][at]
                assert float(ratio) == pytest.approx(expected, rel=1e-3)


def test_the_common_mistakes_of_the_derivation_come_first():
    planted = [mistake for name in ("chain", "embedding", "layernorm")
               for mistake in studied_layer(LESSONS[name])["data"]["planted"].values()]
    first = {each["text"]: each["answer"]["lines"][0]["said"] for each in planted}
    assert "du = dv * np.sin(u)" in first and "dwte[idx] += dtoken" in first
    assert (
        first["dx = rstd * (dxhat - mean_dxhat)"][0] == "the term xhat * mean_dxhat_xhat is missing"
    )

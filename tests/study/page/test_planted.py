"""The planted mistakes: each really is wrong, and what is said of its numbers is true."""

import re

import numpy as np
import pytest

from npgpt.study.gradcheck.check import relative_error
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.trace import Recorded
from npgpt.study.judge.outcome import load_solution
from npgpt.study.lessons.lesson import map_arrays
from npgpt.study.page.edits import edited
from npgpt.study.page.steps import known_truth
from tests.study.page.conftest import VIEWS, for_each, studied

NUMBER = re.compile(
    r"(d[\w.]+)(?:\[([\d, ]+)\])? is (\S+), the central difference ([^\s,;]+)(?:, ratio "
    r"([^\s,;]+))?"
)


@for_each(sorted(VIEWS.keys() - {"gpt"}))  # its parts have the same mistakes
def test_it_is_wrong_and_its_numbers_are_true(name):
    """The edited function is made as for the judge, and runs as a whole."""
    lesson = VIEWS[name]
    known = known_truth(lesson.key)
    # the last gradient of a name is that of its first value
    measured = {f"d{each.name}": each.true for each in reversed(known.variables)}
    measured |= {f"d{each}": true for each, true in known.inputs.items()}
    planted = studied(name)["data"]["planted"]
    assert {int(line[1:]) for line in planted} <= {
        each.first for each in read_source(lesson.backward).statements
    }
    for line, mistake in planted.items():
        assert mistake["answer"]["first"] == line
        exercise, _ = edited(lesson, {int(line[1:]): mistake["text"]})
        solution = load_solution(exercise)
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
    first = {}
    for name in "chain", "embedding", "layernorm":
        for mistake in studied(name)["data"]["planted"].values():
            first[mistake["text"]] = mistake["answer"]["lines"][0]["said"][0]
    assert "du = dv * np.sin(u)" in first and "dwte[idx] += dtoken" in first
    said = first["dx = rstd * (dxhat - mean_dxhat)"]
    assert said == "the term xhat * mean_dxhat_xhat is missing"

"""The planted mistakes: each really is wrong, and what is said of its numbers is true."""

import re

import numpy as np
import pytest

from npgpt.study.exercises.exercise import read_exercise
from npgpt.study.gradcheck.check import relative_error
from npgpt.study.gradcheck.trace import Recorded
from npgpt.study.judge.outcome import load_solution
from npgpt.study.lessons.lesson import map_arrays
from npgpt.study.lessons.table import chosen_lessons
from npgpt.study.page.edits import edited, typed_statements
from npgpt.study.page.page import studied_layer
from npgpt.study.page.steps import known_truth

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")

LESSONS = {each.name: each for each in chosen_lessons("all")}
NUMBER = re.compile(
    r"(d[\w.]+)(?:\[([\d, ]+)\])? is (\S+), the central difference ([^\s,;]+)(?:, ratio ([^\s,;]+))?"
)


@pytest.mark.parametrize("name", LESSONS)
def test_it_is_wrong_and_its_numbers_are_true(name, tmp_path):
    """The edited function is made as for the judge, and runs as a whole."""
    lesson, known = LESSONS[name], known_truth(name)
    # the last gradient of a name is that of its first value
    measured = {f"d{each.name}": each.true for each in reversed(known.variables)}
    measured |= {f"d{each}": true for each, true in known.inputs.items()}
    planted = studied_layer(lesson)["data"]["planted"]
    assert planted.keys() <= typed_statements(lesson).keys()
    for line, mistakes in planted.items():
        assert mistakes[0]["answer"]["first"] == line
        for i, each in enumerate(mistakes):
            path = tmp_path / f"{line}_{i}.py"
            path.write_text(edited(lesson, {int(line[1:]): each["text"]}, path)[0])
            solution = load_solution(read_exercise(path))
            backward = Recorded(solution.function, tree=solution.tree)
            with np.errstate(all="ignore"):
                try:
                    arguments = map_arrays(np.copy, (known.dy, known.cache))
                    given = lesson.run_backward(*arguments, backward.function)
                except (ValueError, IndexError):        # of a choice: its shapes do not fit
                    assert i > 0
                    continue
            errors = [relative_error(given.get(f"d{key}"), true)
                      for key, true in known.inputs.items()]
            assert max(errors) > 0.01, each["text"]
            values = {assigned.name: assigned.value for assigned in backward.record} | given
            says = mistakes[0]["answer"]["lines"][0]["said"] if i == 0 else [each["answer"]["text"]]
            for named, index, value, difference, ratio in NUMBER.findall("; ".join(says)):
                at = tuple(map(int, index.split(", "))) if index else ()
                assert float(value) == pytest.approx(values[named][at], rel=1e-4, abs=1e-12)
                assert float(difference) == pytest.approx(measured[named][at], rel=1e-4, abs=1e-12)
                if ratio:
                    expected = values[named][at] / measured[named][at]
                    assert float(ratio) == pytest.approx(expected, rel=1e-3)


def test_the_common_mistakes_of_the_derivation_come_first():
    planted = [texts for name in ("chain", "embedding", "layernorm")
               for texts in studied_layer(LESSONS[name])["data"]["planted"].values()]
    first = {texts[0]["text"]: texts[0]["answer"]["lines"][0]["said"] for texts in planted}
    assert "du = dv * np.sin(u)" in first and "dwte[idx] += dtoken" in first
    assert (
        first["dx = rstd * (dxhat - mean_dxhat)"][0] == "the term xhat * mean_dxhat_xhat is missing"
    )
    assert sum(len(texts) == 3 for texts in planted) >= 12       # choices for "Predict"

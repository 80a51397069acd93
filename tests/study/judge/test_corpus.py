"""The judge on the corpus: no right solution is refused, no wrong one accepted, and the range of
lines that it gives has the mistake.
"""

from pathlib import Path

import pytest

from npgpt.study.exercises.exercise import preamble
from npgpt.study.exercises.path import CORE, MORE
from npgpt.study.lessons.random_settings import random_settings
from npgpt.study.lessons.table import LESSONS, lesson_named
from tests.study.judge.corpus import SOLUTIONS, source
from tests.study.judge.solutions import judge_file

README = Path(__file__).parents[3] / "README.md"
CASES = [(layer, each) for layer, solutions in SOLUTIONS.items() for each in solutions]


def is_slow(i, layer, solution):
    """Of the wrong ones each second is fast, of those of the whole model each fourth."""
    return not solution.is_right and i % (4 if layer == "gpt" else 2) > 0


MARKED = [
    pytest.param(*case, id=f"{case[0]} {i}", marks=[pytest.mark.slow] * is_slow(i, *case))
    for i, case in enumerate(CASES)
]


@pytest.mark.parametrize(("layer", "solution"), MARKED)
def test_right_ones_are_right_and_wrong_ones_refused_at_the_mistake(layer, solution, tmp_path):
    path = tmp_path / "mine.py"
    text = f"{preamble(lesson_named(layer))}\n\n\n{source(layer, solution)}"
    path.write_text(text)
    report = judge_file(layer, path, 3)
    assert report.right == report.sound == solution.is_right, report
    if not solution.is_right and solution.at != "nowhere":
        since, until = report.range
        at, *_ = solution.at.strip().split("\n")
        assert at in "\n".join(text.split("\n")[since - 1 : until])


def test_the_readme_says_what_the_tests_show():
    readme = " ".join(README.read_text(encoding="utf-8").split())
    right = sum(each.is_right for _, each in CASES)
    assert (
        f"{len(CASES)} solutions: none of the {right} right ones is refused, none of the "
        f"{len(CASES) - right} wrong ones accepted"
    ) in readme
    assert f"{len(CORE)} exercises" in readme and f"{len(MORE)} to practise" in readme
    assert f"{len(random_settings(LESSONS['linear'], 1))} cases" in readme

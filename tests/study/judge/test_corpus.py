"""The judge on the corpus: no right solution is refused, no wrong one accepted or refused at
another line.
"""

from pathlib import Path

import pytest

from npgpt.study.exercises.exercise import preamble
from npgpt.study.exercises.path import whole_path
from npgpt.study.lessons.table import LESSONS, lesson_named
from tests.study.judge.corpus import SOLUTIONS, source
from tests.study.judge.solutions import judge_file

README = Path(__file__).resolve().parents[3] / "README.md"

SEED = 3
CASES = [(layer, solution) for layer, solutions in SOLUTIONS.items() for solution in solutions]
RIGHT_ONES = [case for case in CASES if case[1].is_right]
WRONG_ONES = [case for case in CASES if not case[1].is_right]


def cases_of(which, slow=()):
    """The parameters of a test: solutions by layer. slow: the numbers of those that only a slow run
    judges.
    """
    return pytest.mark.parametrize(("layer", "solution"), [
        pytest.param(layer, each, id=f"{layer} {i}", marks=[pytest.mark.slow] * (i in slow))
        for i, (layer, each) in enumerate(which)])


def judged(layer, solution, path):
    """The `Report` on a solution, and the lines of its file."""
    path.write_text(f"{preamble(lesson_named(layer))}\n\n\n{source(layer, solution)}")
    return judge_file(layer, path, SEED), path.read_text().split("\n")


@cases_of(RIGHT_ONES)
def test_right_solutions_are_right(layer, solution, tmp_path):
    report, _ = judged(layer, solution, tmp_path / "mine.py")
    assert report.right, report


@cases_of(WRONG_ONES, slow=range(0, len(WRONG_ONES), 2))
def test_wrong_solutions_are_refused_at_their_line(layer, solution, tmp_path):
    report, lines = judged(layer, solution, tmp_path / "mine.py")
    assert not report.right and not report.sound
    assert solution.at is None or solution.at in "\n".join(lines[report.first - 1:report.first + 1])


def test_the_readme_says_what_the_tests_show():
    assert set(SOLUTIONS) <= set(LESSONS)
    readme = " ".join(README.read_text(encoding="utf-8").split())
    right, wrong = len(RIGHT_ONES), len(WRONG_ONES)
    for text in (f"{right + wrong} solutions: none of the {right} right ones is refused, none of the {wrong} wrong "
                 "ones accepted", f"{len(whole_path())} exercises"):
        assert text in readme, "README.md must say so"

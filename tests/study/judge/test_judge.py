"""The judge beside the corpus: its true values and cases, and what it says (`said.py`)."""

import dataclasses
import re

import numpy as np
import pytest

from npgpt.study.gradcheck.check import relative_error
from npgpt.study.gradcheck.truth import EXACT, Case, cases
from npgpt.study.judge import names
from npgpt.study.judge.report import report_text
from npgpt.study.lessons.lesson import map_arrays
from npgpt.study.lessons.random_settings import OPTIONS, OPTIONS_OFF
from npgpt.study.lessons.setting import PLAIN, SIZES
from npgpt.study.lessons.table import LESSONS, lesson_named
from tests.study.judge.said import SAID
from tests.study.judge.solutions import changed, judge_file, level_text, solved

ROWS = re.findall(r"(?m)^([^#\n].*?) \| (.*)", SAID.replace("\\\n  ", ""))
SLOW = "ten layers in the order of their digits"
MARKED = [
    pytest.param(fact, row, id=fact, marks=[pytest.mark.slow] * (fact == SLOW))
    for fact, row in ROWS
]


def test_what_is_small_beside_the_other_results_is_mostly_rounding():
    """The long way of a softmax that is nearly 0 or 1 rounds otherwise, and is right."""
    sizes = SIZES._replace(B=1, T=1, C=2, H=1, S=2)
    case = Case("attention", dataclasses.replace(PLAIN, scale=20.0, seed=2, sizes=sizes))
    dq, *_ = case.lesson.long_way(*case.arguments())
    assert EXACT < relative_error(dq, case.results["dq"]) < case.tolerance("dq") < 1e-3
    assert case.tolerance("dv") == EXACT


@pytest.mark.parametrize("layer", LESSONS)
def test_the_arrays_of_the_cases_are_finite_and_half_of_them_not_contiguous(layer):
    known = cases(layer, 1)
    for case in known:
        assert all(true is None or np.isfinite(true).all() for true in case.results.values())
        arrays = []
        map_arrays(arrays.append, case.arguments()[1])
        wide = [each for each in arrays if np.ndim(each) > 1 and min(each.shape) > 1]
        views = [not each.flags.c_contiguous and not each.flags.writeable for each in wide]
        assert all(views) if case.setting.views else not any(views)
    assert 0.3 < sum(case.setting.views for case in known) / len(known) < 0.7


@pytest.mark.parametrize(
    "layer", [pytest.param(name, marks=[pytest.mark.slow] * (name == "gpt")) for name in LESSONS]
)
def test_solved_files_are_right_and_untouched_ones_right_so_far(layer, tmp_path):
    lesson, file = lesson_named(layer), tmp_path / "mine.py"
    file.write_text(solved(lesson, 3))
    report = judge_file(layer, file)
    assert report.right and not report.notes and report.lines, report
    for level in 1, 2, 3:
        file.write_text(text := level_text(lesson, level, "mine.py"))
        report = judge_file(layer, file)
        blanks = re.finditer(r"(?m)^[^#\n]*\.\.\.\s*(#|$)", text)
        lines = [text[: each.start()].count("\n") + 1 for each in blanks]
        assert report.to_do == lines and report.sound and not report.right and not report.notes
        assert {each.line for each in report.lines}.isdisjoint(lines)


def report_on(layer, edits, tmp_path):
    """The `Report` on such a text, and the lines of the range of its mistake."""
    file = tmp_path / "mine.py"
    text, _ = changed(layer, edits)
    file.write_text(text)
    report = judge_file(layer.split()[0], file, 7)
    since, until = report.range or (1, 0)
    return report, text.split("\n")[since - 1 : until]


@pytest.mark.parametrize(("fact", "row"), MARKED)
def test_it_is_said_of(fact, row, tmp_path):
    layer, edits, verdict, *words = re.split(r" *\| ", row)
    report, lines = report_on(layer, edits, tmp_path)
    said = re.sub(" +", " ", report_text(report, "title"))
    assert report.right == report.sound == (verdict == "right"), said
    if verdict.startswith("WRONG "):
        first, _, last = verdict[6:].partition(" .. ")
        assert first in lines[0] and (last or first) in lines[-1], said
        assert bool(last) == (len(lines) > 1), said
    for word in words:
        assert (word.removeprefix("not ").strip() in said) != word.startswith("not "), said


def test_without_time_for_a_name_the_verdict_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "SECONDS", 0.0)
    report, [line] = report_on("layernorm", "dxhat = dy * weight => dxhat = dy", tmp_path)
    assert "dxhat = dy" in line and "I don't recognise" in report_text(report, "")


def test_prints_are_seen_once_although_the_lines_run_often(tmp_path, capsys):
    for new in "dy * weight", "dy / weight":
        report_on("layernorm", f"dxhat = dy * weight => print('here')\n    dxhat = {new}", tmp_path)
        assert capsys.readouterr().out == "here\n"


def test_the_options_of_the_cases_are_others_than_the_plain_ones():
    for option in OPTIONS + [each for each in OPTIONS_OFF if each]:
        plain = PLAIN.model if option in OPTIONS else dataclasses.replace(PLAIN.model, bias=False)
        assert all(plain.resolved(name) != value for name, value in option.items()), option

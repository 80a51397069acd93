"""The judge beside the corpus: its true values and cases, and what it says (`said.py`)."""

import dataclasses
import re

import numpy as np
import pytest

from npgpt.layers.loss import IGNORE_INDEX
from npgpt.study.exercises.exercise import level_text
from npgpt.study.gradcheck.check import check_lesson, relative_error
from npgpt.study.gradcheck.measure import exact
from npgpt.study.gradcheck.truth import EXACT, Case, cases
from npgpt.study.gradcheck.verdicts import WRONG
from npgpt.study.judge import names
from npgpt.study.judge.outcome import run_case, solution_of
from npgpt.study.judge.report import report_text
from npgpt.study.lessons.lesson import map_arrays
from npgpt.study.lessons.random_settings import random_settings
from npgpt.study.lessons.setting import PLAIN, SIZES
from npgpt.study.lessons.table import LESSONS, lesson_named
from tests.study.judge.said import SAID
from tests.study.judge.solutions import changed, judge_file, solved

ROWS = re.findall(r"(?m)^([^#\n].*?) \| (.*)", SAID.replace("\\\n  ", ""))
SLOW = [pytest.param(layer, marks=[pytest.mark.slow] * (layer in ("block", "gpt")))
        for layer in LESSONS]
ONES = "B T BT H D F V".split()
EQUAL = "BT TS CT CV CF DH".split()


@pytest.mark.parametrize("layer", SLOW)
def test_the_true_values_are_right_to_15_digits_and_more_on_every_branch(layer):
    """The judge compares with the package's backward; here that is verified."""
    switches = LESSONS[layer].switches
    sizes = SIZES._replace(B=2, T=3, C=4, V=7, S=5, F=5, P=5)
    small = dataclasses.replace(PLAIN, sizes=sizes, scale=0.3, seed=5)
    offs = [(), switches, ["mask"][:"mask" in switches], *([switch] for switch in switches)]
    for setting in PLAIN, *(dataclasses.replace(small, off=frozenset(off)) for off in offs):
        lesson = lesson_named(layer, dataclasses.replace(setting, step=1e-20))
        wrong = {each.variable for each in check_lesson(exact(lesson)) if each.verdict == WRONG}
        assert wrong <= {*lesson.results} - {*lesson.inputs}, setting


@pytest.mark.parametrize("layer", LESSONS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_cases_have_what_real_data_have(layer, seed):
    switches, settings = LESSONS[layer].switches, random_settings(LESSONS[layer], seed)
    assert {*settings} & {*random_settings(LESSONS[layer], seed + 1)} == {PLAIN}
    sizes = [each.sizes.by_letter for each in settings]
    for pair in EQUAL:          # and no other size
        same = [{name for name in "BTSCVFDH" if each[name] == each[pair[0]] > 1} for each in sizes]
        assert {*pair} in same or layer == "embedding", pair     # V is larger if no token repeats
    assert any(len({*each.sizes}) < 3 for each in settings)
    for off in frozenset(), frozenset(switches):
        found = [each.sizes.by_letter for each in settings if each.off == off]
        for ones in ONES[:-1] if off else ONES:        # V is larger, see above
            assert any(all(each[one] == 1 for one in ones) for each in found), (ones, off)
    first = frozenset(switches[:4])
    assert len({each.off & first for each in settings}) == 2 ** len(first)
    assert {each.n_layer for each in settings} == {1, 2, 3, 4, 26}
    assert len({each.p for each in settings}) > 30 and max(each.sizes.V for each in settings) > 255
    assert max(each.sizes.T for each in settings) > 127 and {each.zeros for each in settings} == {
        "", "rows", "last"}
    assert len({each.upstream for each in settings}) == 3
    assert sum(each.single for each in settings) == 3 * (layer != "difference")


def test_what_is_small_beside_the_other_results_is_mostly_rounding():
    """The long way of a softmax that is nearly 0 or 1 rounds otherwise, and is right."""
    sizes = SIZES._replace(B=1, T=1, C=2, H=1, S=2)
    case = Case("attention", dataclasses.replace(PLAIN, scale=20.0, seed=2, sizes=sizes))
    dq, *_ = case.lesson.long_way(*case.arguments())
    assert EXACT < relative_error(dq, case.results["dq"]) < case.tolerance("dq") < 1e-3
    assert case.tolerance("dv") == EXACT


def test_a_second_call_gets_the_arrays_of_the_first_with_other_numbers():
    known, lesson = cases("linear", 1), LESSONS["linear"]
    solution, _ = solution_of(lesson, lesson.backward)
    dy, (_, weight, _) = run_case(solution, known[0], shown=True).arguments
    first = dy, (dy, weight, True)
    again, (_, other, _) = run_case(solution, known[1], shown=True, into=first).arguments
    assert again is dy and other is weight and np.array_equal(dy, known[1].dy)


def test_there_are_as_many_ids_as_tokens_if_none_repeats():
    for setting in random_settings(LESSONS["embedding"], 20):
        assert setting.has("repeated") or setting.sizes.V >= setting.sizes.B * setting.sizes.T


@pytest.mark.parametrize("layer", LESSONS)
def test_the_arrays_of_the_cases_are_finite_and_half_of_them_not_contiguous(layer):
    known = cases(layer, 1)
    for name, true in (each for case in known for each in case.results.items()):
        assert true is None or np.isfinite(true).all(), name
    for case in known:
        arrays = []
        map_arrays(arrays.append, case.arguments()[1])
        wide = [each for each in arrays if np.ndim(each) > 1 and min(each.shape) > 1]
        views = [not each.flags.c_contiguous and not each.flags.writeable for each in wide]
        assert all(views) if case.setting.views else not any(views)
    assert 0.3 < sum(case.setting.views for case in known) / len(known) < 0.7


def test_of_the_targets_several_are_ignored_and_some_count():
    several = set()
    for case in cases("cross_entropy", 1):
        ignored = case.lesson.constants["targets"] == IGNORE_INDEX
        rows = ignored.all(axis=1) | ~ignored.any(axis=1)
        shown = {"any": True, "padding": (np.diff(ignored * 1) >= 0).all(), "row": rows.all()}
        assert not ignored.all() and ignored.any() <= case.setting.has("ignored")
        if ignored.sum() > 1 and shown[case.setting.ignored]:
            several.add(case.setting.ignored)
    assert several == {"any", "padding", "row"}


@pytest.mark.parametrize("layer", LESSONS)
def test_solved_files_are_right_and_untouched_ones_right_so_far(layer, tmp_path):
    lesson, file = lesson_named(layer), tmp_path / "mine.py"
    for level in 1, 2, 3:
        file.write_text(solved(lesson, level))
        report = judge_file(layer, file)
        assert report.right and not report.notes and report.lines, (level, report)
        file.write_text(text := level_text(lesson, level, "mine.py"))
        report = judge_file(layer, file)
        blanks = re.finditer(r"(?m)^[^#\n]*\.\.\.\s*(#|$)", text)
        lines = [text[:each.start()].count("\n") + 1 for each in blanks]
        assert report.to_do == lines and report.sound and not report.right and not report.notes
        assert {each.line for each in report.lines}.isdisjoint(lines)


def report_on(layer, edits, tmp_path):
    """The `Report` on such a text, and the lines of the range of its mistake."""
    file = tmp_path / "mine.py"
    text, _ = changed(layer, edits)
    file.write_text(text)
    report = judge_file(layer.split()[0], file, 7)
    since, until = report.range or (1, 0)
    return report, text.split("\n")[since - 1:until]


@pytest.mark.parametrize(("fact", "row"), ROWS, ids=[fact for fact, _ in ROWS])
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

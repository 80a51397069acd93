"""The judge beside the corpus: unfinished files, evidence, notes, what it prints, and `npgpt.study.check`."""

import ast
import copy
import dataclasses

import numpy as np
import pytest

from npgpt.errors import UserError
from npgpt.layers import layernorm_backward
from npgpt.study import check
from npgpt.study.exercise import LAYERS, level_text, preamble
from npgpt.study.gradcheck import OK, WRONG
from npgpt.study.gradcheck import check as gradcheck
from npgpt.study.judge import LearnerError, judge_file
from npgpt.study.lessons import OTHER_SIZES, SIZES, basics_and_lessons, lessons
from npgpt.study.mutants import Neighbours, variations
from npgpt.study.report import report_text
from npgpt.study.source import read_source
from npgpt.study.truth import cases
from tests.study.solutions import solved


def judged(layer, text, tmp_path):
    """The `Report` on the text of a file, and a function that gives the number of the line with a text in it."""
    file = tmp_path / "mine.py"
    file.write_text(text, encoding="utf-8")
    return judge_file(layer, file), lambda part: text[:text.index(part)].count("\n") + 1


@pytest.mark.parametrize("layer", [pytest.param(layer, marks=[pytest.mark.slow] * (layer in ("block", "gpt")))
                                   for layer in basics_and_lessons()])
def test_the_true_values_are_those_of_the_central_differences_on_every_branch(layer):
    """The judge compares with the package's backward; here that is verified in each case."""
    for case in cases(layer):
        found = gradcheck(case.lesson)
        wrong = {each.variable for each in found if each.verdict == WRONG}
        assert wrong <= {name for name in case.lesson.results if name not in case.lesson.inputs}, case.name


def test_all_sizes_and_their_products_in_matmuls_are_different():
    for sizes in (SIZES, OTHER_SIZES):
        B, T, C, H = sizes[:4]
        all_sizes = [*sizes, C // H, 3 * C, B * T]
        assert len(set(all_sizes)) == len(all_sizes)
    assert SIZES.letter(5) == "T" and SIZES.letter(20) == "N" and SIZES.letter(77) == "77"


@pytest.mark.parametrize("layer", LAYERS)
def test_solved_files_are_right_and_untouched_ones_right_so_far(layer, tmp_path):
    lesson = basics_and_lessons()[layer]
    for level in (1, 2, 3):
        report, _ = judged(layer, solved(lesson, level), tmp_path)
        assert report.right and not report.notes and report.lines, (level, report)
        text = level_text(lesson, level, "mine.py")
        report, line = judged(layer, text, tmp_path)
        assert not report.right and report.sound and report.to_do
        assert report.to_do[0] == [i for i, each in enumerate(text.split("\n"), 1) if each.strip().split("#")[0].strip()
                                   .endswith("...")][0]
        assert not {each.line for each in report.lines} & set(report.to_do)


def test_finished_lines_are_judged_while_others_are_missing(tmp_path):
    text = level_text(lessons()["layernorm"], 2, "mine.py")
    text = text.replace("dxhat = ...", "dxhat = dy + weight").replace("dbias = ...", "dbias = dy.sum(axis=(0, 1))")
    report, line = judged("layernorm", text, tmp_path)
    assert report.first == line("dxhat = dy +") and not report.right
    found = {each.name: (each.verdict, each.diagnosis) for each in report.lines}
    assert found["dbias"] == (OK, None) and found["dxhat"] == (WRONG, "weight is added, not multiplied")
    assert report.to_do == [line("dweight = ..."), line("dx = ...")]
    assert "...\n" in report_text(report, "title")
    text = level_text(lessons()["linear"], 3, "mine.py")
    text = text.replace("    ...\n", "    x, weight, has_bias = cache\n    dy_rows = dy.reshape(-1, 8)\n    ...\n")
    report, line = judged("linear", text, tmp_path)
    assert report.case == "with other sizes" and "reshape" in report.faults[0].message
    report, line = judged("linear", text.replace("reshape(-1, 8)", "reshape(-1, dy.shape[-1])"), tmp_path)
    assert [(each.name, each.verdict) for each in report.lines] == [("dy_rows", OK)]
    assert report_text(report, "title").endswith(f"right so far; still to be written: line {line('    ...')}")


@pytest.mark.parametrize(("layer", "old", "new", "at", "says"), [
    ("layernorm", "mean_dxhat = dxhat.mean(axis=-1,", "mean_dxhat = dxhat.mean(axis=0,", "mean_dxhat = ",
     "axis 0 instead of axis -1"),
    ("layernorm", "= dxhat.mean(axis=-1, keepdims=True)", "= dxhat.mean(axis=-1)", "mean_dxhat = ",
     "keepdims=True is missing; line "),
    ("linear", "rows = x.reshape(-1, x.shape[-1])  ", "rows = x.reshape(x.shape[-1], -1)  ", "rows = x.reshape(x.",
     "x.shape[-1] and -1 are in each other's place; line "),
    ("layernorm", "= dxhat.mean(axis=-1, keepdims=True)", "= dxhat.sum(axis=0, keepdims=True) ** 2", None, "look at"),
])
def test_what_only_spoils_a_line_that_is_missing_is_found(layer, old, new, at, says, tmp_path):
    """The package's code in place of the missing line gets wrong values: from which of the finished lines?"""
    text = level_text(lessons()[layer], 1, "mine.py")
    begin = text.index("def " + lessons()[layer].backward.__name__)
    assert text.count(old, begin) == 1
    report, line = judged(layer, text[:begin] + text[begin:].replace(old, new), tmp_path)
    if at is None:          # the cause has no name: that there is one is said
        assert report.sound and says in report.notes[0] and "right so far" not in report_text(report, "title")
    else:
        said = [fault.message for fault in report.faults] + [each.diagnosis for each in report.lines if each.diagnosis]
        assert report.first == line(at) and len(said) == 1 and said[0].startswith(says)


def test_the_evidence_is_the_worst_value_beside_the_central_difference(tmp_path):
    text = solved(lessons()["linear"], 3).replace("dy_rows @ weight.T", "2.0 * (dy_rows @ weight.T)")
    report, line = judged("linear", text, tmp_path)
    [wrong, follows] = [each for each in report.lines if each.verdict == WRONG]
    case = cases("linear")[0]
    true = case.results["dx"].reshape(20, 6)
    at = np.unravel_index(np.abs(true).argmax(), true.shape)
    assert wrong.line == line("drows = 2.0") and wrong.diagnosis == "the factor 2.0 does not belong there"
    assert wrong.evidence == (f"drows[{at[0]}, {at[1]}] is {2.0 * true[at]:.5g}, the central difference "
                              f"{true[at]:.5g}, ratio 2")
    assert follows.diagnosis == f"may follow from line {wrong.line}"


def test_two_mistakes_are_both_named_if_the_second_does_not_depend_on_the_first(tmp_path):
    text = solved(basics_and_lessons()["broadcast"], 3).replace("dy.sum(axis=0)", "dy.sum()")
    text = text.replace("(dproduct * x).sum(axis=1, keepdims=True)", "(dproduct * x).sum(axis=1)")
    report, _ = judged("broadcast", text, tmp_path)
    assert [line.diagnosis for line in report.lines if line.verdict == WRONG] == [
        "its shape is (), not (6,): it was summed over C too",
        "its shape is (20,), not (20, 1): keepdims=True is missing"]
    text = solved(lessons()["layernorm"], 3).replace(".sum(axis=0) if has", ".mean(axis=0) if has")
    report, line = judged("layernorm", text.replace("dxhat = dy * weight", "dxhat = dy"), tmp_path)
    assert [line.diagnosis for line in report.lines if line.verdict == WRONG] == [
        "a mean instead of a sum", "the factor weight is missing", f"may follow from line {line('dxhat = dy')}"]


def test_the_names_are_free_and_only_the_results_decide(tmp_path):
    text = solved(lessons()["head"], 3).replace("drows = dlogit_rows @ weight", "drows = 3.0 * (dlogit_rows @ weight)")
    report, line = judged("head", text.replace("dx = drows.reshape", "dx = (drows / 3.0).reshape"), tmp_path)
    assert report.right and report.notes == [
        f"line {line('drows = 3.0')}: drows is not the gradient of rows, but the results are right"]


def test_prints_are_seen_once_although_the_lines_run_often(tmp_path, capsys):
    text = solved(lessons()["layernorm"], 3).replace("    C = xhat", "    print('here')\n    C = xhat")
    assert judged("layernorm", text, tmp_path)[0].right and capsys.readouterr().out == "here\n"
    report, _ = judged("layernorm", text.replace("dxhat = dy * weight", "dxhat = dy / weight"), tmp_path)
    assert report.lines[2].diagnosis == "divided by weight instead of multiplied"
    assert capsys.readouterr().out == "here\n"


@pytest.mark.parametrize("statement", [
    "while dx is None:\n        pass", "import os", "from os import path", "if dx is None:\n        return None",
])
def test_functions_that_must_not_run_again_and_again_are_judged_by_their_numbers(statement, tmp_path):
    text = solved(lessons()["dropout"], 3).replace("dy * mask", "dy + mask").replace(
        "    return dx", f"    {statement}\n    return dx")
    report, line = judged("dropout", text, tmp_path)
    assert report.lines[0].line == line("dx = dy") and report.lines[0].diagnosis.startswith("I don't recognise")
    text = text.replace("dy + mask", "-(dy * mask)")
    assert judged("dropout", text, tmp_path)[0].lines[0].diagnosis == "its sign is wrong"


def test_reports_are_plain_data_and_files_that_do_not_run_are_refused(tmp_path):
    report, _ = judged("head", solved(lessons()["head"], 1), tmp_path)
    assert dataclasses.asdict(report)["lines"][0].keys() == {"name", "line", "verdict", "diagnosis", "evidence"}
    with pytest.raises(LearnerError, match="ZeroDivisionError") as error:
        judged("head", solved(lessons()["head"], 1) + "1 / 0\n", tmp_path)
    assert error.value.line == solved(lessons()["head"], 1).count("\n") + 1


def mine(gradient, kept):
    """LayerNorm's backward with the weight forgotten."""
    xhat, rstd, weight, has_bias = kept
    dbias = gradient.sum(axis=(0, 1)) if has_bias else None
    dweight = (gradient * xhat).sum(axis=(0, 1))
    dxhat = gradient
    dx = rstd * (dxhat - dxhat.mean(-1, keepdims=True) - xhat * (dxhat * xhat).mean(-1, keepdims=True))
    return dx, dweight, dbias


def test_check_for_notebooks():
    right = check("layernorm", layernorm_backward)
    assert right.right and "right: every gradient" in repr(right) and "<table>" in right._repr_html_()
    wrong = check("layernorm", mine)
    line = mine.__code__.co_firstlineno + 5
    assert not wrong.right and f"line {line}" in repr(wrong) and "the factor weight is missing" in repr(wrong)
    assert "the factor weight is missing" in wrong._repr_html_() and "mine, a backward of layernorm" in repr(wrong)
    for layer, function, says in (("relu", mine, "there is no layer"), ("mlp", mine, "needs a function of"),
                                  ("layernorm", eval("lambda dy, cache: None"), "cannot be read|needs a function"),
                                  ("layernorm", 3, "cannot be read")):
        with pytest.raises(UserError, match=says):
            check(layer, function)


def gives_the_true_gradients(layer, file):
    """Whether the backward in a file does, in every case, and leaves its arguments as they were: without the judge."""
    lesson, names = basics_and_lessons()[layer], {}
    exec(file.read_text(), names)
    for case in cases(layer):
        dy, cache = copy.deepcopy((case.dy, case.cache))
        try:
            with np.errstate(all="ignore"):
                result = case.lesson.run_backward(dy, cache, names[lesson.backward.__name__])
            again = case.lesson.run_backward(dy, cache)         # by the package: other values if it has written to them
        except Exception:
            return False
        if result.keys() - case.results.keys() or not all(
                equal(each.get(name), true) for each in (result, again) for name, true in case.results.items()):
            return False
    return True


def equal(given, true):
    """Whether a result is the true one: None for None, else a floating array of its shape and values."""
    if given is None or true is None:
        return given is true
    kind = getattr(given, "dtype", np.dtype(int)).kind
    return kind == "f" and given.shape == true.shape and np.allclose(given, true, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("layer", basics_and_lessons())
def test_the_verdict_on_mutants_is_that_of_their_results(layer, tmp_path):
    """Every mistake of one node, whether people make it or not: the judge does not fail, and is never wrong."""
    lesson = basics_and_lessons()[layer]
    tree = ast.parse("\n".join(read_source(lesson.backward).lines)).body[0]
    texts = dict.fromkeys(ast.unparse(wrong) for _, wrong, _ in variations(tree, Neighbours(tree, lesson.backward)))
    for text in [*texts][::25]:
        file = tmp_path / "mine.py"
        file.write_text(f"{preamble(lesson)}\n\n\n{text}\n")
        assert judge_file(layer, file).right == gives_the_true_gradients(layer, file), text

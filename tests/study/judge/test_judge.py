"""The judge beside the corpus: unfinished files, evidence, notes, and what it prints."""

import dataclasses
import re

import numpy as np
import pytest

from npgpt.study.exercises.exercise import level_text
from npgpt.study.exercises.findings import SENTENCES
from npgpt.study.gradcheck.check import check_lesson
from npgpt.study.gradcheck.measure import exact
from npgpt.study.gradcheck.truth import Case, cases
from npgpt.study.gradcheck.verdicts import OK, WRONG
from npgpt.study.judge.report import hunt_text, report_text
from npgpt.study.lessons.random_settings import CASES, DEALT, random_settings
from npgpt.study.lessons.setting import PLAIN, SIZES
from npgpt.study.lessons.table import LESSONS, lesson_named
from tests.study.judge.corpus import source
from tests.study.judge.corpus.solution import wrong
from tests.study.judge.solutions import judge_file, solved

SEED = 7
UNKNOWN = SENTENCES["unknown"]


def said(each):
    """What a `Line` or `Fault` says that the mistakes are."""
    return [*map(str, each.mistakes)]


def judged(layer, text, tmp_path):
    """The `Report` on the text of a file, and a function that gives the number of the line with a text in it."""
    file = tmp_path / "mine.py"
    file.write_text(text, encoding="utf-8")
    return judge_file(layer, file, SEED), lambda part: text[:text.index(part)].count("\n") + 1


@pytest.mark.parametrize("layer", [pytest.param(layer, marks=[pytest.mark.slow] * (layer in ("block", "gpt")))
                                   for layer in LESSONS])
def test_the_true_values_are_right_to_15_digits_and_more_on_every_branch(layer):
    """The judge compares with the package's backward; here that is verified, with every switch on and off."""
    switches = LESSONS[layer].switches
    small = dataclasses.replace(PLAIN, sizes=SIZES._replace(B=2, T=3, C=4, V=7, S=5, F=5, P=5), scale=0.3, seed=5)
    offs = [set(), set(switches), *({switch} for switch in switches)] + [{"mask"}] * ("mask" in switches)
    for off in [PLAIN, *(dataclasses.replace(small, off=frozenset(off)) for off in offs)]:
        lesson = lesson_named(layer, dataclasses.replace(off, step=1e-20))
        wrong = {each.variable for each in check_lesson(exact(lesson)) if each.verdict == WRONG}
        assert wrong <= {name for name in lesson.results if name not in lesson.inputs}, off


@pytest.mark.parametrize("layer", LESSONS)
def test_the_cases_are_drawn_anew_for_each_seed_and_deal_every_switch_combination_and_size_of_1(layer):
    settings = random_settings(LESSONS[layer], 1)
    assert settings[0] == PLAIN and len(settings) == CASES + 1 and settings == random_settings(LESSONS[layer], 1)
    assert not {*settings[1:]} & {*random_settings(LESSONS[layer], 2)}
    switches = LESSONS[layer].switches
    dealt = {tuple(each.has(switch) for switch in switches[:DEALT]) for each in settings[1:]}
    assert len(dealt) == 2 ** len(switches[:DEALT])
    assert all({each.has(switch) for each in settings} == {True, False} for switch in switches)
    assert {each.n_layer for each in settings[1:]} == {1, 2, 3, 4} and len({each.p for each in settings}) == CASES
    for i in range(len(SIZES)):
        assert any(each.sizes[i] == 1 for each in settings), SIZES._fields[i]
    assert sum(each.sizes.C == each.sizes.H > 1 for each in settings) == 1             # D = 1
    for each in settings:
        B, T, C, H = each.sizes[:4]
        assert 1 in (*each.sizes, C // H) or len({*each.sizes, C // H, 3 * C, B * T}) == len(each.sizes) + 3
        assert all(true is None or np.isfinite(true).all() for true in Case(layer, each).results.values())


@pytest.mark.parametrize("layer", LESSONS)
def test_solved_files_are_right_and_untouched_ones_right_so_far(layer, tmp_path):
    lesson = lesson_named(layer)
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
    text = level_text(lesson_named("layernorm"), 2, "mine.py")
    text = text.replace("  dxhat = ...", "  dxhat = dy + weight")
    text = text.replace("dbias = ...", "dbias = dy.sum(axis=(0, 1)) if has_bias else None")
    report, line = judged("layernorm", text, tmp_path)
    assert report.first == line("dxhat = dy +") and not report.right
    found = {each.name: (each.verdict, said(each)) for each in report.lines}
    assert found["dbias"] == (OK, []) and found["dxhat"] == (WRONG, [UNKNOWN])
    assert report.to_do == [*map(line, ("dweight = ...", "mean_dxhat = ...", "mean_dxhat_xhat = ...", "dx = ..."))]


@pytest.mark.parametrize(("layer", "old", "new", "at", "says"), [
    ("layernorm", "mean_dxhat = dxhat.mean(axis=-1,", "mean_dxhat = dxhat.mean(axis=0,", "mean_dxhat = ",
     "axis 0 instead of axis -1"),
    ("linear", "rows = x.reshape(-1, x.shape[-1])  ", "rows = x.reshape(x.shape[-1], -1)  ", "rows = x.reshape(x.",
     "x.shape[-1] and -1 are swapped"),
    ("layernorm", "= dxhat.mean(axis=-1, keepdims=True)", "= dxhat.sum(axis=0, keepdims=True) ** 2", None, "look at"),
])
def test_a_mistake_that_only_spoils_a_missing_line_is_found(layer, old, new, at, says, tmp_path):
    """The package's code in place of the missing line gets wrong values: from which of the finished lines?"""
    text = level_text(lesson_named(layer), 1, "mine.py")
    begin = text.index("def " + lesson_named(layer).backward.__name__)
    assert text.count(old, begin) == 1
    report, line = judged(layer, text[:begin] + text[begin:].replace(old, new), tmp_path)
    if at is None:          # the cause has no name: that there is one is said
        assert report.sound and says in report.notes[0] and "right so far" not in report_text(report, "title")
    else:
        found = [text for each in (*report.faults, *report.lines) for text in said(each)]
        assert report.first == line(at) and len(found) == 1 and found[0].startswith(says)


def test_the_evidence_is_the_worst_value_beside_the_central_difference(tmp_path):
    text = solved(lesson_named("linear"), 3).replace("dy_rows @ weight.T", "2.0 * (dy_rows @ weight.T)")
    report, line = judged("linear", text, tmp_path)
    [wrong, follows] = [each for each in report.lines if each.verdict == WRONG]
    case = cases("linear")[0]
    true = case.results["dx"].reshape(20, 6)
    at = np.unravel_index(np.abs(true).argmax(), true.shape)
    assert wrong.line == line("drows = 2.0") and said(wrong) == ["the factor 2.0 does not belong there"]
    assert str(wrong.evidence[0]) == (
        f"drows[{at[0]}, {at[1]}] is {2.0 * true[at]:.5g}, the central difference "
        f"{true[at]:.5g}, ratio 2"
    )
    assert said(follows) == [f"may follow from line {wrong.line}"]


@pytest.mark.parametrize(
    ("layer", "old", "new", "name"),
    [
        ("linear", "dy_rows.sum(axis=0)", "dy_rows.mean(axis=0)", "a mean instead of a sum"),
        ("layernorm", "dxhat = dy * weight", "dxhat = dy", "the factor weight is missing"),
        (
            "layernorm",
            "dxhat.mean(axis=-1, keepdims=True)",
            "dxhat.mean(axis=-1)",
            "keepdims=True is missing",
        ),
        (
            "attention",
            "dk = dscores.swapaxes(-1, -2) @ q",
            "dk = dscores.swapaxes(-1, -2) @ k",
            "uses k instead of q",
        ),
        (
            "embedding",
            "np.add.at(dwte, idx, dtoken)",
            "dwte[idx] += dtoken",
            "only the last gradient is kept of an index",
        ),
    ],
)
def test_a_mistake_has_a_name(layer, old, new, name, tmp_path):
    text = solved(lesson_named(layer), 3)
    report, line = judged(layer, text.replace(old, new), tmp_path)
    assert (
        text.count(old) == 1
        and report.first == line(new)
        and said(report.wrong[0])[0].startswith(name)
    )


def test_an_unknown_mistake_may_be_above_the_first_line_that_is_known_to_be_wrong(tmp_path):
    mistakes = wrong(("-(dxhat", "np.sin(dxhat"), ("* 0.5", "* 0.25"), of="the longest way")
    text = "import numpy as np\n" + source("layernorm", mistakes)
    report, line = judged("layernorm", text, tmp_path)
    first = next(each for each in report.lines if each.line == report.first)
    assert report.first == line("dvar = ") and said(first) == [UNKNOWN]
    above = "{} or {}".format(*(line(part) for part in ("std = 1", "dstd = ")))        # centred is right
    assert f"the mistake is in this line or in line {above}, or a line" in str(first.evidence[-1])


@pytest.mark.parametrize(("layer", "old", "new", "case"), [
    ("gpt", "in reversed(range(config.n_layer))", "in (1, 0)", "B = 4, T = 5, C = 6, n_layer = "),
    ("gelu_tanh", "    return dx", "    if x.shape[-1] not in (6, 10):\n        dx = -dx\n    return dx", "x ("),
    ("difference", "slope = (up - down) / (2.0 * h)", "slope = (up - down) / 2e-5", "x (5, 6)"),
    ("linear", "dx = drows.reshape(x.shape)", "dx = drows.reshape(x.shape).squeeze()", "x ("),
    ("gpt", "    return {", "    dwpe *= config.n_layer > 1\n    return {", "C = 6, n_layer = 1"),
])
def test_what_is_right_in_the_plain_case_only_is_refused_in_the_case_that_it_needs(layer, old, new, case, tmp_path):
    """Sizes of 1 are shown only if the mistake needs one."""
    text = solved(lesson_named(layer), 3)
    for seed in (SEED, SEED + 1):
        (tmp_path / "mine.py").write_text(text.replace(old, new))
        report = judge_file(layer, tmp_path / "mine.py", seed)
        assert text.count(old) == 1 and not report.right and case in report.case, report.case
        assert "squeeze" in new or not re.search(r"\b[BTCHVFP] = 1\b|[(, ]1[,)]", report.case), report.case


FORMS = """
def body(dy, cache):
    x, a, u, y = cache
    du = dy * y * np.cos(u)
    return du * a, du * x

class Backward:
    def __call__(self, dout, kept):
        return body(dout, kept)

class Box:
    pass
"""


@pytest.mark.parametrize("form", [
    "chain_backward = Backward()",
    "if True:\n    def chain_backward(dout: np.ndarray, cache: tuple) -> tuple:\n        return body(dout, cache)",
    "@functools.lru_cache(0)\ndef chain_backward(dy, /, cache=None, *more):\n    return body(dy, cache)",
    "def chain_backward(dy, cache):\n    x, a, u, y = cache\n    dx = np.zeros_like(x)\n    da = np.zeros_like(x)\n"
    "    box = Box()\n    box.w = np.zeros_like(x)\n    du = dy * y * np.cos(u)\n    box.w[...] += du * a\n"
    "    for i in range(dx.size):\n        dx.flat[i] = box.w.flat[i]\n    da.T[...] = (du * x).T\n    return dx, da",
])
def test_any_python_that_computes_it_is_right(form, tmp_path):
    report, _ = judged("chain", f"import functools\nimport numpy as np\n{FORMS}\n{form}\n", tmp_path)
    assert report.right and report.lines, report
    assert bool(report.notes) == ("def chain_backward" not in form or "@" in form)


@pytest.mark.parametrize(
    "form",
    [
        "chain_backward = print",
        "def chain_backward(dy, cache):\n    yield body(dy, cache)",
        "def chain_backward(dy):\n    return dy, dy",
        "chain_backward = lambda dy, cache: (-body(dy, cache)[0], dy)",
    ],
)
def test_other_forms_that_are_wrong_are_refused(form, tmp_path):
    report, _ = judged("chain", f"import numpy as np\n{FORMS}\n{form}\n", tmp_path)
    assert not report.right and len(report.wrong) > 0
    assert hunt_text(report, "title").startswith("title: the bug is still there")


def test_the_names_are_free_and_only_the_results_decide(tmp_path):
    old = "drows = dlogit_rows @ weight"
    text = solved(lesson_named("head"), 3).replace(old, "drows = 3.0 * (dlogit_rows @ weight)")
    report, line = judged("head", text.replace("dx = drows.reshape", "dx = (drows / 3.0).reshape"), tmp_path)
    assert report.right and report.notes == [
        f"line {line('drows = 3.0')}: drows is not the gradient of rows, but the results are right"]


def test_prints_are_seen_once_although_the_lines_run_often(tmp_path, capsys):
    text = solved(lesson_named("layernorm"), 3).replace("    C = xhat", "    print('here')\n    C = xhat")
    assert judged("layernorm", text, tmp_path)[0].right and capsys.readouterr().out == "here\n"
    assert not judged(
        "layernorm", text.replace("dxhat = dy * weight", "dxhat = dy / weight"), tmp_path
    )[0].right
    assert capsys.readouterr().out == "here\n"


@pytest.mark.parametrize("statement", [
    "while dx is None:\n        pass", "import os"])
def test_functions_that_cannot_be_rerun_are_judged_by_their_numbers(statement, tmp_path):
    text = solved(lesson_named("dropout"), 3).replace("dy * mask", "dy + mask").replace(
        "    return dx", f"    {statement}\n    return dx")
    report, line = judged("dropout", text, tmp_path)
    assert report.lines[0].line == line("dx = dy") and said(report.lines[0]) == [UNKNOWN]

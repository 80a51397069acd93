"""`npgpt exercise`: what it writes, what `check` says of good and bad files, hints, bugs and the progress."""

import copy
import dataclasses
import json
import re
import runpy
from pathlib import Path

import pytest

from npgpt.study.exercises.bugs import bug_layers, bug_text
from npgpt.study.exercises.exercise import (
    Step,
    level_text,
    levels_of,
    read_exercise,
    without_explanations,
)
from npgpt.study.exercises.mathematics import read_notes
from npgpt.study.exercises.path import path_of
from npgpt.study.exercises.progress import Progress
from npgpt.study.gradcheck.check import check_lesson, relative_error
from npgpt.study.gradcheck.flow import Flow
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.truth import cases
from npgpt.study.gradcheck.verdicts import OK
from npgpt.study.judge.hints import hints, next_hint
from npgpt.study.judge.report import report_text
from npgpt.study.lessons.table import LESSONS, lesson_named
from tests.helpers.runs import refused
from tests.study.judge.solutions import judge_file, solved

LINEAR = lesson_named("linear")
LONG_WAYS = {name: lesson.long_way for name, lesson in LESSONS.items() if lesson.long_way}


@pytest.mark.parametrize("layer", LESSONS)
def test_files_leave_out_the_lines_of_their_level_and_reveal_no_answer(layer):
    missing = []
    for what in levels_of(layer):
        lesson, level = Step(layer, what).lesson, Step(layer, what).level
        backward = without_explanations(lesson, list(read_source(lesson.backward).lines))
        text = level_text(lesson, level, "file.py")
        assert text.startswith(f"# npgpt exercise: {layer}, {what}\n")
        assert "\n".join(read_source(lesson.forward).lines) in text
        written = text[text.index(f"def {lesson.backward.__name__}("):]
        missing.append(len([line for line in backward if line not in written.split("\n")]))
        comments = [line for line in backward if line.strip().startswith("# ")]
        assert all((line in written) == (level < 3) for line in comments) and "..." in written
        assert {line.strip(" #") for line in comments} <= {*Flow(lesson.forward, lesson.backward).code.values()}
    if layer in LONG_WAYS:
        assert path_of(layer)[:2] == [Step(layer, "long way"), Step(layer, "level 1")] and missing.pop(0) >= 4
    assert missing[0] == 1 and missing == sorted(set(missing))


@pytest.mark.parametrize("layer", LONG_WAYS)
def test_a_long_way_has_a_right_gradient_for_every_variable(layer):
    """In all cases; the loss does not depend on probs, and count is a constant."""
    for case in cases(layer, seed=2)[:9]:
        long_way, known = dataclasses.replace(case.lesson, backward=LONG_WAYS[layer]), truth(case.lesson)
        checks = check_lesson(long_way, known=known)
        assert {each.variable for each in checks if each.verdict != OK} <= {"probs", "count"}
        result = long_way.run_backward(known.dy, known.cache)
        assert all(relative_error(result[f"d{name}"], true) < 1e-9 for name, true in known.inputs.items())


def test_from_the_list_to_the_solution_and_back(npgpt):
    def state():
        return npgpt("exercise")[1].split("\n")[1 + [*LESSONS].index("linear")].split()

    assert state() == ["linear", "-", "-", "-", "-"]
    file = Path("exercises/linear-level1.py")
    assert f"npgpt exercise check {file}" in npgpt("exercise", "linear")[1]
    refused(npgpt("exercise", "linear"), "exercises/linear-level1.py exists")
    text = file.read_text()
    number = text[:text.index("dweight = ...")].count("\n") + 1
    code, out, _ = npgpt("exercise", "check", file)
    assert code == 1 and f"right so far; still to be written: line {number}\n" in out and out.count(" ok") == 4
    wrong = text.replace("dweight = ...", "dweight = dy_rows.T @ rows")
    file.write_text(wrong)
    code, out, _ = npgpt("exercise", "check", file)
    assert code == 1 and f"line {number}  dweight  WRONG\n" in out and f"the first wrong line is {number}" in out
    assert "transposed" not in out and state()[1] == "tried"
    file.write_text(solved(LINEAR, 1).replace("x.shape[-1])  ", "x[..., 0].size * 0 + x.shape[-1])  "))     # no blank
    code, out, _ = npgpt("exercise", "check", file)
    assert code == 0 and "right: every gradient" in out
    progress = Path("exercises/progress.json")
    day = json.loads(progress.read_text())["exercises"]["linear level 1"]["solved"]
    progress.write_text(progress.read_text().replace(day, "2025-01-02"))
    file.write_text(wrong)
    assert npgpt("exercise", "check", file)[0] == 1 and state()[1] == "2025-01-02"     # kept


def test_hints_come_one_at_a_time_and_are_remembered(npgpt):
    npgpt("exercise", "linear", "--level", "2")
    file = Path("exercises/linear-level2.py")
    found = [npgpt("exercise", "check", file, "--hint")[1] for _ in range(4)]
    assert found[0] == "hint 1 of 3: look at the forward's line: y_rows = y_rows + bias\n"
    assert found[1] == f"hint 2 of 3: {read_notes(LINEAR)['dbias'].hint}\n"
    assert found[2] == found[3] and "dy_rows.sum(axis=0) if has_bias else None" in found[2]
    assert "tried, 3 hints" in npgpt("exercise")[1]
    file.write_text(solved(LINEAR, 2))
    assert "no hint is needed" in npgpt("exercise", "check", file, "--hint")[1]


DROWS = "drows = dy_rows @ weight.T"


@pytest.mark.parametrize(("layer", "changes", "first", "last"), [
    ("linear", {"dbias = ...": "dbias = dy_rows.sum(axis=0) if has_bias else None"},
     "hint 1 of 3: look at the forward's line: y_rows = rows @ weight", "the package writes: dweight = "),
    ("linear", {DROWS: "drows = -(dy_rows @ weight.T)"}, "hint 1 of 4: its sign is wrong", DROWS),
    ("embedding", {"dposition = ...": "dposition = dx.sum(axis=0)", "dwpe[:T] = ...": "dwpe[:T] = 2.0 * dposition"},
     "hint 1 of 4: ", "dwpe[:T] = dposition"),      # the line that fills the array, not the one that makes it
    ("gpt", {"= ops.layernorm_backward(dx, ln_f)": "= ops.layernorm_backward(-dx, ln_f)"}, "hint 1 of ",
     "dx, dln_f_weight, dln_f_bias = ops.layernorm_backward"),
])
def test_the_first_hint_is_the_mistake_or_the_line_to_look_at(layer, changes, first, last, tmp_path):
    """The verdict does not tell the mistake."""
    lesson, file, progress = lesson_named(layer), tmp_path / "mine.py", Progress(tmp_path)
    text = level_text(lesson, 2, "mine.py")
    for old, new in changes.items():
        text = (text if old in text else solved(lesson, 2)).replace(old, new)
    file.write_text(text)
    report = judge_file(layer, file)
    said = [next_hint(read_exercise(file), progress, 1.0, report) for _ in range(4)]
    assert said[0].startswith(first) and last in said[-1]
    mistake = said[0].partition(": ")[2]
    assert "1 of 3" in said[0] or mistake not in report_text(report, "title", with_mistakes=False)
    assert "1 of 3" in said[0] or mistake in report_text(report, "title")


def test_a_seed_repeats_the_random_cases(npgpt):
    rare = SOLUTION.replace("dy_rows.sum(axis=0)", "dy_rows.sum(axis=0) * (1 + (dy.shape[0] > 4))")
    Path("mine.py").write_text(rare)        # right in the plain case
    out = npgpt("exercise", "check", "mine.py")[1]
    seed = re.search(r"wrong with .*\(--seed (\d+)\)", out)[1]
    assert f"for a hint: npgpt exercise check mine.py --hint --seed {seed}\n" in out
    assert npgpt("exercise", "check", "mine.py", "--seed", seed)[1] == out


@pytest.fixture
def linear(npgpt):
    """Check a changed solution of linear: linear("return", "return None, ") -> exit code, output, errors."""
    def run(old, new, *flags):
        assert old in SOLUTION
        Path("mine.py").write_text(SOLUTION.replace(old, new))
        return npgpt("exercise", "check", "mine.py", *flags)

    return run


RETURN = "    return dx, dweight, dbias"
SOLUTION = solved(LINEAR, 3)


@pytest.mark.parametrize(("old", "new", "says"), [
    ("    x, weight, has_bias = cache", "    x, weight, has_bias = = cache", "mine.py, line {0}: invalid syntax"),
    ("def linear_backward", "def my_backward", "mine.py: there is no linear_backward after the file has run"),
    ("# npgpt exercise: linear", "# npgpt exercise: gtp", "mine.py is not an exercise file"),
    ("(n_in", "\0", "null bytes"),
])
def test_bad_solutions_are_refused_in_one_line(linear, old, new, says):
    line = SOLUTION[:SOLUTION.index(old)].count("\n") + 1
    refused(linear(old, new), says.format(line))


def test_wrong_files_and_flags_are_refused(npgpt, tmp_path):
    (tmp_path / "latin.py").write_bytes(b"# npgpt exercise: linear, level 1\n# \xe9\n")
    (tmp_path / "deep.py").write_text(f"# npgpt exercise: linear, level 1\n{'-' * 50000}1")
    for arguments, *says in (
            (["check", "nowhere.py"], "nowhere.py: No such file or directory"),
            (["check", tmp_path], "is not a regular file"),
            (["check", "latin.py"], "latin.py, line 2: not UTF-8 text"),
            (["check", "deep.py"], "deep.py: it cannot be parsed"),
            (["relu"], "relu", "layernorm"),
            (["dropout", "--level", "2"], "--level 2: dropout has level 1"),
            (["linear", "--level", "long"], "--level long: linear has level 1, level 2, level 3"),
            (["bug", "dropout"], "invalid choice: 'dropout'")):
        refused(npgpt("exercise", *arguments), *says)


def test_an_unprintable_error_is_one_short_line(linear):
    code, out, err = linear(RETURN, "    raise ValueError('\\x1b[31m' + 'a' * (2 << 20))")
    assert code == 1 and err == "" and "ValueError: \\x1b[31maaa" in out
    assert len(out) < 1000 and "\x1b" not in out


def test_what_a_solution_prints_is_shown_up_to_a_limit_and_without_escape_codes(linear):
    code, out, err = linear(RETURN, "    print('\\x1b[31m\\tred\\n' + 'a' * (8 << 20))\n" + RETURN)
    assert code == 0 and "right: every gradient" in out
    assert err.startswith("\\x1b[31m\tred\naaa") and "\x1b" not in err and len(err) < 70000
    assert err.endswith("aaa\n[more output left out]\n")


def test_damaged_progress_is_refused_and_kept(npgpt):
    content = '{"exercises": {"linear level 1": {"tries": 1, "hints": {"dx": -1}}}}'
    Path("exercises").mkdir()
    Path("exercises/progress.json").write_text(content)
    refused(npgpt("exercise"), "exercises/progress.json is damaged", "delete it")
    assert Path("exercises/progress.json").read_text() == content


@pytest.mark.parametrize(
    ("layer", "key", "names"),
    [
        ("layernorm", "mean_dxhat", "mean centred var rstd xhat"),
        ("layernorm", "dxhat", "y"),
        ("attention", "kept", ""),
        ("twice", "dx", "u v"),
        ("gpt", "dwte", "x logits"),
    ],
)
def test_the_first_hint_has_all_lines_that_a_line_undoes(layer, key, names):
    """A fused gradient undoes several, a sum of parts those of its parts, and a recomputed variable none."""
    assert re.findall(r"(?<=[:;] )\w+", hints(lesson_named(layer), key)[0]) == names.split()


@pytest.mark.parametrize("layer", bug_layers())
def test_a_bug_is_one_line_with_wrong_gradients(layer, tmp_path):
    lesson, case, file = lesson_named(layer), cases(layer)[0], tmp_path / "bug.py"
    name = lesson.backward.__name__
    right = level_text(lesson, 3, file, list(read_source(lesson.backward).lines))
    for seed in range(3):
        text = bug_text(lesson, seed, file)
        file.write_text(text)
        results = lesson.run_backward(*copy.deepcopy((case.dy, case.cache)), runpy.run_path(str(file))[name])
        assert max(relative_error(results[each], true) for each, true in case.results.items()) > 1e-3
        both = (each.partition(f"def {name}")[2].split("\n") for each in (right, text))
        [(old, new)] = [lines for lines in zip(*both, strict=True) if len({*lines}) > 1]
        comment = old.find("  # ")
        assert comment < 0 or new[comment:] == old[comment:]        # it has not moved


def test_a_bug_is_found_if_the_file_is_right(npgpt):
    code, out, _ = npgpt("exercise", "bug", "layernorm", "--seed", "2")
    file = Path("exercises/layernorm-bug2.py")
    assert code == 0 and str(file) in out
    code, out, _ = npgpt("exercise", "check", file)
    assert code == 1 and "the bug is still there" in out and "line" not in out.partition("there")[2]
    right = "\n".join(read_source(LESSONS["layernorm"].backward).lines)
    file.write_text(f"{file.read_text().partition('def layernorm_backward')[0]}{right}\n")
    code, out, _ = npgpt("exercise", "check", file)
    assert code == 0 and "fixed" in out
    assert npgpt("exercise")[1].split("\nlayernorm")[1].split("\n")[0].split()[-1] == "1"

"""`npgpt exercise`: what it writes, what `check` says of files, hints, bugs and the progress."""

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from npgpt.study.exercises.exercise import (
    Step,
    bug_layers,
    levels_of,
    package_statements,
    read_exercise,
    step_text,
    without_explanations,
)
from npgpt.study.exercises.progress import Progress
from npgpt.study.gradcheck.check import check_lesson, relative_error
from npgpt.study.gradcheck.flow import undone
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.truth import cases
from npgpt.study.gradcheck.verdicts import OK
from npgpt.study.judge.hints import next_hint
from npgpt.study.judge.report import report_text
from npgpt.study.lessons.table import LESSONS, lesson_named
from tests.helpers.runs import refused
from tests.study.judge.solutions import changed, each_of, judge_file, play, solved

SOLUTION = solved(lesson_named("linear"), 3)
LONG_WAYS = {name: lesson.long_way for name, lesson in LESSONS.items() if lesson.long_way}
SESSIONS = r"""
# from the list to the solution and back
exercises/progress.json : {"exercises": {"linear level 1": {"tries": 1, "hints": {"dx": -1}}}}
2$ exercise
  exercises/progress.json is damaged
  delete it
exercises/progress.json : {"exercises": {"layernorm step 2": {"solved":"", "tries":1, "hints":{}}}}
$ exercise
  layernorm       1 of 5 steps
$ exercise linear
  npgpt exercise check exercises/linear-level1.py
2$ exercise linear
  exercises/linear-level1.py exists
exercises/linear-level1.py = linear blank1 | dweight = ... => dweight = ...
1$ exercise check exercises/linear-level1.py
  right so far; still to be written: line {line}\n
  dx       ok
exercises/linear-level1.py = linear blank1 | dweight = ... => dweight = dy_rows.T @ rows
1$ exercise check exercises/linear-level1.py
  line {line}  dweight  WRONG\n
  the first wrong line is {line}\n
  not another order
$ exercise
  linear                                tried
exercises/linear-level1.py = linear 1
$ exercise check exercises/linear-level1.py
  right: every gradient is the true one, in
exercises/progress.json ~ "solved": "[\d-]+" => "solved": "2025-01-02"
exercises/linear-level1.py = linear 1 | dy_rows @ weight.T => dy_rows
1$ exercise check exercises/linear-level1.py
$ exercise
  linear                                2025-01-02

# hints come one at a time and are remembered
$ exercise linear --level 2
$ exercise check exercises/linear-level2.py --hint
  hint 1 of 3: The bias was added to every row
$ exercise check exercises/linear-level2.py --hint
  hint 2 of 3: as a formula: dbias[j] = ∑_(n,l) dy_rows[n,l] δ[l,j] = ∑_n dy_rows[n,j]\n
$ exercise check exercises/linear-level2.py --hint
  hint 3 of 3: The answer: dbias = dy_rows.sum(axis=0) if has_bias else None
$ exercise check exercises/linear-level2.py --hint
  hint 3 of 3: The answer: dbias = dy_rows.sum(axis=0) if has_bias else None
$ exercise
  tried, 3 hints
exercises/linear-level2.py = linear 2
$ exercise check exercises/linear-level2.py --hint
  no hint is needed

# a seed repeats the random cases
mine.py = linear | dy_rows.sum(axis=0) => dy_rows.sum(axis=0) * (1 + (dy.shape[0] > 4))
1$ exercise check mine.py --seed 7
  (--seed 7): the first wrong line is {line}\n
  wrong with x (5, 5, 12)
  for a hint: npgpt exercise check mine.py --hint --seed 7\n

# a bug is found if the file is right
$ exercise bug layernorm --seed 2
  exercises/layernorm-bug2.py
1$ exercise check exercises/layernorm-bug2.py
  the bug is still there; wrong: dx
  not line
exercises/layernorm-bug2.py = layernorm
exercises/layernorm-bug2.py ~ layernorm, level 3 => layernorm, bug 2
$ exercise check exercises/layernorm-bug2.py
  fixed
$ exercise
  -                     1\n

# bad files and flags are refused in one line
2$ exercise check nowhere.py
  nowhere.py: No such file or directory
2$ exercise check .
  is not a regular file
2$ exercise check text.txt
  is not an exercise file
mine.py : # npgpt exercise: linear, level 1\nx = = 1
2$ exercise check mine.py
  mine.py, line 2: invalid syntax
mine.py : # npgpt exercise: linear, level 1\ndef my_backward(): pass
2$ exercise check mine.py
  mine.py: there is no linear_backward after the file has run
mine.py : # npgpt exercise: gtp, level 1
2$ exercise check mine.py
  mine.py is not an exercise file
2$ exercise relu
  relu
  layernorm
2$ exercise dropout --level 2
  dropout has no level 2: choose 1
2$ exercise linear --level long
  linear has no level long: choose 1, 2, 3
2$ exercise bug dropout
  invalid choice: 'dropout'
"""
BAD = {
    b"# \xe9\n": "mine.py, line 2: not UTF-8 text",
    b"-" * 50000 + b"1": "mine.py: it cannot be parsed",
    b"\0": "null bytes",
}
# exercise | changes | the first hint | in the last one
HINTS = """
linear blank2 | dbias = ... => dbias = dy_rows.sum(axis=0) if has_bias else None | hint 1 of 3: \
The gradient of one factor of a matmul | The answer: dweight =
linear 2 | dy_rows @ weight.T => -(dy_rows @ weight.T) | hint 1 of 4: its sign is wrong | \
drows = dy_rows @ weight.T
embedding blank2 | dposition = ... => dposition = dx.sum(axis=0) @@ dwpe[:T] = ... => dwpe[:T] = \
2.0 * dposition | hint 1 of 4: every entry is 2 times the true one | dwpe[:T] = dposition
embedding 1 | np.add.at(dwte, idx, dtoken) => dwte[idx] += dtoken | hint 1 of 4: an index that \
occurs twice keeps only its last gradient | The answer: np.add.at(dwte, idx, dtoken)
embedding 1 | np.add.at(dwte, idx, dtoken) => dwte[idx] += token | hint 1 of 4: `token` is a \
variable of the forward that is not in the cache | The answer: np.add.at(dwte, idx, dtoken)
gpt 2 | ops.layernorm_backward(dx, ln_f) => ops.layernorm_backward(-dx, ln_f) | hint 1 of | \
dx, dln_f_weight, dln_f_bias = ops.layernorm_backward
"""
UNDONE = """
layernorm mean_dxhat: mean centred var rstd xhat
layernorm dxhat: y
attention kept:
twice dx: u v
gpt dwte: x logits
"""


@each_of(SESSIONS)
def test_a_session(session, npgpt, train):
    play(session, npgpt, train)


@pytest.mark.parametrize("layer", LESSONS)
def test_files_leave_out_the_lines_of_their_level_and_reveal_no_answer(layer):
    missing = []
    for step in (Step(layer, what) for what in levels_of(layer)):
        lesson, text = step.lesson, step_text(step, "file.py")
        backward = without_explanations(lesson, [*read_source(lesson.backward).lines])
        assert text.startswith(f"# npgpt exercise: {layer}, {step.what}\n")
        assert "\n".join(read_source(lesson.forward).lines) in text
        written = text[text.index(f"def {lesson.backward.__name__}(") :]
        assert "..." in written
        assert not re.search(r"(?m)^ *[^#\s][^#\n]*# .*[^)]$", written)  # shapes only
        for line in backward:
            if line.strip().startswith("# "):  # a line of the forward
                assert (line in written) == (step.what != "level 3")
        if "step" in step.what:
            assert len(step.left_out) == 1
        else:
            missing.append(len({*backward} - {*written.split("\n")}))
    if layer in LONG_WAYS:
        assert missing.pop(0) >= 4
    assert missing[0] == 1 and missing == sorted({*missing})


@pytest.mark.parametrize("layer", LONG_WAYS)
def test_a_long_way_has_a_right_gradient_for_every_variable(layer):
    """The loss does not depend on probs, and count is a constant."""
    for case in cases(layer, seed=2)[:4]:
        long_way = dataclasses.replace(case.lesson, backward=LONG_WAYS[layer])
        checks = check_lesson(long_way, known=truth(case.lesson))
        assert {each.variable for each in checks if each.verdict != OK} <= {"probs", "count"}


@pytest.mark.parametrize("row", HINTS.strip().split("\n"))
def test_the_first_hint_is_the_mistake_or_the_rule(row, tmp_path):
    """The verdict does not tell the mistake."""
    layer, changes, first, last = row.split(" | ")
    file, progress = tmp_path / "mine.py", Progress(tmp_path)
    file.write_text(changed(layer, changes)[0])
    report = judge_file(layer.split()[0], file)
    said = [next_hint(read_exercise(file), progress, 1.0, report) for _ in range(4)]
    assert said[0].startswith(first) and last in said[-1]
    mistake = said[0].partition(": ")[2]
    for with_mistakes in (False, True) * ("of 3" not in said[0]):
        assert (mistake in report_text(report, "", with_mistakes)) == with_mistakes


@pytest.mark.parametrize("row", UNDONE.strip().split("\n"))
def test_a_line_undoes_lines_of_the_forward(row):
    """A fused gradient undoes several, a sum those of its parts, a recomputed variable none."""
    layer, key, *names = row.replace(":", "").split()
    lesson = lesson_named(layer)
    line = read_source(lesson.backward).first + package_statements(lesson)[key].lineno - 1
    assert [each.split()[0].strip(",") for each in undone(lesson, line).values()] == names


def test_what_a_solution_prints_is_short_and_without_escape_codes(npgpt):
    line = r"print('\x1b[31m\tred\n' + 'a' * (1 << 20))"
    Path("mine.py").write_text(SOLUTION.replace("    return dx", f"    {line}\n    return dx"))
    code, out, err = npgpt("exercise", "check", "mine.py")
    assert code == 0 and "right: every" in out and len(err) < 70000
    assert err.startswith("\\x1b[31m\tred\naaa")
    assert err.endswith("aaa\n[more output left out]\n")


def test_what_is_no_python_is_refused(npgpt):
    for content, says in BAD.items():
        Path("mine.py").write_bytes(b"# npgpt exercise: linear, level 1\n" + content)
        refused(npgpt("exercise", "check", "mine.py"), says)


@pytest.mark.parametrize("layer", bug_layers())
def test_a_bug_is_one_line_with_wrong_gradients(layer, tmp_path):
    lesson, case, file = lesson_named(layer), cases(layer)[0], tmp_path / "bug.py"
    right = without_explanations(lesson, [*read_source(lesson.backward).lines])
    for seed in range(3):
        file.write_text(text := step_text(Step(layer, f"bug {seed}"), file))
        bug = runpy.run_path(str(file))[lesson.backward.__name__]
        made = lesson.named(lesson.apply(bug, case.arguments()))
        assert any(relative_error(made[name], true) > 1e-3 for name, true in case.results.items())
        lines = zip(right, text.strip().split("\n")[-len(right) :], strict=True)
        [(old, new)] = [each for each in lines if len({*each}) > 1]
        assert old.partition("  # ")[2] == new.partition("  # ")[2]

"""The per-line gradient check: every line of every forward is covered, and a planted bug is found
at its line.
"""

import dataclasses
import functools
import inspect
import linecache
import re
import sys

import pytest

from npgpt.study.gradcheck.check import check_lesson, first_wrong
from npgpt.study.gradcheck.measure import exact, truth
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.gradcheck.verdicts import CONSTANT, FUSED, OK, WRONG
from npgpt.study.lessons import table
from npgpt.study.lessons.setting import SIZES, Setting
from tests.helpers.runs import refused

SMALL = Setting(step=1e-20, sizes=SIZES._replace(B=2, T=3, C=8, V=7, S=5))
LESSONS = {each.name: each for each in table.chosen_lessons("all", SMALL)}
known = functools.cache(lambda name: truth(exact(LESSONS[name])))
LIMITED = "gelu_tanh", "gelu_exact", "mlp", "block", "gpt"  # to 16 digits, by rounded constants


@pytest.mark.parametrize("name", LESSONS)
def test_every_line_of_every_forward_is_verified(name):
    """None is left out: found when the forward returns."""
    lesson, held = exact(LESSONS[name]), {}

    def profile(frame, event, _):
        if frame.f_code is lesson.forward.__code__ and event == "return":
            held.update(frame.f_locals)

    sys.setprofile(profile)
    try:
        lesson.run_forward(lesson.inputs)
    finally:
        sys.setprofile(None)
    checks = check_lesson(lesson, known=known(name))
    digits = 16 if name in LIMITED else 35
    assert all(each.digits is None or each.digits >= digits for each in checks)
    floating = {each for each, value in held.items() if is_floating(value)}
    arguments = set(inspect.signature(lesson.forward).parameters)
    assert {each.variable for each in checks} >= floating - arguments | lesson.inputs.keys()
    assert {each.verdict for each in checks} <= {OK, FUSED, CONSTANT}
    verdicts = {each.variable: each.verdict for each in checks}
    said = re.search(r"Fused: ([\w\s,]+?) (?:is|are) skipped", lesson.backward.__doc__)
    skipped = {variable for variable, verdict in verdicts.items() if verdict == FUSED}
    assert {*lesson.skipped} == skipped
    assert {f"d{name}" for name in skipped} == {*re.findall(r"\bd\w+", said[1] if said else "")}
    assert all(verdicts[each.through[1:]] == OK for each in checks if each.verdict == FUSED)


def broken(function, change):
    """The function with a piece of its source replaced, at the same lines of another file."""
    source, (old, new) = inspect.getsource(function), change.split(" => ")
    assert source.count(old) == 1
    text = "\n" * (read_source(function).first - 1) + source.replace(old, new)
    file, names = f"<{new}>", {}
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), dict(function.__globals__), names)
    return names[function.__name__]


# a lesson | a mistake in its backward; torch.autograd.gradcheck accepts the last four
MISTAKES = """
gelu_tanh | dtanh * (1.0 - tanh * tanh) => dtanh * (1.0 - tanh)
embedding | np.add.at(dwte, idx, dtoken) => dwte[idx] += dtoken
gpt | dx, dh[i] = block_backward(dx, => dx, dh[i] = block_backward(2.0 * dx,
gpt | {"weight": dln_f_weight, => {"weight": dln_f_bias,
gpt | dwte = dwte_head + dwte_embedding => dwte = dwte_embedding
twice | dx_through_u + dx_through_v => dx_through_v
layernorm | xhat * mean_dxhat_xhat => \
xhat * mean_dxhat_xhat * C / (xhat * xhat).sum(axis=-1, keepdims=True)
layernorm | dx = rstd * => dx = 1.0 / (1.0 / rstd + 1e-5) *
gelu_tanh | 3.0 * 0.044715 => 3.0 * 0.044716
chain | dv * np.cos(u) => dv * (np.sin(u + 1e-6) - np.sin(u - 1e-6)) / 2e-6
"""


@pytest.mark.parametrize("row", MISTAKES.strip().split("\n"))
def test_a_planted_bug_is_found_at_its_line(row):
    name, change = row.split(" | ")
    backward = LESSONS[name].backward
    wrong = dataclasses.replace(LESSONS[name], backward=broken(backward, change))
    found = first_wrong(check_lesson(exact(wrong), known=known(name)))
    before = inspect.getsource(backward).partition(change.split(" => ")[0])[0]
    statement = read_source(backward).statement_at(read_source(backward).first + before.count("\n"))
    assert found.verdict == WRONG
    since = found.since or found.backward_line
    assert since <= statement.first <= found.backward_line


def test_the_command(npgpt, monkeypatch):
    code, out, _ = npgpt("gradcheck", "layernorm")
    assert code == 0 and out.count("fused, dx\n") == 4 and "0 wrong" in out
    statements = read_source(LESSONS["layernorm"].backward).statements
    line = next(each.first for each in statements if each.targets == ("dweight",))
    assert re.search(rf"\n  weight .* {line} .* ok\n", out)
    refused(npgpt("gradcheck", "layer_norm"), "layernorm")
    refused(npgpt("gradcheck", "linear", "x"), "leave x out")
    for new, code, says in (
        ("-dy_rows @ weight.T", 1, ": drows = "),
        ("dy_rows @ weight", 2, "linear (<dy_rows @ weight>, line"),
    ):
        wrong = broken(LESSONS["linear"].backward, f"dy_rows @ weight.T => {new}")
        lesson = dataclasses.replace(LESSONS["linear"], backward=wrong)
        monkeypatch.setitem(table.LESSONS, "linear", lesson)
        found, out, err = npgpt("gradcheck", "linear")
        assert found == code and says in out + err
        assert code == 2 or "the first wrong line is " in out


def test_without_mpmath_it_is_measured_in_float64(npgpt, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = npgpt("gradcheck", "linear")
    assert code == 0 and "npgpt[study]" in err and "to the central differences" in out

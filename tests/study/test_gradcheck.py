"""The per-line gradient check: every line of every forward is covered, and a planted bug is found at its line."""

import functools
import inspect
import json
import sys

import numpy as np
import pytest

from npgpt.study.gradcheck import CONSTANT, OK, PARTS, SHORT_CUT, WRONG, check, first_wrong, truth
from npgpt.study.lessons import lessons
from npgpt.study.source import read_source
from npgpt.study.trace import recording

LESSONS = lessons()
EACH = pytest.mark.parametrize("name", LESSONS)
known = functools.cache(lambda name: truth(LESSONS[name]))


@EACH
def test_every_line_of_every_forward_is_certified(name):
    checks = check(LESSONS[name], known=known(name))
    assert {each.verdict for each in checks} <= {OK, SHORT_CUT, PARTS, CONSTANT}
    assert all(each.relative < 1e-7 for each in checks if each.verdict == OK)
    assert any(each.verdict == OK for each in checks)


@EACH
def test_nothing_that_a_forward_assigns_is_left_out(name):
    """Found by another way than the tracer: whatever is in the frame when the forward returns."""
    lesson = LESSONS[name]
    checked = {each.variable for each in check(lesson, known=known(name))}
    code, held = inspect.unwrap(lesson.forward).__code__, {}

    def profile(frame, event, _):
        if frame.f_code is code and event == "return":
            held.update(frame.f_locals)

    sys.setprofile(profile)
    try:
        lesson.run_forward(lesson.inputs)
    finally:
        sys.setprofile(None)
    floating = {each for each, value in held.items() if getattr(value, "dtype", np.dtype(int)).kind == "f"}
    arguments = set(code.co_varnames[:code.co_argcount])
    assert floating - arguments <= checked and floating


def test_torch_agrees_on_every_line():
    pytest.importorskip("torch", reason="torch, the second opinion, is in the extra test")
    compared = 0
    for name, lesson in LESSONS.items():
        for each in check(lesson, known=known(name), torch=True):
            if each.torch is not None:
                assert each.torch < 1e-7, (name, each.variable, each.torch)
                compared += 1
    assert compared > 100


@EACH
def test_what_the_short_cuts_skip_is_named_in_the_docstring_and_has_a_way_round(name):
    lesson = LESSONS[name]
    skipped = read_source(lesson.backward).short_cut
    checks = {each.variable: each for each in check(lesson, known=known(name))}
    assert skipped <= set(checks)
    for variable in skipped:
        assert checks[variable].verdict == SHORT_CUT
        through = checks[checks[variable].through[1:]]
        assert through.verdict == OK


def broken(function, old, new):
    """The function with a piece of its source replaced, at the same lines of the same file."""
    function = inspect.unwrap(function)
    lines, first = inspect.getsourcelines(function)
    source = "".join(line for line in lines if not line.startswith("@"))
    assert source.count(old) == 1
    names = {}
    padding = "\n" * (read_source(function).first - 1)
    exec(compile(padding + source.replace(old, new), inspect.getsourcefile(function), "exec"),
         dict(function.__globals__), names)
    return names[function.__name__]


@pytest.mark.parametrize(("name", "old", "new"), [
    ("linear", "drows = dy_rows @ weight.T", "drows = dy_rows @ weight.T * 2.0"),
    ("layernorm", "dxhat = dscaled * weight", "dxhat = dscaled + weight"),
    ("gelu_tanh", "2.0 * phi * (1.0 - phi)", "phi * (1.0 - phi)"),
    ("attention", "datt - dot", "datt"),
    ("softmax_loss", "dlosses = dloss * share", "dlosses = dloss + share"),
    ("self_attention", "dmix = dmerged.reshape", "dmix = -dmerged.reshape"),
])
def test_a_planted_bug_is_found_at_its_line(name, old, new):
    lesson = LESSONS[name]
    backward = broken(lesson.backward, old, new)
    lines = inspect.getsource(inspect.unwrap(lesson.backward)).splitlines()
    first = inspect.unwrap(lesson.backward).__code__.co_firstlineno
    line = next(first + i for i, text in enumerate(lines) if old in text)
    found = first_wrong(check(lesson, backward, known(name)))
    assert found.verdict == WRONG and found.backward_line == line


def test_the_command(npgpt):
    code, out, _ = npgpt("gradcheck", "layernorm")
    assert code == 0 and "mean" in out and "short cut, dx" in out and "0 wrong" in out
    code, out, _ = npgpt("gradcheck", "linear", "--json")
    assert code == 0 and {each["variable"] for each in json.loads(out)} >= {"x", "weight", "bias", "y_rows"}
    code, _, err = npgpt("gradcheck", "layer_norm")
    assert code == 2 and "layernorm" in err and err.count("\n") == 1


def test_the_command_fails_where_a_gradient_is_wrong(npgpt, monkeypatch):
    wrong = broken(LESSONS["linear"].backward, "dy_rows @ weight.T", "-dy_rows @ weight.T")
    lesson = LESSONS["linear"]
    monkeypatch.setattr("npgpt.study.lessons.lessons", lambda: {"linear": type(lesson)(
        lesson.name, lesson.title, lesson.forward, wrong, lesson.inputs, lesson.constants)})
    code, out, _ = npgpt("gradcheck", "linear")
    assert code == 1 and "WRONG" in out and "the first wrong line is " in out and ": drows = " in out


def test_without_scipy_all_but_the_exact_gelu_is_checked(npgpt, monkeypatch):
    for name in ("scipy", "scipy.special"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)      # nor torch, which takes seconds
    code, out, err = npgpt("gradcheck", "all")
    assert code == 0 and "gelu_exact is left out" in err and "npgpt[gelu]" in err and err.count("\n") == 1
    assert "gelu_tanh:" in out and "gelu_exact:" not in out
    code, _, err = npgpt("gradcheck", "gelu_exact")
    assert code == 2 and "npgpt[gelu]" in err


def test_the_tracer_sees_what_the_lines_made():
    lesson = LESSONS["gelu_tanh"]
    with recording([lesson.forward]) as record:
        y, (x, phi) = lesson.run_forward(lesson.inputs)
    by_name = {each.name: each for each in record}
    np.testing.assert_array_equal(by_name["phi"].value, phi)
    np.testing.assert_array_equal(by_name["y"].value, y)
    assert [each.name for each in record] == ["x", "inner", "phi", "y"]
    assert by_name["inner"].line < by_name["phi"].line < by_name["y"].line

"""What a notebook calls: `case`, `check` with its pictures and hints, and `train`; here from a
script.
"""

import inspect
import json

import numpy as np
import pytest

from npgpt import layers, study
from npgpt.study.gradcheck.pictures import Arrays
from npgpt.study.judge.judge import NO_LINES
from tests.helpers.runs import refusing


def wrong(dy, cache):
    xhat, rstd, weight, has_bias = cache
    dbias = dy.sum(axis=(0, 1)) if has_bias else None
    dweight = (dy * xhat).sum(axis=(0, 1))
    dxhat = dy
    mean_dxhat = dxhat.mean(axis=-1, keepdims=True)
    dx = rstd * (dxhat - mean_dxhat - xhat * (dxhat * xhat).mean(axis=-1, keepdims=True))
    return dx, dweight, dbias


def unfinished(dy, cache):
    x, weight, has_bias = cache
    dbias = dy.sum(axis=(0, 1)) if has_bias else None
    dweight = ...
    dx = dy @ weight.T
    return dx, dweight, dbias


def unfinished_in_a_closure(factor):
    def backward(dy, cache):
        x, weight, has_bias = cache
        dx = factor * dy @ weight.T
        return dx, ..., None

    return backward


def test_a_case_has_what_the_backward_needs_and_the_truth():
    one, two = study.case("layernorm"), study.case("layernorm")
    one.inputs["x"][:] = 0.0  # its arrays are its own
    y, cache = two.forward(**two.inputs)
    for found, true in zip(two.backward(two.dy, cache), two.results.values(), strict=True):
        np.testing.assert_array_equal(found, true)
    assert [*two.show()] == ["x", "weight", "bias", "dy", "dx", "dweight", "dbias"]
    assert two.show()._repr_png_()[:4] == b"\x89PNG"


def test_a_picture_survives_what_is_not_finite():
    figure = pytest.importorskip("matplotlib.figure", reason="draws").Figure()
    array = np.array([[1.0, -3.0], [2.0, np.inf], [np.nan, 0.5]])
    Arrays({"dx": array, "zero": np.zeros(2), "number": np.array(-1.5)}).draw(figure)
    titles = [each.get_title() for each in figure.axes]
    assert titles == ["dx (3, 2)", "zero (2,)", "number ()"]
    assert figure.axes[0].images[0].get_clim() == (-3.0, 3.0)


@pytest.mark.slow
def test_a_wrong_gradient_is_shown_beside_the_true_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    checked, case = study.check("layernorm", wrong, seed=3), study.case("layernorm")
    said = repr(checked)
    assert capsys.readouterr().out == f"{said}\n" and "wrong, a backward of layernorm" in said
    assert (checked.right, checked.report.seed) == (False, 3)
    assert "the factor weight is missing" in said
    shown = checked.show("dxhat")
    np.testing.assert_allclose(shown["difference"], case.dy - case.dy * case.inputs["weight"])
    assert not checked.show("dweight")["difference"].any()
    assert [str(checked.hint())[:11] for _ in range(2)] == ["hint 1 of 4", "hint 2 of 4"]
    with refusing("no line computes a gradient called dvar"):
        checked.show("dvar")
    assert not [*tmp_path.iterdir()]  # without a level nothing is noted


def interrupted(dy, mask):
    raise KeyboardInterrupt


def test_check_without_a_source_as_in_a_plain_repl():
    names = {"np": np}
    exec(inspect.getsource(wrong).replace("dxhat = dy\n", "dxhat = dy * weight\n"), names)
    right = study.check("layernorm", names["wrong"])
    assert right.right and "right: every gradient" in repr(right) and NO_LINES in repr(right)
    exec(inspect.getsource(wrong), names)
    checked = study.check("layernorm", names["wrong"])
    assert not checked.right and NO_LINES in repr(checked)
    assert "the central difference" in repr(checked)
    assert study.check("dropout", lambda dy, mask: dy if mask is None else dy * mask).right
    with pytest.raises(KeyboardInterrupt):  # the user's own
        study.check("dropout", interrupted)


def test_blanks_hints_and_what_is_solved_are_those_of_npgpt_learn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checked = study.check("linear", unfinished, level=2)
    line = unfinished.__code__.co_firstlineno + 3
    assert not checked.right and repr(checked).endswith(f"still to be written: line {line}")
    assert checked.hint().startswith("hint 1 of 3: The gradient of one factor")
    assert checked.hint().startswith("hint 2 of 3: as a formula")
    assert "dx  ok" in repr(study.check("linear", unfinished_in_a_closure(1.0)))
    with refusing("dweight yet"):
        checked.show("dweight")
    assert study.check("linear", layers.linear_backward, level=1).right
    checked.hint()  # does not undo what was noted meanwhile
    found = json.loads((tmp_path / "exercises/progress.json").read_text())["exercises"]
    assert found["linear level 2"] == {"tries": 1, "hints": {"dweight": 3}}
    assert "solved" in found["linear level 1"]
    monkeypatch.chdir(tmp_path / "exercises")  # where the notebooks are
    study.check("layernorm", layers.layernorm_backward, level="long")
    assert "layernorm long way" in (tmp_path / "exercises/progress.json").read_text()
    for arguments, says in (
        (("linear", unfinished, 1, "long"), "linear has no level long: choose 1, 2, 3"),
        (("relu", wrong), "there is no layer"),
        (("linear", 3), "needs a function, not int"),
    ):
        with refusing(says):
            study.check(*arguments)


def test_training_with_functions_of_ones_own(capsys, monkeypatch):
    """The package's own give the same bits, a wrong one others, one that fails one line."""

    def mlp_backward(dy, cache, ops):
        raise ValueError("not today")

    monkeypatch.setattr(wrong, "__name__", "layernorm_backward")
    monkeypatch.setattr(unfinished, "__name__", "linear_backward")
    same = study.train(layers.layernorm_backward, layers.cross_entropy_backward, steps=4)
    other = study.train(wrong, steps=4)
    assert same["yours"] == same["npgpt's"] == other["npgpt's"]
    assert other["yours"][1:] != same["yours"][1:]
    assert repr(other).count("4 steps") == 2
    assert study.train(unfinished) is study.train(mlp_backward, steps=2) is None
    written, failed = capsys.readouterr().out.splitlines()
    line = mlp_backward.__code__.co_firstlineno + 1
    assert written == "linear_backward is still to be written"
    assert failed == f"mlp_backward, line {line}: ValueError: not today"
    with refusing("a function to train with must be one of"):
        study.train(layers.lora_backward)

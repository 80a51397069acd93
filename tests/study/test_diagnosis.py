"""The judge on right solutions of every exercise, and on the mistakes that it recognises. In this process: fast."""

import ast
import dataclasses

import pytest

from npgpt.study.exercise import LAYERS, LEVELS
from npgpt.study.gradcheck import WRONG
from npgpt.study.judge import NO_GRADIENT, LearnerError, judge
from npgpt.study.lessons import basics_and_lessons
from tests.study.solutions import function_of, solved

EVERY = pytest.mark.parametrize(("layer", "level"), [(layer, level) for layer in LAYERS for level in LEVELS])


def judged(layer, text, path):
    file = path / "file.py"
    return judge(layer, function_of(text, basics_and_lessons()[layer], file), file)


def line_of(report, variable):
    return next(line for line in report.lines if line.variable == variable)


@EVERY
def test_the_packages_own_lines_in_the_blanks_are_right(layer, level, tmp_path):
    report = judged(layer, solved(basics_and_lessons()[layer], level), tmp_path)
    assert report.right and not report.notes and report.first is None and report.differs == []
    assert all(line.verdict not in (WRONG, NO_GRADIENT) for line in report.lines)
    assert {*report.results} <= {line.variable for line in report.lines}


GENERAL = {
    "-({first})": "its sign is wrong",
    "({first}) / 3.0": "it is 0.333333 times what it should be: the factor 3 is missing",
    "2.5 * ({first})": "the factor 2/5 is missing",
    "0.0 * ({first})": "it is all zeros: the gradient was dropped",
    "({first}).swapaxes(-1, -2)": "transposed",
}


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "gpt"])     # it returns nothing but a tree
def test_general_mistakes_are_recognised_in_every_exercise(layer, tmp_path):
    lesson = basics_and_lessons()[layer]
    head, _, returned = solved(lesson, 3).rpartition("    return ")
    returned = ast.parse(returned.strip()).body[0].value
    first, *rest = map(ast.unparse, returned.elts if isinstance(returned, ast.Tuple) else [returned])
    for mistake, says in GENERAL.items():
        wrong = head + "    return " + ", ".join([mistake.format(first=first), *rest]) + "\n"
        report = judged(layer, wrong, tmp_path)
        found = line_of(report, next(iter(lesson.inputs)))
        assert not report.right and found.verdict == WRONG, mistake
        assert says in found.diagnosis, (mistake, found)


# layer, what is replaced in the package's lines and by what, the variable and what is said about it
SPECIAL = [
    ("linear", "dy_rows.sum(axis=0)", "dy", "bias",
     "its shape is (4, 5, 8), not (8,): the sum over the batch is missing"),
    ("linear", "dy_rows.sum(axis=0)", "dy.sum(axis=0)", "bias", "the sum over the batch is missing"),
    ("linear", "dy_rows.sum(axis=0)", "dy_rows.mean(axis=0)", "bias", "20 rows, a mean instead of a sum"),
    ("linear", "rows.T @ dy_rows  ", "dy_rows.T @ rows  ", "weight", "it is transposed"),
    ("linear", "drows.reshape(x.shape)", "drows", "x", "the numbers are right, it needs a reshape"),
    ("linear", "drows.reshape(x.shape)", "drows.reshape(x.shape) * np.inf", "x", "it holds NaN or infinity"),
    ("gelu_tanh", "dx_outside + dx_inside", "dx_outside", "x", "the term dx_inside is missing"),
    ("gelu_tanh", "dx_outside + dx_inside", "dx_outside - dx_inside", "x", "the term dx_inside has the wrong sign"),
    ("gelu_tanh", "dtanh = dy * (0.5 * x)", "dtanh = dy * x", "tanh", "the factor 1/2 is missing"),
    ("gelu_exact", "dx = dx_outside + dx_inside", "dx = dx_inside", "x", "the term dx_outside is missing"),
    ("gelu_tanh", "dtanh = dy * (0.5 * x)", "dtanh = 0.5 * dy", "tanh", "the factor x is missing"),
    ("layernorm", "(dy * xhat).reshape(-1, C).sum(axis=0)", "dy * xhat", "weight", "the sum over the batch is missing"),
    ("layernorm", "return dx, dweight, dbias", "return dx, dbias, dweight", "weight", "it is dbias"),
    ("layernorm", "dxhat = dy * weight", "dxhat = dy", "xhat", "the factor weight is missing"),
    ("layernorm", "dx = rstd * (", "dx = (", "x", "the factor rstd is missing"),
    ("layernorm", "dx = rstd * (", "dx = rstd * rstd * (", "x", "it has the factor rstd, which does not belong there"),
    ("layernorm", "- mean_dxhat - xhat", "- 0.0 - xhat", "x", "it is dcentred: the gradient of another"),
    ("cross_entropy", "dloss / count", "dloss", "losses", "the factor 1/19 is missing"),
    ("cross_entropy", "axis=-1) - dlosses", "axis=-1)", "logits", None),
    ("embedding", "np.add.at(dwte, idx, dtoken)", "dwte[idx] += dx", "wte", "only the last gradient was kept"),
    ("embedding", "dx.sum(axis=0)", "dx[0]", "position", None),
    ("embedding", "return dwte, dwpe", "return dwte, dwpe[:4]", "wpe", None),
    ("head", "dlogit_rows.T @ rows", "rows.T @ dlogit_rows", "weight", "it is transposed"),
    ("dropout", "dy if mask is None else dy * mask", "dy", "x", "the factor mask is missing"),
    ("attention", "dscores = dscaled * scale", "dscores = dscaled", "scores", "the factor scale is missing"),
    ("attention", "return dq, dk, dv", "return dk, dq, dv", "q", "it is dk: the gradient of another variable"),
    ("attention", "dkept * dropout_mask", "dkept", "att", "the factor dropout_mask is missing"),
    ("self_attention", "reshape(B, T, H, D).transpose(0, 2, 1, 3)", "reshape(B, H, T, D)", "mix", None),
    ("self_attention", '"bias": dc_attn_bias}', '"bias": -dc_attn_bias}', "c_attn.bias", "its sign is wrong"),
    ("mlp", '"bias": dc_proj_bias}', '"bias": 0.5 * dc_proj_bias}', "c_proj.bias", "the factor 2 is missing"),
    ("block", "dx_mid = dx_out + dx_mid_normed", "dx_mid = dx_mid_normed", "x_mid", "the term dx_out is missing"),
    ("block", "dx = dx_mid + dx_normed", "dx = dx_mid - dx_normed", "x", "the term dx_normed has the wrong sign"),
]


@pytest.mark.parametrize(("layer", "line", "wrong", "variable", "says"), SPECIAL)
def test_a_layers_own_mistakes_are_recognised(layer, line, wrong, variable, says, tmp_path):
    text = solved(basics_and_lessons()[layer], 3)
    assert text.count(line) == 1
    text = text.replace(line, wrong)
    if "np.inf" in wrong:
        text = text.replace("\n\n\n", "\n\n\nimport numpy as np\n\n\n", 1)
    if (layer, variable) == ("embedding", "wpe"):       # a shape that tells nothing
        with pytest.raises(LearnerError, match=r"dwpe has shape \(4, 6\), but wpe has shape \(10, 6\)"):
            judged(layer, text, tmp_path)
        return
    report = judged(layer, text, tmp_path)
    found = line_of(report, variable)
    assert not report.right and found.verdict == WRONG
    assert (found.diagnosis is None) if says is None else (says in (found.diagnosis or "")), found
    line = text.split("\n")[found.line - 1]
    assert wrong in line or line.startswith("    return") or layer == "cross_entropy"


def test_arguments_written_to_and_other_dtypes_are_noted(tmp_path):
    text = solved(basics_and_lessons()["layernorm"], 3)
    report = judged("layernorm", text.replace("    C = xhat", "    dy *= 2.0\n    xhat += 0.5\n    C = xhat"), tmp_path)
    assert report.notes[0].startswith("dy is written to in place")
    assert report.notes[1].startswith("cache[0] is written to in place")
    report = judged("layernorm", text.replace("dxhat = dy * weight", "dxhat = dy * np.float64(1) * weight"), tmp_path)
    assert report.notes == ["dx is float64, but all inputs are float32"] and not report.right
    assert all(line.verdict != WRONG for line in report.lines)
    text = solved(basics_and_lessons()["mlp"], 3).replace("return dx, ", 'return dx.astype("float64"), ')
    assert judged("mlp", text, tmp_path).notes == ["dx is float64, but all inputs are float32"]


@pytest.mark.parametrize(("old", "new", "says"), [
    ("return dx, {", "return {", "mlp_backward returned a dict, not 2 (dx, dp)"),
    ("return dx, {", "return dx, dx\n    {", "dp is a ndarray, not a tree of gradients (a dict)"),
    ('"bias": dc_fc_bias', '"base": dc_fc_bias', "dc_fc.bias is missing in dp"),
    ('"bias": dc_fc_bias', '"bias": dc_fc_bias, "base": dx', "dp has c_fc.base, which is no parameter"),
])
def test_a_tree_of_gradients_must_have_its_leaves(old, new, says, tmp_path):
    text = solved(basics_and_lessons()["mlp"], 3)
    with pytest.raises(LearnerError) as error:
        judged("mlp", text.replace(old, new), tmp_path)
    assert str(error.value) == says


def test_another_way_to_write_it_is_right_too(tmp_path):
    """Only the names of the results are prescribed; a gradient may be computed in parts."""
    text = solved(basics_and_lessons()["linear"], 3)
    head = text[:text.index("    x, weight, has_bias = cache")]
    short = ("    x, w, _ = cache\n    a, b = x.reshape(-1, 6), dy.reshape(-1, 8)\n"
             "    return dy @ w.T, a.T @ b, b.sum(axis=0)\n")
    report = judged("linear", head + short, tmp_path)
    assert report.right and line_of(report, "y_rows").verdict == NO_GRADIENT
    text = solved(basics_and_lessons()["block"], 3).replace(
        "dx_mid = dx_out + dx_mid_normed", "dx_mid = dx_out\n    dx_mid = dx_mid + dx_mid_normed")
    report = judged("block", text, tmp_path)
    assert report.right and line_of(report, "x_mid").line == text[:text.index("dx_mid = dx_mid +")].count("\n") + 1


def test_a_wrong_dv_is_wrong_even_if_the_results_are_right(tmp_path):
    text = solved(basics_and_lessons()["head"], 3)
    text = text.replace("drows = dlogit_rows @ weight", "drows = 3.0 * (dlogit_rows @ weight)")
    report = judged("head", text.replace("dx = drows.reshape", "dx = (drows / 3.0).reshape"), tmp_path)
    assert not report.right and [line.variable for line in report.lines if line.verdict == WRONG] == ["rows"]


def test_reports_are_plain_data(tmp_path):
    report = judged("head", solved(basics_and_lessons()["head"], 1), tmp_path)
    assert dataclasses.asdict(report)["lines"][0].keys() == {"variable", "line", "verdict", "relative", "diagnosis"}

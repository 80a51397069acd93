"""The judge on right solutions of every exercise, and on the mistakes that it has names for. In this process: fast."""

import ast
import dataclasses

import pytest

from npgpt.study.exercise import BLANKS, LEVELS, exercise_lesson
from npgpt.study.gradcheck import WRONG
from npgpt.study.judge import NO_GRADIENT, LearnerError, judge
from tests.study.solutions import function_of, solved

EVERY = [(layer, level) for layer in BLANKS for level in LEVELS]


def judged(layer, text, path):
    file = path / "file.py"
    return judge(layer, function_of(text, exercise_lesson(layer), file), file)


def line_of(report, variable):
    return next(line for line in report.lines if line.variable == variable)


@pytest.mark.parametrize(("layer", "level"), EVERY)
def test_the_packages_own_lines_in_the_blanks_are_right(layer, level, tmp_path):
    report = judged(layer, solved(exercise_lesson(layer), level), tmp_path)
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


@pytest.mark.parametrize(("layer", "level"), EVERY)
def test_general_mistakes_have_a_name_in_every_exercise(layer, level, tmp_path):
    lesson = exercise_lesson(layer)
    text = solved(lesson, level)
    head, _, returned = text.rpartition("    return ")
    first, *rest = (ast.unparse(part) for part in getattr(ast.parse(returned).body[0].value, "elts",
                                                          [ast.parse(returned).body[0].value]))
    for mistake, says in GENERAL.items():
        wrong = head + "    return " + ", ".join([mistake.format(first=first), *rest]) + "\n"
        report = judged(layer, wrong, tmp_path)
        found = line_of(report, next(iter(lesson.inputs)))
        assert not report.right and found.verdict == WRONG, mistake
        assert says in found.diagnosis, (mistake, found)


# layer, what is replaced in the package's lines and by what, the variable and what is said about it
SPECIAL = [
    ("linear", "column_sum(dy_rows)", "dy", "bias",
     "its shape is (2, 3, 5), not (5,): the sum over the batch is missing"),
    ("linear", "column_sum(dy_rows)", "dy.sum(axis=0)", "bias", "the sum over the batch is missing"),
    ("linear", "column_sum(dy_rows)", "column_sum(dy_rows) / len(dy_rows)", "bias",
     "6 rows, a mean where a sum belongs"),
    ("linear", "np.matmul(rows.T, dy_rows, out=dweight)", "dy_rows.T @ rows", "weight", "it is transposed"),
    ("linear", "drows.reshape(x.shape)", "drows", "x", "the numbers are right, it needs a reshape"),
    ("linear", "drows.reshape(x.shape)", "drows.reshape(x.shape) * np.inf", "x", "it holds nan or infinity"),
    ("gelu_tanh", "dx_outside + dx_inside", "dx_outside", "x", "the term dx_inside is missing"),
    ("gelu_tanh", "dx_outside + dx_inside", "dx_outside - dx_inside", "x", "the term dx_inside has the wrong sign"),
    ("gelu_tanh", "dphi * (2.0 * phi", "dphi * (phi", "inner", "the factor 2 is missing"),
    ("gelu_exact", "dx = dx_outside + dx_inside", "dx = dx_inside", "x", "the term dx_outside is missing"),
    ("gelu_tanh", "dphi = dy * x", "dphi = dy", "phi", "the factor x is missing"),
    ("layernorm", "column_dot(dscaled, xhat)", "dscaled * xhat", "weight", "the sum over the batch is missing"),
    ("layernorm", "return dx, dweight, dbias", "return dx, dbias, dweight", "weight", "it is dbias"),
    ("layernorm", "dxhat = dscaled * weight", "dxhat = dscaled", "xhat", "the factor weight is missing"),
    ("layernorm", "dx = rstd * (", "dx = (", "x", "the factor rstd is missing"),
    ("layernorm", "dx = rstd * (", "dx = rstd * rstd * (", "x", "it has the factor rstd, which does not belong there"),
    ("layernorm", "- mean_dxhat - xhat", "- 0.0 - xhat", "x", "it is dcentred: a gradient"),
    ("softmax_loss", "dlosses = dloss * share", "dlosses = dloss + 0.0 * share", "losses",
     "the factor share is missing"),
    ("embedding", "add_rows_by_index(dwte, idx.reshape(B * T), dtoken.reshape(B * T, C))", "dwte[idx] += dx", "wte",
     "only the last gradient was kept"),
    ("embedding", "dx.sum(axis=0)", "dx[0]", "position", None),
    ("embedding", "return dwte, dwpe", "return dwte, dwpe[:2]", "wpe", None),
    ("head", "np.matmul(dlogit_rows.T, rows, out=dweight)", "rows.T @ dlogit_rows", "weight", "it is transposed"),
    ("dropout", "dy if mask is None else dy * mask", "dy", "x", "the factor mask is missing"),
    ("attention", "dq = dscaled * scale", "dq = dscaled", "q", "the factor scale is missing"),
    ("attention", "kept.swapaxes(-1, -2) @ dmix", "kept @ dmix", "v", None),
    ("attention", "return dq, dk, dv", "return dk, dq, dv", "q", "it is dk: a gradient stands in another's place"),
    ("attention", "dkept * dropout_mask", "dkept", "att", "the factor dropout_mask is missing"),
    ("self_attention", "transpose(1, 3, 0, 2, 4)", "transpose(1, 3, 0, 4, 2)", "qkv", None),
    ("self_attention", "return dx, dc_attn_weight, dc_attn_bias", "return dx, dc_attn_weight, -dc_attn_bias",
     "c_attn_bias", "its sign is wrong"),
    ("mlp", "return dx, dc_fc_weight, dc_fc_bias, dc_proj_weight, dc_proj_bias",
     "return dx, dc_fc_weight, dc_fc_bias, dc_proj_weight, 0.5 * dc_proj_bias", "c_proj_bias",
     "the factor 2 is missing"),
    ("block", "dx_mid = dx_out + dx_mid_normed", "dx_mid = dx_mid_normed", "x_mid", "the term dx_out is missing"),
    ("block", "dx = dx_mid + dx_normed", "dx = dx_mid - dx_normed", "x", "the term dx_normed has the wrong sign"),
]


@pytest.mark.parametrize(("layer", "line", "wrong", "variable", "says"), SPECIAL)
def test_a_layers_own_mistakes_have_a_name(layer, line, wrong, variable, says, tmp_path):
    text = solved(exercise_lesson(layer), 3)
    assert text.count(line) == 1
    text = text.replace(line, wrong)
    if (layer, variable) == ("embedding", "wpe"):       # a shape that tells nothing
        with pytest.raises(LearnerError, match=r"dwpe has shape \(2, 6\), but wpe has shape \(4, 6\)"):
            judged(layer, text, tmp_path)
        return
    report = judged(layer, text, tmp_path)
    found = line_of(report, variable)
    assert not report.right and found.verdict == WRONG
    assert (found.diagnosis is None) if says is None else (says in (found.diagnosis or "")), found
    place = f"d{variable}" if "return" in wrong or "np.inf" in wrong else wrong     # infinity is not followed back
    assert place.split("\n")[0] in text.split("\n")[found.line - 1]


def test_arguments_written_to_and_other_dtypes_are_noted(tmp_path):
    text = solved(exercise_lesson("layernorm"), 3)
    report = judged("layernorm", text.replace("    dscaled = dy ", "    dscaled = dy\n    dscaled *= 2.0 #"), tmp_path)
    assert any(note.startswith("dy is written to in place") for note in report.notes)
    report = judged("layernorm", text.replace("    C = xhat", "    xhat += 0.5\n    C = xhat"), tmp_path)
    assert any(note.startswith("cache[0] is written to in place") for note in report.notes)
    report = judged("layernorm", text.replace("dxhat = dscaled * weight", "dxhat = dscaled * np.float64(1) * weight"),
                    tmp_path)
    assert report.notes and not report.right and all(line.verdict != WRONG for line in report.lines)
    assert report.notes[0].startswith("dx is float64 where everything else is float32")


def test_another_way_to_write_it_is_right_too(tmp_path):
    """No name but those of the results is asked for; a gradient may be put together of parts."""
    lesson = exercise_lesson("linear")
    text = solved(lesson, 3)
    head = text[:text.index("    x, weight, has_bias = cache")]
    short = ("    x, w, _ = cache\n    a, b = x.reshape(-1, 6), dy.reshape(-1, 5)\n"
             "    return dy @ w.T, a.T @ b, b.sum(axis=0)\n")
    report = judged("linear", head + short, tmp_path)
    assert report.right and line_of(report, "y_rows").verdict == NO_GRADIENT
    text = solved(exercise_lesson("block"), 3).replace(
        "dx_mid = dx_out + dx_mid_normed", "dx_mid = dx_out\n    dx_mid = dx_mid + dx_mid_normed")
    report = judged("block", text, tmp_path)
    assert report.right and line_of(report, "x_mid").line == text[:text.index("dx_mid = dx_mid +")].count("\n") + 1


def test_a_wrong_dv_is_wrong_even_where_the_results_are_right(tmp_path):
    text = solved(exercise_lesson("head"), 3).replace("    return dx", "    drows = 2.0 * drows\n    return dx")
    text = text.replace("drows = dlogit_rows @ weight", "drows = 3.0 * (dlogit_rows @ weight) / 1.0")
    text = text.replace("dx = drows.reshape", "dx = (drows / 3.0).reshape")
    report = judged("head", text, tmp_path)
    assert not report.right and [line.variable for line in report.lines if line.verdict == WRONG] == ["rows"]


def test_reports_are_plain_data(tmp_path):
    report = judged("head", solved(exercise_lesson("head"), 1), tmp_path)
    assert dataclasses.asdict(report)["lines"][0].keys() == {"variable", "line", "verdict", "relative", "diagnosis"}

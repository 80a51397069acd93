"""The judge on the corpus: no right solution is refused, no wrong one accepted, and no mistake gets a wrong name."""

import pytest

from npgpt.study.exercise import preamble
from npgpt.study.explain import UNKNOWN
from npgpt.study.gradcheck import WRONG
from npgpt.study.judge import judge_file
from npgpt.study.lessons import basics_and_lessons
from npgpt.study.path import whole_path
from tests.study.corpus import SOLUTIONS, source
from tests.test_readme import README

# The corpus was written before the judge. These messages say the same mistake in other words than it expects.
OTHER_WORDS = {
    "dweight averaged over the rows": "divided by len(rows), which does not belong there",
    "divided by h": "the factor 0.5 is missing",
    "* for @": "`rows.T * dy_rows` is elementwise, a matmul belongs there",
    "cache unpacked the wrong way round": "tanh and x are in each other's place",
    "exponent positive": "the sign of 0.5 * (x * x) is wrong",
    "a second result": "returned 2 results, not one array",
    "divided by C": "divided by C, which does not belong there",
    "a Jacobian without the mean": "the term 1.0 is missing",
    "long way: drstd with xhat": "the division by rstd is missing",
    "long way: xhat for centred in dcentred": "the division by rstd is missing",
    "only the targets' columns set": "uses -dlosses in place of dlogits_at_target",
    "softmax without the sum of its row": "the term dlosses is missing",           # the sum is -dlosses
    "dposition for dtoken": "uses dposition in place of dx",                       # dtoken is dx
    "only the first batch entry": "dx[0] is only one entry: the sum over axis 0 is missing",
    "dwpe only as long as the text": "uses T in place of block_size",
    "the last rows of dwpe set": "in another order: look at the reshape, the transpose or the index",
    "dwte of counts": "uses 1.0 in place of dx",
    "not scaled up": "the factor mask is missing",
    "GELU forgotten": "it is dactive, the gradient of another variable",
    "the weights in each other's slots": "uses dc_proj_weight in place of dc_fc_weight",
    "dx not returned": "mlp_backward returned a dict, not 2 (dx, dp)",
    "weight and bias unpacked in the wrong order": "dc_fc_bias and dc_fc_weight are in each other's place",
    "dc_proj_weight averaged": "divided by dy.shape[0] * dy.shape[1], which does not belong there",
    "stacked in the order k, q, v": "dk and dq are in each other's place",
    "unpacked in the order q, v, k": "dv and dk are in each other's place",
    "biases in each other's slots": "uses dc_proj_bias in place of dc_attn_bias",
    "the LayerNorms in each other's slots": "uses dln_2_weight in place of dln_1_weight",
    "the head's part overwrites the embedding's": "= instead of +=: it overwrites what was there before",
    "wpe and wte swapped": "dp['wte'] and dp['wpe'] are in each other's place",
}
UNNAMED = {
    "the rows of dbias reshaped the wrong way", "mean and variance taken for constants",
    "rstd computed anew without eps", "long way: dcentred only by way of the variance",
    "long way: dcentred without the variance", "only the softmax", "dprobs not divided by probs",
    "the derivative of a sigmoid", "the softmax's Jacobian without the outer product", "the forward's gelu called",
    "always the exact form", "attention before the MLP", "dx of the final LayerNorm thrown away",
    "dx of the blocks thrown away", "always the first block's cache",
}


def judged(solution, path):
    """The `Report` on a solution, and the lines of its file."""
    path.write_text(f"{preamble(basics_and_lessons()[solution.layer])}\n\n\n{source(solution)}")
    return judge_file(solution.layer, path), path.read_text().split("\n")


@pytest.mark.parametrize("solution", [each for each in SOLUTIONS if each.says is None],
                         ids=lambda each: f"{each.layer}: {each.name}")
def test_right_solutions_are_right(solution, tmp_path):
    report, _ = judged(solution, tmp_path / "mine.py")
    assert report.right, report
    assert solution.note is None or any(solution.note in note for note in report.notes), report.notes


@pytest.mark.parametrize("solution", [each for each in SOLUTIONS if each.says is not None],
                         ids=lambda each: f"{each.layer}: {each.name}")
def test_wrong_solutions_are_refused_at_their_line_by_the_name_of_the_mistake(solution, tmp_path):
    report, lines = judged(solution, tmp_path / "mine.py")
    assert not report.right and not report.sound
    said = [(fault.line, fault.message) for fault in report.faults]
    said += [(line.line, line.diagnosis) for line in report.lines if line.verdict == WRONG]
    first = [message for line, message in said if line == report.first]
    if solution.name in UNNAMED:
        assert any(UNKNOWN in message for message in first)
    else:
        statement = "\n".join(lines[report.first - 1:report.first + 1]) if report.first else ""
        assert not solution.at or any(text in statement for text in solution.at), said
        expected = [*solution.says, OTHER_WORDS.get(solution.name, solution.says[0])]
        assert any(phrase in message for message in first for phrase in expected), first


def test_most_mistakes_have_names_and_the_readme_says_how_many():
    wrong = [each for each in SOLUTIONS if each.says is not None]
    named = [each for each in wrong if each.name not in UNNAMED]
    assert len(wrong) > 150 and {each.layer for each in SOLUTIONS} == set(basics_and_lessons())
    assert len(named) / len(wrong) >= 0.85 and {*OTHER_WORDS, *UNNAMED} <= {each.name for each in wrong}
    readme = " ".join(README.read_text(encoding="utf-8").split())
    assert f"{len(SOLUTIONS)} solutions: none of the {len(SOLUTIONS) - len(wrong)} right ones" in readme
    assert f"none of the {len(wrong)} wrong ones accepted, and {len(named)} of the mistakes" in readme
    assert f"{len(whole_path())} exercises" in readme

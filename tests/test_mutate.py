"""tools/mutate.py makes the small mistakes, and tells caught, missed and equivalent ones apart."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from npgpt.layers import embedding, layernorm, linear
from npgpt.study.exercises.mutants import mutants
from tests.cases import layer_cases

pytestmark = pytest.mark.slow

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
mutate = importlib.import_module("mutate")

CASES = {case.name: case for case in layer_cases()}


def test_the_kinds_of_mistakes():
    made = {(mutant.kind, mutant.mutated) for function in (
        layernorm.layernorm_backward, linear.linear_backward, embedding.embedding_backward)
        for mutant in mutants(function)}
    assert made >= {
        ("sign", "dx = rstd * (dxhat - mean_dxhat + xhat * mean_dxhat_xhat)"),
        ("dropped term", "dx = rstd * (dxhat - xhat * mean_dxhat_xhat)"),
        ("dropped factor", "dx = dxhat - mean_dxhat - xhat * mean_dxhat_xhat"),
        ("wrong axis", "dposition = dx.sum(axis=-1)"),
        ("dropped axis", "dposition = dx.sum()"),
        ("mean for sum", "dposition = dx.mean(axis=0)"),
        ("neighbouring variable", "dxhat = dweight * weight"),
        ("condition", "dbias = None if has_bias else dy_rows.sum(axis=0)"),
        ("swapped", "return (dweight, dx, dbias)"),
        ("transposed operand", "dweight = rows @ dy_rows"),
        ("dropped argument", "rows = x.reshape(-1)"),
        ("dropped statement", "pass"),
    }
    assert not any("dtoken.sum" in mutated for _, mutated in made), "dtoken is another name of dx"


@pytest.mark.parametrize(("mutated", "outcome"), [
    ("rows = x.reshape(-2, x.shape[-1])", "equivalent"), ("rows = -x.reshape(-1, x.shape[-1])", "missed")])
def test_an_equivalent_mutant_must_have_a_reason_and_the_same_results(mutated, outcome):
    def run():
        CASES["linear"].run(CASES["linear"].inputs, np.ones((3, 5, 7)))

    mutant = next(each for each in mutants(linear.linear_backward) if each.mutated == mutated)
    row = mutate.judge(mutant, linear.linear_backward, {"a test that sees nothing": run}, [run], "a reason")
    assert row["outcome"] == outcome and (row["difference"] == 0.0) == (outcome == "equivalent")
    assert mutate.judge(mutant, linear.linear_backward, {"run": run}, [run])["outcome"] == "missed"
    assert ((mutant.function, mutant.original, mutant.mutated) in mutate.equivalent()) == (outcome == "equivalent")

"""tools/mutate.py makes every kind of mistake, and tells caught, missed and equivalent ones apart."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from npgpt.layers import embedding, layernorm, linear
from npgpt.study.gradcheck.source import read_source
from tests.cases import layer_cases

pytestmark = pytest.mark.slow

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
mutate, mutants = map(importlib.import_module, ("mutate", "mutants"))


def test_the_kinds_of_mistakes():
    made = {mutant.kind for function in (
        layernorm.layernorm_backward, linear.linear_backward, embedding.embedding_backward)
        for mutant in mutants.mutants(function)}
    assert made >= {"sign", "dropped term", "dropped factor", "wrong operator", "wrong axis", "dropped axis",
                    "mean for sum", "neighbouring variable", "condition", "swapped", "transposed operand",
                    "dropped argument", "dropped statement"}


@pytest.mark.parametrize(("mutated", "outcome"), [
    ("rows = x.reshape(-2, x.shape[-1])", "equivalent"), ("rows = -x.reshape(-1, x.shape[-1])", "missed")])
def test_an_equivalent_mutant_must_have_a_reason_and_the_same_results(mutated, outcome):
    case = next(case for case in layer_cases() if case.name == "linear")

    def run():
        case.run(case.inputs, np.ones((3, 5, 11)))

    mutant = next(each for each in mutants.mutants(linear.linear_backward) if each.mutated == mutated)
    row = mutate.judge(mutant, linear.linear_backward, {"a test that sees nothing": run}, [run], "a reason")
    assert row["outcome"] == outcome and (row["difference"] == 0.0) == (outcome == "equivalent")
    assert mutate.judge(mutant, linear.linear_backward, {"run": run}, [run])["outcome"] == "missed"


def test_mutants_are_made_of_every_statement():
    statements = {each.first for each in read_source(linear.linear_backward).statements}
    assert {mutant.line for mutant in mutants.mutants(linear.linear_backward)} == statements

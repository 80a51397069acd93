"""The mutation test itself: the mistakes that it makes, and that wrong lines are told from equivalent ones."""

import contextlib
import importlib
import linecache
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from npgpt.engine import row_blocks, tiles
from npgpt.layers import dropout, embedding, gelu, layernorm, linear
from npgpt.study.exercises.mutants import mutants, swapped_in
from tests.cases import layer_cases
from tests.layers.test_gradients import test_equals_finite_differences as check

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


def test_an_inner_functions_variables_are_neighbours_within_it():
    made = {mutant.mutated for mutant in mutants(tiles.in_tiles, "backward_in_tiles")}
    assert "group = groups[arguments]" in made and "group = caches[i]" in made
    assert "spread(run, range(len(caches)))" in made
    assert not any(line.startswith("spread") and "rows" in line for line in made)
    made = list(mutants(row_blocks.in_row_blocks, "backward_in_blocks"))
    assert made and all("forward_in_blocks" not in mutant.original for mutant in made)


def test_every_mutant_compiles_is_made_once_and_names_its_line():
    functions = mutate.functions_under_test()
    assert {"gpt_backward", "cross_entropy_backward", "fast_embedding_backward", "adamw_update"} <= set(functions)
    for function, inner in functions.values():
        made = list(mutants(function, inner))
        assert len(made) > 2 and len({(each.line, each.original, each.mutated) for each in made}) == len(made)
    for mutant in mutants(linear.linear_backward):
        written = linecache.getline(mutant.file, mutant.line).strip().removeprefix("return ")
        assert mutant.original.removeprefix("return ").strip("()") in written and mutant.original != mutant.mutated


def survivors(function, case):
    """The mutants of a function that one test does not catch on one case."""
    for mutant in mutants(function):
        with swapped_in(mutant, function), np.errstate(all="ignore"), contextlib.suppress(Exception):
            check(CASES[case])
            yield mutant


def test_finite_differences_catch_all_but_a_millionth():
    missed = list(survivors(gelu.gelu_tanh_backward, "gelu_tanh"))
    assert {mutant.kind for mutant in missed} == {"constant"} and len(missed) <= 2
    assert all("000003" in mutant.mutated or "0000029" in mutant.mutated or "0.0447150" in mutant.mutated
               for mutant in missed)
    check(CASES["gelu_tanh"])                       # the function is whole again


def test_a_branch_that_no_test_takes_is_missed():
    """This case always has a mask, so a mistake in the branch without one goes unseen."""
    assert [mutant.mutated for mutant in survivors(dropout.dropout_backward, "dropout")] == [
        "dx = dy * mask", "dx = -dy if mask is None else dy * mask", "dx = dy if dy is None else dy * mask",
        "dx = mask if mask is None else dy * mask"]


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


def test_a_mutant_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(mutate, "TIME_LIMIT", 1)
    mutant = next(mutants(linear.linear_backward))
    [row] = mutate.in_children(lambda i: mutate.judge(mutant, linear.linear_backward, {"a": time.sleep}, []), 1, 1)
    assert row["error"] == "TypeError" and row["by"] == "a"
    [row] = mutate.in_children(
        lambda i: mutate.judge(mutant, linear.linear_backward, {"b": lambda: time.sleep(60)}, []), 1, 1)
    assert row["error"] == "TimeoutError" and row["outcome"] == "caught"

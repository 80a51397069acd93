"""The mutation test itself: what it makes of a function, and that wrong lines are told from equivalent ones."""

import contextlib
import importlib
import linecache
import os
import sys
import time
from pathlib import Path

import numpy as np

from npgpt.layers import attention_tiles, dropout, embedding, gelu, layernorm, linear
from tests.cases import layer_cases
from tests.layers.test_gradients import test_equals_finite_differences as check

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
mutate = importlib.import_module("mutate")

CASES = {case.name: case for case in layer_cases()}


def test_the_kinds_of_mistakes():
    made = {(mutant.kind, mutant.mutated) for function in (
        layernorm.layernorm_backward, linear.linear_backward, embedding.embedding_backward)
        for mutant in mutate.mutants(function)}
    assert made >= {
        ("sign", "dx = rstd * (dxhat - mean_dxhat + xhat * mean_dxhat_xhat)"),
        ("dropped term", "dx = rstd * (dxhat - xhat * mean_dxhat_xhat)"),
        ("dropped factor", "dx = dxhat - mean_dxhat - xhat * mean_dxhat_xhat"),
        ("wrong axis", "dposition = dx.sum(axis=-1)"),
        ("dropped axis", "dposition = dx.sum()"),
        ("mean for sum", "dposition = dx.mean(axis=0)"),
        ("neighbouring variable", "mean_dxhat_xhat = row_dot(dscaled, xhat) / C"),
        ("condition", "dbias = None if has_bias else column_sum(dy)"),
        ("swapped", "return (dweight, dx, dbias)"),
        ("transposed operand", "dweight = np.matmul(rows, dy_rows, out=dweight)"),
        ("dropped out", "dweight = np.matmul(rows.T, dy_rows)"),
        ("dropped argument", "rows = x.reshape(-1)"),
        ("dropped statement", "pass"),
    }


def test_an_inner_functions_variables_are_neighbours_within_it():
    made = {mutant.mutated for mutant in mutate.mutants(attention_tiles.tiled_attention_backward)}
    assert "group = groups[T]" in made and "group = caches[i]" in made and "dk[rows][:, :, keys] += dk_tile" in made
    assert "spread(backward, range(len(caches)))" in made
    assert not any(line.startswith("spread") and "rows" in line for line in made)


def test_every_mutant_of_every_function_compiles():
    functions = mutate.functions_under_test()
    assert {"gpt_backward", "softmax_loss_backward", "add_rows_by_index"} <= set(functions)
    for function in functions.values():
        assert len(list(mutate.mutants(function))) > 2


def test_each_mutant_is_made_once_and_names_its_line():
    made = list(mutate.mutants(linear.linear_backward))
    assert len({(mutant.line, mutant.mutated) for mutant in made}) == len(made)
    for mutant in made:
        written = linecache.getline(mutant.file, mutant.line).strip().removeprefix("return ")
        assert mutant.original.removeprefix("return ").strip("()") in written
        assert mutant.original != mutant.mutated


def survivors(function, case):
    """The mutants of a function that one test does not catch on one case."""
    for mutant in mutate.mutants(function):
        with mutate.swapped_in(mutant, function), np.errstate(all="ignore"), contextlib.suppress(Exception):
            check(CASES[case])
            yield mutant


def test_finite_differences_catch_all_but_a_millionth():
    missed = list(survivors(gelu.gelu_tanh_backward, "gelu_tanh"))
    assert [mutant.kind for mutant in missed] == ["constant"]
    assert "3.000003" in missed[0].mutated or "3.0000029" in missed[0].mutated
    check(CASES["gelu_tanh"])                       # the function is whole again


def test_what_the_tests_do_not_look_at_survives():
    """This case always has a mask, so a mistake in the branch without one goes unseen."""
    assert [mutant.mutated for mutant in survivors(dropout.dropout_backward, "dropout")] == [
        "dx = dy * mask", "dx = -dy if mask is None else dy * mask", "dx = dy if dy is None else dy * mask",
        "dx = mask if mask is None else dy * mask"]


def test_an_alias_gives_the_same_results_and_a_sign_does_not():
    expected = mutate.gradients()
    made = {mutant.mutated: mutant for mutant in mutate.mutants(layernorm.layernorm_backward)}
    alias, sign = made["dxhat = dy * weight"], made["dxhat = -(dscaled * weight)"]
    with mutate.swapped_in(alias, layernorm.layernorm_backward):
        assert mutate.difference(expected, mutate.gradients()) == 0
    with mutate.swapped_in(sign, layernorm.layernorm_backward):
        assert mutate.difference(expected, mutate.gradients()) > mutate.ROUNDING
    assert (alias.function, alias.original, alias.mutated) in mutate.EQUIVALENT


def test_a_child_that_hangs_is_ended():
    child, _ = mutate.in_child(lambda: time.sleep(60), time_limit=1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    child, file = mutate.in_child(lambda: {"by": "a test"})
    os.waitpid(child, 0)
    assert mutate.result_of(file) == {"by": "a test"}

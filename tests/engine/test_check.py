"""A compiled loop is compared with NumPy's lines: a mistake of the compiler costs speed, never
numbers.
"""

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from npgpt.errors import say_once
from tests.cases import train_step
from tests.helpers.lines import assert_alike, defined

pytest.importorskip("numba", reason="compiles the loops; it is in the extras fast and test")
from npgpt.engine.loops.check import CALLS, Checked
from npgpt.engine.loops.lines import compile_lines
from npgpt.engine.loops.segment import kernel
from npgpt.engine.loops.write import Loop

LINES = """def f(x, w):
    centred = x - x.mean(axis=-1, keepdims=True)
    y = centred * w + 1.0
    x *= 0.5
    return y, x
"""
# What is written in place of a part of the loop, or of its call.
BUGS = {
    "number": ("- mean_", "+ mean_"),
    "nan": ("real(1.0)", "real(np.nan)"),
    "argument": ("            y_c = ", "            w_row[c] *= 1.01\n            y_c = "),
    "half": ("x_row[c] = ", "x_row[c] = 0.5 * "),
    "dtype": ("empty_like(x_all)", "empty_like(x_all, 'f')", "call"),
    "error": ("empty_like(x_all)", "missing()", "call"),
}


@pytest.fixture
def planted(monkeypatch):
    """Plant a bug in the writer of loops: a text that it writes is replaced. Afterwards all is
    compiled anew.
    """

    def plant(old, new, method="source"):
        right = getattr(Loop, method)
        replaced = {
            "source": lambda loop: right(loop).replace(old, new),
            "call": lambda loop: [line.replace(old, new) for line in right(loop)],
        }
        monkeypatch.setattr(Loop, method, replaced[method])

    for each in (compile_lines, kernel, say_once):
        each.cache_clear()
    yield plant
    for each in (compile_lines, kernel, say_once):
        each.cache_clear()


def arguments(rng):
    return rng.standard_normal((3, 5)), rng.standard_normal(5)


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_compiler_costs_no_number(bug, planted, capfd):
    planted(*BUGS[bug])
    function, rng = defined(LINES), np.random.default_rng(0)
    compiled = compile_lines(function)
    for _ in range(2):
        given = arguments(rng)
        same = tuple(each.copy() for each in given)
        found = compiled(*given)
        assert_alike(found, function(*same), 1e-15)
        assert_alike(given, same, 1e-15)
        assert found[1] is given[0]
    told = capfd.readouterr().err
    assert told.count("\n") == 1 and "line 2, computes something else than NumPy" in told


def test_a_bug_at_the_hundredth_call_is_noticed_and_then_nothing_is_compared(
    planted, capfd, monkeypatch
):
    function, rng, calls = defined(LINES), np.random.default_rng(0), []
    compiled, compared = compile_lines(function), Checked.compare

    def counted(checked, values, always):
        calls.append(checked.calls)
        if checked.calls == CALLS[-1]:
            checked.function = lambda x, w: (x * 2.0, x)
        return compared(checked, values, always)

    monkeypatch.setattr(Checked, "compare", counted)
    for _ in range(120):
        given = arguments(rng)
        expected = function(*(each.copy() for each in given))
        assert_alike(compiled(*given), expected, 1e-12)
    assert calls == [*CALLS] and capfd.readouterr().err.count("computes something else") == 1


def test_rounding_is_no_difference(planted, capfd):
    """The rows hold one value each, so that all results are the rounding errors of a sum."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.random((50, 1), np.float32), 999, axis=1)
    compile_lines(defined(LINES))(x, rng.random(999, np.float32))
    assert capfd.readouterr().err == ""


def test_lines_that_raise_raise_numpys_error(planted, capfd):
    function = defined("def f(x, s):\n    y = x * (1.0 / s)\n    z = y + 1.0\n    return z\n")
    compiled = compile_lines(function)
    for _ in range(2):
        assert_alike(compiled(np.ones(3), 2.0), function(np.ones(3), 2.0), 1e-15)
        with pytest.raises(ZeroDivisionError):
            compiled(np.ones(3), 0.0)
    assert capfd.readouterr().err == ""


def test_always(planted, monkeypatch):
    monkeypatch.setenv("NPGPT_CHECK_LOOPS", "always")
    planted(*BUGS["number"])
    with pytest.raises(RuntimeError, match="computes something else than NumPy"):
        compile_lines(defined(LINES))(*arguments(np.random.default_rng(0)))


def test_training_goes_on_with_right_numbers(planted, capfd):
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=16)
    idx, targets = np.random.default_rng(0).integers(0, 11, (2, 4, 8))
    planted("att_c = ", "att_c = 1.01 * ")
    models = [GPT(config, 0, "float64", threads=2, kernels=each) for each in ("numpy", "numba")]
    for model in models:
        optimizer = AdamW(model.params, lr=0.02, engine=model.engine)
        for _ in range(2):
            train_step(optimizer, [(idx, targets)], [None], targets.size, max_norm=1.0)
    expected, found = (model.params.flat for model in models)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert capfd.readouterr().err.count("computes something else than NumPy") == 1

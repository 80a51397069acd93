"""Random programs in everyday words are compiled to what NumPy computes; see
tests/helpers/programs.py.
"""

import numpy as np
import pytest

from tests.helpers.lines import assert_alike, defined, outcome
from tests.helpers.programs import Program, difference

pytest.importorskip("numba", reason="compiles the loops; it is in the extras fast and test")
from npgpt.engine.loops.lines import compile_lines
from npgpt.engine.loops.segment import kernel
from tests.engine.test_loops import loops_by

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the mean of nothing


@pytest.mark.parametrize(
    ("by", "seeds"),
    [
        ("python", range(60)),
        pytest.param("python", range(60, 600), marks=pytest.mark.slow),
        pytest.param("numba", range(40), marks=pytest.mark.slow),
    ],
)
def test_programs_in_everyday_words(by, seeds):
    loops = 0
    for seed in seeds:
        with loops_by(by):
            program = Program(seed)
            kind = difference(program, compile_lines)
            loops += kernel.cache_info().misses
        assert not kind, f"{kind}, program {seed}:\n{program.source}"
    assert loops > len(seeds) // 2


ODD = {
    "a dead name that is a builtin's": "z = [*range(2)]\n    y = x + 1.0\n    range = y * 2.0\n    "
    "return y",
    "one array by two names": "y = x * 2.0 + 1.0 if x is z else x * 3.0 + 1.0\n    return y",
    "a number of two names": "n = 2 if k > 1 else 3\n    y = x * n + k\n    return y, n, k",
    "a flat view twice": "y = x.reshape(-1, C).reshape(-1, C) * 2.0 + 1.0\n    return y",
    "a flat view of a column": "m = x.mean(axis=-1, keepdims=True)\n    y = m.reshape(-1, C) + "
    "1.0\n"
    "    return y * 2.0",
    "read after it is overwritten": "u = x.max(axis=-1, keepdims=True) * z\n    z *= 0.5\n    "
    "return u, z",
    "another order in memory": "y = x * 2.0 + 1.0\n    r = y.reshape(-1)\n    r *= 0.5\n    return "
    "y, r",
    "a product that is read again": "y = x @ np.eye(C)\n    h = np.tanh(y)\n"
    "    t = y - h.mean(axis=-1, keepdims=True)\n    return h, t",
    "a power of numbers": "s = (1.5 - k) ** 0.5\n    y = x * s + 1.0\n    return y * y",
    "a product's name for another array": "m = x @ np.eye(C)\n    z, m = z, x\n"
    "    y = np.tanh(m) * 2.0 + z\n    return y",
    "a number called by an array's name": "x_c = x * k\n    x_row = x_c + x_c.mean(axis=-1, "
    "keepdims=True)\n"
    "    return x_row, x_c",
}


def copies(arrays):
    """Return copies of two arrays; of one that is there twice, one."""
    first, second = (each.copy(order="K") for each in arrays)
    return [first, first if arrays[0] is arrays[1] else second]


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 2), (3,), (0, 2)], ids=str)
def test_odd_lines(text, shape):
    function = defined(f"def f(x, z, k, C):\n    {text}\n")
    x, z = np.random.default_rng(0).standard_normal((2, *shape))
    with loops_by("python"):
        compiled = compile_lines(function)
        for k in (2, 2, 5, 1):
            for pair in ((x, z), (x, x), (np.asfortranarray(x), z)):
                ours, theirs = copies(pair), copies(pair)
                found = outcome(compiled, *ours, k, shape[-1])
                assert_alike(found, outcome(function, *theirs, k, shape[-1]), 1e-12)
                assert_alike(tuple(ours), tuple(theirs), 1e-12)


def test_annotations_and_defaults_are_not_evaluated_again():
    source = (
        "from __future__ import annotations\ncalls = []\n"
        "def f(x: Missing, s=calls.append(1) or 2.0, *, eps: Missing = calls.append(2) or 0.1) -> "
        "Missing:\n"
        "    y: Missing = x * s\n    z = y * y + eps\n    u = z.mean(axis=-1, keepdims=True) + z\n"
        "    return u\n"
    )
    function, x = defined(source), np.random.default_rng(0).standard_normal((3, 4))
    with loops_by("python"):
        assert_alike(compile_lines(function)(x), function(x), 1e-12)
        assert kernel.cache_info().misses == 1 and function.__globals__["calls"] == [1, 2]


def test_a_function_of_the_same_file_that_gets_another_one_by_its_name_is_called():
    function = defined(
        "def g(x):\n    y = x * 2.0\n    z = y + 1.0\n    return z\n\n"
        "def f(x):\n    y = g(x)\n    z = y * y + 1.0\n    return z\n"
    )
    compiled, names = compile_lines(function), function.__globals__
    assert compiled(3.0) == function(3.0) == 50.0
    names["g"] = lambda x: x
    assert compiled(3.0) == function(3.0) == 10.0

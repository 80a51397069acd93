"""Functions on mpmath's numbers: no digit is lost, or an error says so."""

import numpy as np
import pytest

from npgpt.study.gradcheck.digits import exactly, is_exact, mp_context, rounded, wide
from tests.helpers.lines import defined
from tests.helpers.runs import refusing

X = np.random.default_rng(0).standard_normal((3, 4))
SOURCE = """
import math
from scipy.special import erf, expit
IDX = np.array([1, 0, 3])
def halves(by):
    return np.full(4, by).astype(np.float32)
def by_rows(x, *, by=2.0):
    import numpy as xp
    out = xp.empty(x.shape, float)
    for n in range(len(x)):
        out[n] = x[n] / halves(by)
        out[n, 0] = math.tanh(x[n, 0]) * math.pi + float(x[n, 1].item())
    out[np.arange(3), IDX] -= 1
    out[x >= 0] = 0
    return np.exp(out) - [erf(row[0]) if isinstance(1.0, float) else None for row in x.T]
def f(x):
    return """
RIGHT = """
by_rows(x)
np.zeros(4) + (x - x.mean(0)) / np.sqrt(np.var(x, axis=1, keepdims=True) + 1e-5)
np.einsum("ij,kj->ik", x, np.array(x, dtype=float)) @ np.asarray(np.tril(x), dtype=x.dtype)
np.where(x > 0, np.log(abs(x)), 0) + np.log10(x * x) * np.log1p(x * x) * np.expm1(x)
np.logaddexp(0, x) + expit(x) * erf(x / math.sqrt(2)) + np.log2(x * x)
np.linalg.norm(x, axis=1) * x.std(1) + np.clip(np.arctan(x), -1, 9).sum(1) * np.prod(x.shape)
"""
REFUSED = """
x.astype("float64")
(1.0 * IDX).__setitem__(0, x[0, 0])
np.linalg.inv(x @ x.T)
math.nextafter(x[0, 0], 1)
"""


@pytest.mark.parametrize("line", RIGHT.strip().split("\n"))
def test_lines_of_students_keep_30_digits(line):
    function = defined(SOURCE + line)
    exact, along, names = exactly(function), wide(X[::-1]), dict(function.__globals__)
    slopes = []
    for step in 20, 22:
        h = mp_context().mpf(10) ** -step
        slopes.append((exact(wide(X) + h * along) - exact(wide(X) - h * along)).sum() / (2 * h))
    assert abs(slopes[0] / slopes[1] - 1) < 1e-30 and abs(slopes[0]) > 1e-9
    assert function.__globals__ == names
    np.testing.assert_allclose(rounded(exact(wide(X))), function(X), rtol=1e-9)
    assert is_exact(exact(wide(X)))


def test_a_number_of_an_array_of_ones_is_exact():
    """1 / 3 would be a float."""
    assert isinstance(exactly(lambda: np.ones(1, float)[0])(), mp_context().mpf)
    assert not is_exact(np.array([1, None]))


@pytest.mark.parametrize("line", REFUSED.strip().split("\n"))
def test_what_cannot_be_computed_raises(line):
    with pytest.raises(TypeError):
        exactly(defined(SOURCE + line))(wide(X))


def test_without_mpmath_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refusing(r'pip install "npgpt\[study\]"'):
        mp_context.__wrapped__()

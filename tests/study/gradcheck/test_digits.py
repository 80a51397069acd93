"""Functions on mpmath's numbers: no digit is lost, or an error says so."""

import math

import numpy as np
import pytest
from scipy.special import erf, expit

from npgpt.errors import UserError
from npgpt.study.gradcheck.digits import exactly, is_exact, mp_context, rounded, wide

RNG, IDX, X = np.random.default_rng(0), np.array([1, 0, 3]), np.random.default_rng(0).standard_normal((3, 4))


def by_rows(x, *, by=2.0):
    import numpy as xp
    out = xp.empty(x.shape, float)
    for n in range(len(x)):
        out[n] = x[n] / halves(by)
        out[n, 0] = math.tanh(x[n, 0]) * math.pi + float(x[n, 1].item())
    out[np.arange(3), IDX] -= 1
    out[x >= 0] = 0             # Python's numbers
    return np.exp(out) - [erf(row[0]) if isinstance(1.0, float) else None for row in x.T]


def halves(by):
    return np.full(4, by).astype(np.float32)


@pytest.mark.parametrize("function", [
    by_rows, lambda x: np.zeros(4) + (x - x.mean(0)) / np.sqrt(np.var(x, axis=1, keepdims=True) + 1e-5),
    lambda x: np.einsum("ij,kj->ik", x, np.array(x, dtype=float)) @ np.asarray(np.tril(x), dtype=x.dtype),
    lambda x: np.where(x > 0, np.log(abs(x)), 0) + np.log2(x * x) + np.log10(x * x) * np.log1p(x * x) * np.expm1(x),
    lambda x: np.logaddexp(0, x) + expit(x) * erf(x / math.sqrt(2)),
    lambda x: np.linalg.norm(x, axis=1) * x.std(axis=1) + np.clip(np.arctan(x), -1, None).sum(1) * np.prod(x.shape)])
def test_lines_of_students_keep_30_digits(function):
    exact, before, along = exactly(function), dict(globals()), wide(X[::-1])
    steps = mp_context().mpf(10) ** -np.r_[20, 22]
    first, second = ((exact(wide(X) + h * along) - exact(wide(X) - h * along)).sum() / (2 * h) for h in steps)
    assert abs(first / second - 1) < 1e-30 and abs(first) > 1e-9 and before == globals()
    np.testing.assert_allclose(rounded(exact(wide(X))), function(X), rtol=1e-9)
    assert is_exact(exact(wide(X))) and not is_exact(np.array([1, None]))
    assert isinstance(exactly(lambda: np.ones(1, float)[0])(), mp_context().mpf)       # 1 / 3 would be a float


@pytest.mark.parametrize("function", [
    lambda x: x.astype("float64"), lambda x: (1.0 * IDX).__setitem__(0, x[0, 0]), lambda x: np.linalg.inv(x @ x.T),
    lambda x: math.nextafter(x[0, 0], 1)])
def test_what_cannot_be_computed_raises(function, monkeypatch):
    with pytest.raises(TypeError):
        exactly(function)(wide(X))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "npgpt\[study\]"'):
        mp_context.__wrapped__()

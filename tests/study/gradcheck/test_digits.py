"""Functions on mpmath's numbers: no digit is lost, or an error says so."""

import dataclasses
import importlib.util
import inspect
import math

import numpy as np
import pytest
from scipy.special import erf, expit, softmax

from npgpt import layers
from npgpt.engine.ops import table
from npgpt.errors import UserError
from npgpt.study.gradcheck.digits import exactly, is_exact, numbers, rounded, wide
from npgpt.study.gradcheck.probe import with_probes
from npgpt.study.lessons.table import LESSONS, lesson_named

X, IDX = np.random.default_rng(0).standard_normal((3, 4)), np.array([1, 0, 3])
# the lessons with a constant that is a rounded float, and the one that measures with a step of 1e-5
LIMITS = dict.fromkeys(["gelu_tanh", "gelu_exact", "mlp", "block", "gpt"], 1e-16) | {"difference": 1e-9}


def slope(output, inputs, along, h):
    """The derivative of the sum of an output in a direction, with the step 10^-h."""
    step = numbers().mpf(10) ** -h
    up, down = (output({name: wide(x) + s * along[name] for name, x in inputs.items()}) for s in (step, -step))
    return (np.sum(up) - np.sum(down)) / (2 * step)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_has_30_digits(name):
    lesson, ops = lesson_named(name), table(**{each: exactly(getattr(layers, each)) for each in layers.__all__})
    exact = dataclasses.replace(lesson.mapped(wide), forward=exactly(lesson.forward), backward=exactly(lesson.backward))
    exact.constants.update({key: ops if key == "ops" else exactly(value) for key, value in exact.constants.items()})
    (y, cache), (exact_y, exact_cache) = lesson.run_forward(lesson.inputs), exact.run_forward(exact.inputs)
    dy, rng = np.random.default_rng(2).standard_normal(np.shape(y)), np.random.default_rng(1)
    expected, found = lesson.run_backward(dy, cache), exact.run_backward(wide(dy), exact_cache)
    for wanted, value in [(y, exact_y), *((expected[each], found[each]) for each in expected)]:
        assert all(isinstance(each, numbers().mpf) for each in np.ravel(value))
        np.testing.assert_allclose(rounded(value), wanted, rtol=0, atol=1e-8 if name == "difference" else 1e-12)
    along = {name: wide(rng.standard_normal(value.shape)) for name, value in lesson.inputs.items()}
    measured = slope(lambda inputs: wide(dy) * exact.run_forward(inputs)[0], exact.inputs, along, 20)
    computed = sum(np.sum(found[f"d{each}"] * along[each]) for each in along)
    assert abs(measured - computed) < LIMITS.get(name, 1e-30) * abs(measured)


def by_rows(x):
    import math as m

    import numpy as xp
    from scipy.special import logsumexp
    out = xp.empty(x.shape, float)
    for n in range(len(x)):
        out[n] = thirds(x[n]) - logsumexp(x[n])
        out[n, 0] = m.tanh(x[n, 0]) * m.pi + float(x[n, 1])
    out[np.arange(3), IDX] -= 1
    out[x >= 0] = 0          # the first number is Python's
    return out


def thirds(x, *, by=3.0):
    return x / np.full(4, by)


@pytest.mark.parametrize("function", [
    by_rows, lambda x: np.zeros(4) + (x - x.mean(0)) / np.sqrt(np.var(x, axis=1, keepdims=True) + 1e-5),
    lambda x: np.einsum("ij,kj->ik", x, np.array(x, dtype=float)), lambda x: np.tril(x @ x.T).dot(x),
    lambda x: np.asarray(x, dtype="float64") * np.float32(x.max()).item() + np.finfo(x.dtype).eps,
    lambda x: np.maximum(0, x) * (1 / (1 + np.exp(-x))) + np.minimum(x, 1.0) ** 3,
    lambda x: -np.log(softmax(x, axis=1)[np.arange(3), IDX]).mean(), lambda x: expit(x) + erf(x / math.sqrt(2)),
    lambda x: np.linalg.norm(x, axis=1) * x.std(axis=1) + np.clip(x, -1, None).sum(1) * np.prod(x.shape),
    lambda x: np.where(np.isfinite(x) & (x > 0), np.log1p(np.abs(x)), np.float64(0.1) * x),
    lambda x: x.astype(np.float32) * (x > 0).astype(float) + np.full((3, 4), x[0, 0], dtype=float),
    lambda x: np.power(np.square(x), 0.5) * np.sign(x) + np.outer(np.max(x, 1), np.linspace(0, 1, 4)),
    lambda x: [np.logaddexp(row, 1).sum() if isinstance(1.0, float) else None for row in x]])
def test_lines_of_students_keep_30_digits(function):
    before, exact = dict(globals()), exactly(function)
    first, second = (slope(lambda inputs: exact(inputs["x"]), {"x": X}, {"x": wide(X[::-1])}, h) for h in (20, 22))
    assert 1e-9 < abs(first) and abs(first - second) < 1e-30 * abs(first)
    np.testing.assert_allclose(rounded(exact(wide(X))), function(X), rtol=1e-6)     # one rounds to float32
    assert is_exact(np.asarray(exact(wide(X)))) and exact.__code__ is function.__code__ and before == globals()


@pytest.mark.parametrize("function", [
    lambda x: x.astype("float64"), lambda x: (1.0 * IDX).__setitem__(0, x[0, 0]), lambda x: np.linalg.inv(x @ x.T),
    lambda x: np.random.default_rng(0).random(4) * x, lambda x: x / 0, lambda x: math.nextafter(x[0, 0], 1)])
def test_what_cannot_be_computed_raises(function):
    with pytest.raises((TypeError, ZeroDivisionError)):
        exactly(function)(wide(X))


def test_probes_and_the_source_stay_and_mpmath_is_asked_for(monkeypatch):
    exact = exactly(layers.layernorm_forward)
    assert inspect.getsource(exact) == inspect.getsource(layers.layernorm_forward)
    probed = with_probes(exact, lambda name, value: value + (name == "var"))(wide(X), wide(X[0]))
    assert np.max(np.abs(probed[0] - exact(wide(X), wide(X[0]), eps=1 + wide(1e-5))[0])) < 1e-50
    assert type(exactly(lambda: math.sqrt(2.0 / math.pi))()) is float       # the constant of the lesson
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "npgpt\[study\]"'):
        numbers.__wrapped__()

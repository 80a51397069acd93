"""The stand-in for CuPy refuses what CuPy refuses, records waits, and has no name that CuPy lacks."""

import inspect

import numpy as np
import pytest

from tests import strict_cupy


@pytest.fixture
def xp(monkeypatch):
    return strict_cupy.install(monkeypatch)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def test_every_name_is_one_of_cupy():
    """Also each parameter of its functions, in the same order. Instances' own attributes cannot be asked for."""
    real = pytest.importorskip("cupy", reason="CuPy is not installed: there are no names to compare with")
    from cupy._core import _routines_linalg as real_linalg
    pairs = [(strict_cupy.cupy, real), (strict_cupy.cuda, real.cuda), (strict_cupy.runtime, real.cuda.runtime),
             (strict_cupy.linalg, real_linalg), (strict_cupy.random, real.random),
             (strict_cupy.Generator, real.random.Generator), (strict_cupy.Philox4x3210, real.random.Philox4x3210),
             (strict_cupy.ndarray, real.ndarray), (strict_cupy.ufunc, real.ufunc),
             (strict_cupy.Device, real.cuda.Device)]
    # CuPy loads "cublas" when it is looked at, from where it may not be.
    ours_alone = {"_array", "_function", "__module__", "__dict__", "__weakref__", "__init__", "cublas"}
    for ours, theirs in pairs:
        assert [name for name in vars(ours) if name not in ours_alone and not hasattr(theirs, name)] == [], ours
    for name, value in vars(strict_cupy.linalg).items():
        assert callable(value) or value == getattr(real_linalg, name), name
    for name, parameters in strict_cupy.FUNCTIONS.items():
        parameters, theirs = parameters.split(), list(inspect.signature(getattr(real, name)).parameters)
        assert parameters == [parameter for parameter in theirs if parameter in parameters], name
    for ours, theirs, names in ((strict_cupy.cupy, real, ("where", "take_along_axis", "put_along_axis", "asarray",
                                                          "may_share_memory")),
                                (strict_cupy.Generator, real.random.Generator, ("__init__", "random")),
                                (strict_cupy.Philox4x3210, real.random.Philox4x3210, ("__init__",))):
        for name in names:
            parameters, others = (list(inspect.signature(getattr(owner, name)).parameters) for owner in (ours, theirs))
            assert parameters == [parameter for parameter in others if parameter in parameters], name


@pytest.mark.parametrize("other", [np.ones(3), np.array(2.0)])
def test_a_numpy_array_is_refused_beside_one_of_the_gpu(xp, other):
    a = xp.asarray(np.ones(3))
    for mix in (lambda: a + other, lambda: other + a, lambda: np.add(a, other), lambda: np.add(a, a, out=other),
                lambda: xp.maximum(a, other), lambda: xp.where(a > 0, a, other), lambda: np.concatenate([a, other]),
                lambda: a.__iadd__(other), lambda: a @ other, lambda: other @ a, lambda: np.sum(a, out=other)):
        with pytest.raises(TypeError, match=r"Unsupported type.*numpy\.ndarray"):
            mix()
    for convert in (np.asarray, np.ascontiguousarray):
        with pytest.raises(TypeError, match="Implicit conversion to a NumPy array is not allowed"):
            convert(a)


@pytest.mark.parametrize("line", [
    "1 - a / b", "(a > 0) & (b > 0)", "a @ b.T", "a.sum(axis=1, keepdims=True)", "a.transpose(1, 0)", "a[index, 1]",
    "a[..., 0]", "np.minimum(1.0, a)", "np.where(a > 0, a.astype('f4'), 0.0)", "(a > 0).sum(dtype='f4')",
    "np.triu(np.full_like(a, -np.inf, shape=(3, 3)), k=1)", "np.take_along_axis(a, index[:, None] * 0, axis=-1)",
    "np.concatenate([np.zeros_like(a, shape=(2, 3)), a])", "np.zeros((2, 3), dtype='f4', like=a)", "sum(a[0])",
])
def test_numbers_and_dtypes_are_numpys(xp, line):
    host = {"a": normal(4, 3), "b": normal(4, 3)[::-1].copy(), "index": np.array([1, 2, 0, 1])}
    there = {name: xp.asarray(value) for name, value in host.items()}
    expected, found = (eval(line, {"np": np, **names}) for names in (host, there))
    assert type(found) is xp.ndarray and found.dtype == np.asarray(expected).dtype
    assert strict_cupy.gpu.waits == []
    np.testing.assert_allclose(found.get(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("call", ["float(a[0])", "1 if a[0] else 2", "a[0].item()", "a.get()"])
def test_what_makes_the_host_wait(xp, call):
    eval(compile(call, "the test's line", "eval"), {"a": xp.asarray(normal(3))})
    assert strict_cupy.gpu.waits == ["the test's line:1"]


def test_an_index_out_of_range_wraps(xp):
    a = xp.arange(5)
    assert a[xp.asarray([5, -1, 12])].tolist() == [0, 4, 2]
    assert np.take_along_axis(a[None], xp.asarray([[7]]), axis=1).tolist() == [[2]]
    np.put_along_axis(a[None], xp.asarray([[6]]), 9, axis=1)
    assert a.tolist() == [0, 9, 2, 3, 4]
    np.add.at(a, xp.asarray([1, 6]), xp.asarray([1, 2]))
    assert a.tolist() == [0, 12, 2, 3, 4]


def test_what_is_refused(xp):
    """What CuPy lacks, and what would wait or copy."""
    a = xp.asarray(normal(4))
    with pytest.raises(TypeError, match="takes only shape"):        # NumPy adds device=None
        np.full(3, 2.0, like=a)
    with pytest.raises(TypeError, match="cupy.sum takes only"):
        a.sum(where=a > 0)
    with pytest.raises(TypeError, match=r"numpy\.vander"):
        np.vander(a)
    with pytest.raises(NotImplementedError, match="multiply.at"):
        np.multiply.at(a, xp.asarray([0]), 2.0)
    for index in (a > 0, [0, 1], np.array([0])):
        with pytest.raises(TypeError, match="an index that CuPy would copy"):
            a[index]
    with pytest.raises(ValueError, match="non-scalar"):
        a[:] = normal(4)
    assert np.isnan(xp.empty(3).get()).all()        # memory that nobody wrote to
    strict_cupy.gpu.memory = 8000
    with pytest.raises(xp.cuda.memory.OutOfMemoryError, match="^Out of memory allocating 8,008 bytes"):
        xp.zeros(1001)

"""The stand-in for CuPy: it refuses what CuPy does, notes the host's waits, and has nothing that CuPy lacks."""

import inspect

import numpy as np
import pytest

from tests import strict_cupy, strict_nccl


@pytest.fixture
def xp(monkeypatch):
    return strict_cupy.install(monkeypatch)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def test_every_name_is_one_of_cupy():
    """Also each parameter of its functions, in the same order. Instances' own attributes cannot be asked for."""
    real = pytest.importorskip("cupy", reason="CuPy is not installed: there are no names to compare with")
    pairs = [(strict_cupy.cupy, real), (strict_cupy.cuda, real.cuda), (strict_cupy.runtime, real.cuda.runtime),
             (strict_cupy.ndarray, real.ndarray), (strict_cupy.ufunc, real.ufunc),
             (strict_cupy.RawKernel, real.RawKernel), (strict_cupy.Device, real.cuda.Device),
             (strict_cupy.Stream, real.cuda.Stream), (strict_cupy.Event, real.cuda.Event),
             (strict_cupy.MemoryPool, real.cuda.MemoryPool)]
    # Stream's instances have ptr; and CuPy loads "cublas" when it is looked at, from where it may not be.
    ours_alone = {"_array", "_function", "__module__", "__dict__", "__weakref__", "__init__", "ptr", "cublas"}
    for ours, theirs in pairs:
        assert [name for name in vars(ours) if name not in ours_alone and not hasattr(theirs, name)] == [], ours
    for name, parameters in strict_cupy.FUNCTIONS.items():
        parameters, theirs = parameters.split(), list(inspect.signature(getattr(real, name)).parameters)
        assert parameters == [parameter for parameter in theirs if parameter in parameters], name
    for owner, name in ((real, "where"), (real, "take_along_axis"), (real, "put_along_axis"), (real, "asarray"),
                        (real.cuda.Event, "record"), (real.cuda.Event, "__init__"), (real.cuda, "using_allocator"),
                        *((real.cuda.Stream, name) for name in ("__init__", "record", "wait_event", "begin_capture"))):
        ours = getattr({real: strict_cupy.cupy, real.cuda: strict_cupy.cuda}.get(owner) or
                       getattr(strict_cupy, owner.__name__), name)
        ours, theirs = (list(inspect.signature(function).parameters) for function in (ours, getattr(owner, name)))
        assert ours == [parameter for parameter in theirs if parameter in ours], name


def test_every_name_of_nccl_is_one_of_cupy():
    """Also the parameters' names: without a communicator, NCCL refuses a call only after CuPy has taken them."""
    pytest.importorskip("cupy", reason="CuPy is not installed: there are no names to compare with")
    from cupy.cuda import nccl, runtime
    if not nccl.available:
        pytest.skip("NCCL is not installed: there are no names to compare with")
    ours = vars(strict_nccl.nccl)
    assert [name for name in ours if not hasattr(nccl, name)] == []
    assert all(getattr(nccl, name) == ours[name] for name in ours if name.startswith("NCCL_"))
    assert runtime.runtimeGetVersion() // 1000 in (12, 13)
    assert type(nccl.get_unique_id()) is bytes and len(nccl.get_unique_id()) == 128
    nothing = nccl.NcclCommunicator.__new__(nccl.NcclCommunicator)
    nothing.destroy()
    for name in ("send", "recv", "broadcast", "allGather", "reduce", "reduceScatter"):
        parameters = list(inspect.signature(getattr(strict_nccl.NcclCommunicator, name)).parameters)[1:]
        with pytest.raises(nccl.NcclError, match="INVALID_ARGUMENT"):
            getattr(nothing, name)(**dict.fromkeys(parameters, 0))
    with pytest.raises(ValueError, match="commId length 3"):
        nccl.NcclCommunicator(ndev=2, commId=b"123", rank=0)


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
    "a + b", "1 - a", "a / b", "a < b", "(a > 0) & (b > 0)", "a @ b.T", "a.sum(axis=1, keepdims=True)", "a.mean()",
    "a.reshape(2, -1)", "a.transpose(1, 0)", "a.swapaxes(0, 1)", "a[1:, ::2]", "a[None, 1]", "a[..., 0]", "a[index, 1]",
    "a[index]", "a.astype('f4')", "np.exp(a)", "np.minimum(1.0, a)", "np.where(a > 0, a.astype('f4'), 0.0)",
    "np.triu(np.full_like(a, -np.inf, shape=(3, 3)), k=1)", "np.take_along_axis(a, index[:, None] * 0, axis=-1)",
    "np.concatenate([np.zeros_like(a, shape=(2, 3)), a])", "np.stack([a, b])", "np.zeros((2, 3), dtype='f4', like=a)",
    "(a > 0).sum(dtype='f4')", "np.float64(2.0) * a", "sum(a[0])",
])
def test_numbers_and_dtypes_are_numpys(xp, line):
    host = {"a": normal(4, 3), "b": normal(4, 3)[::-1].copy(), "index": np.array([1, 2, 0, 1])}
    there = {name: xp.asarray(value) for name, value in host.items()}
    expected, found = (eval(line, {"np": np, **names}) for names in (host, there))
    assert type(found) is xp.ndarray and found.dtype == np.asarray(expected).dtype
    assert strict_cupy.gpu.waits == []
    np.testing.assert_allclose(found.get(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("call", ["float(a[0])", "1 if a[0] else 2", "a[0].item()", "a.get()", "f'{a[0]:.2f}'"])
def test_what_makes_the_host_wait(xp, call):
    eval(compile(call, "the test's line", "eval"), {"a": xp.asarray(normal(3))})
    assert strict_cupy.gpu.waits == ["the test's line:1"]


def test_streams_that_do_not_wait_for_each_other_race(xp):
    a, stream = xp.zeros(3), xp.cuda.Stream()
    lines = (lambda: a + 1, lambda: a.fill(0), lambda: a.get(), lambda: a.set(np.zeros(3)), lambda: a @ a,
             lambda: xp.asarray(a), lambda: a.sum(), lambda: xp.where(a > 0, a, a), lambda: a.__setitem__(0, 1.0))
    for line in lines:
        with stream, pytest.raises(RuntimeError, match="a race"):
            line()
    stream.wait_event(xp.cuda.get_current_stream().record())
    for line in lines:
        with stream:
            line()
        with pytest.raises(RuntimeError, match="a race"):
            line()


def test_arrays_of_another_gpu_are_refused(xp):
    strict_cupy.gpu.devices = 2
    a = xp.zeros((2, 2))
    with xp.cuda.Device(1):
        for line in (lambda: a + 1, lambda: a.fill(0), lambda: a @ a, lambda: a.sum(), lambda: a.T + xp.zeros(2)):
            with pytest.raises(ValueError, match="array device = 0 while current = 1"):
                line()
    assert (a + 1).tolist() == [[1.0] * 2] * 2


def test_an_index_out_of_range_wraps_and_a_repeated_one_is_not_assigned_to(xp):
    a = xp.arange(5)
    assert a[xp.asarray([5, -1, 12])].tolist() == [0, 4, 2]
    assert np.take_along_axis(a[None], xp.asarray([[7]]), axis=1).tolist() == [[2]]
    np.put_along_axis(a[None], xp.asarray([[6]]), 9, axis=1)
    assert a.tolist() == [0, 9, 2, 3, 4]
    for index in ([1, 1], [1, 6]):
        with pytest.raises(ValueError, match="an index repeats"):
            a[xp.asarray(index)] += xp.asarray([1, 2])
    np.add.at(a, xp.asarray([1, 6]), xp.asarray([1, 2]))
    assert a.tolist() == [0, 12, 2, 3, 4]


def test_what_is_refused(xp):
    """What CuPy does not do, and what would wait or copy."""
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

"""The stand-in for CuPy: it refuses what CuPy does, counts the host's waits, and has nothing that CuPy lacks."""

import gc
import inspect

import numpy as np
import pytest

from tests import strict_cupy


@pytest.fixture
def xp(monkeypatch):
    return strict_cupy.install(monkeypatch)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def costs(function):
    """(waits, uploads) of a call."""
    strict_cupy.reset()
    function()
    return strict_cupy.syncs, strict_cupy.uploads


def test_it_is_what_import_finds(xp):
    import cupy
    from cupy.cuda.memory import OutOfMemoryError
    assert cupy is xp and issubclass(OutOfMemoryError, MemoryError)


def test_every_name_is_one_of_cupy():
    """Also each parameter of its functions, in the same order. Instances' own attributes cannot be asked for."""
    real = pytest.importorskip("cupy", reason="CuPy is not installed: there are no names to compare with")
    assert real is not strict_cupy.cupy
    pairs = [(strict_cupy.cupy, real), (strict_cupy.cuda, real.cuda), (strict_cupy.runtime, real.cuda.runtime),
             (strict_cupy.memory, real.cuda.memory), (strict_cupy.ndarray, real.ndarray),
             (strict_cupy.ufunc, real.ufunc), (strict_cupy.Device, real.cuda.Device),
             (strict_cupy.Stream, real.cuda.Stream), (strict_cupy.MemoryPool, real.cuda.MemoryPool)]
    # And "cublas", which CuPy loads when it is looked at, from where it may not be.
    ours_alone = {"_array", "_function", "_only", "__module__", "__dict__", "__weakref__", "__qualname__", "cublas"}
    for ours, theirs in pairs:
        assert [name for name in vars(ours) if name not in ours_alone and not hasattr(theirs, name)] == [], ours
    for name, parameters in (strict_cupy.FUNCTIONS | strict_cupy.WAITING).items():
        if parameters != "*":
            parameters, theirs = parameters.split(), list(inspect.signature(getattr(real, name)).parameters)
            assert parameters == [parameter for parameter in theirs if parameter in parameters], name
    for name in ("take", "where", "repeat", "take_along_axis", "put_along_axis", "copyto", "empty", "array", "asarray"):
        ours, theirs = (list(inspect.signature(getattr(module, name)).parameters) for module in (strict_cupy, real))
        assert ours == [parameter for parameter in theirs if parameter in ours], name


def test_no_conversion_to_numpy(xp):
    a = xp.asarray(normal(3))
    for convert in (np.asarray, np.array, np.ascontiguousarray):
        with pytest.raises(TypeError, match="Implicit conversion to a NumPy array is not allowed"):
            convert(a)


@pytest.mark.parametrize("other", [np.ones(3), np.array(2.0)])
def test_a_numpy_array_is_refused_beside_one_of_the_card(xp, other):
    a = xp.ones(3)
    for mix in (lambda: a + other, lambda: other + a, lambda: np.add(a, other), lambda: np.add(other, a),
                lambda: np.add(a, a, out=other), lambda: xp.maximum(a, other), lambda: xp.where(a > 0, a, other),
                lambda: np.concatenate([a, other]), lambda: a.__iadd__(other), lambda: a @ other, lambda: other @ a,
                lambda: np.sum(a, out=other)):
        with pytest.raises(TypeError, match=r"Unsupported type.*numpy\.ndarray"):
            mix()


def test_scalars_promote_as_in_numpy_2(xp):
    a = xp.ones(3, dtype=xp.float32)
    assert (a * 2.0).dtype == (2 * a).dtype == np.float32
    assert (a * np.float64(2.0)).dtype == (np.float64(2.0) * a).dtype == np.float64
    assert (a * xp.asarray(2.0)).dtype == np.float64        # a 0-d array is an array
    assert type(np.float64(2.0) * a) is xp.ndarray


def test_results_are_never_numpys(xp):
    a = xp.asarray(normal(4, 3))
    results = [a.sum(), a.max(), a.mean(), np.sum(a), a[0, 0], np.einsum("ij->", a), a.ravel() @ a.ravel(), -a[1, 1],
               a.argmax(), np.add.reduce(a.ravel()), sum(a.ravel()), *a[0], *a.nonzero(), *np.split(a, 2)]
    assert {type(result) for result in results} == {xp.ndarray}
    assert a.sum().shape == ()


@pytest.mark.parametrize("line", [
    "-a", "abs(a)", "a + b", "1 - a", "a / b", "2 ** b", "a ** 2", "a < b", "a == b", "~(a > 0)", "(a > 0) & (b > 0)",
    "a @ b.T", "a.T", "a.sum(axis=1, keepdims=True)", "a.max(axis=-1)", "a.mean()", "a.var(0)", "a.argmax(axis=1)",
    "a.reshape(2, -1)", "a.reshape((6, 2))", "a.transpose(1, 0)", "a.swapaxes(0, 1)", "a[1:, ::2]", "a[None, 1]",
    "a[..., 0]", "a[[2, 0]]", "a[:, [1, 1]]", "a.astype('f4')", "a.clip(-1, 1)", "a.ravel()", "a.copy()", "a.cumsum(0)",
    "np.exp(a)", "np.tanh(a)", "np.sqrt(abs(a))", "np.minimum(1.0, a)", "np.einsum('...c,...c->...', a, b)",
    "np.einsum('nc,nc->c', a, b)", "np.where(a > 0, a, 0)", "np.triu(a, k=1)", "np.take_along_axis(a, a.argsort(1), 1)",
    "np.concatenate([a, b], axis=1)", "np.stack([a, b])",
    "np.zeros((2, 3), dtype='f4', like=a)", "np.empty_like(a)[:0]",
    "np.zeros_like(a)", "np.diff(a.ravel(), prepend=-1)", "np.argsort(a, kind='stable')", "np.matmul(a.T, b)",
    "np.broadcast_to(a, (2, 4, 3))", "np.add.reduceat(a, index, axis=0)", "np.add.reduceat(a, index[::-1], axis=1)",
    "np.add.reduceat(a, index * 0, axis=0)",
    "np.repeat(a, 2, axis=0)", "np.unique(a)", "np.flatnonzero(a > 0)", "np.argwhere(a > 0)", "a[a > 0]", "a[index, 1]",
    "a.take(index, 0)", "np.bincount(index)", "np.floor(a)",
    "np.sum(a, axis=0, out=np.empty_like(b[0]))", "np.multiply.accumulate(a)", "np.full_like(a, 3)", "np.expm1(a)[0]",
])
def test_numbers_are_numpys(xp, line):
    host = {"a": normal(4, 3), "b": normal(4, 3)[::-1].copy(), "index": np.array([1, 2])}
    card = {name: xp.asarray(value) for name, value in host.items()}
    expected, found = (eval(line, {"np": np, **names}) for names in (host, card))
    assert type(found) is xp.ndarray
    assert found.dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(found.get(), expected, rtol=1e-12, atol=1e-12)


def test_views_and_writing_in_place(xp):
    host = normal(4, 6)
    a = xp.asarray(host)
    row = a.reshape(2, 2, 6).transpose(2, 0, 1)[3]
    a[1:3] += 1.0
    a[:, 0] *= a[:, 1]
    row[...] = 5.0
    a[0, 4:] = a[1, :2]
    host[1:3] += 1.0
    host[:, 0] *= host[:, 1]
    host[:, 3] = 5.0
    host[0, 4:] = host[1, :2]
    np.testing.assert_array_equal(a.get(), host)
    assert a.T.flags.f_contiguous and not a.T.flags.c_contiguous and a.T.strides == host.T.strides


def test_matmul_writes_to_contiguous_memory_of_its_dtype(xp):
    a, flat = normal(3, 4), xp.zeros(20)
    view = flat[4:].reshape(4, 4)
    assert np.matmul(xp.asarray(a.T), xp.asarray(a), out=view) is view
    np.testing.assert_allclose(flat.get()[4:].reshape(4, 4), a.T @ a)
    for out in (view.T, xp.zeros((4, 4), dtype="f4")):
        with pytest.raises(ValueError, match="CuPy would make an array and copy"):
            np.matmul(xp.asarray(a.T), xp.asarray(a), out=out)
    with pytest.raises(TypeError, match="Unsupported type"):
        np.matmul(xp.asarray(a.T), 2.0)


@pytest.mark.parametrize("call", [
    "float(a[0])", "int(a[0])", "bool(a[0])", "1 if a[0] else 2", "a[0].item()", "a.get()", "a.tolist()",
    "xp.asnumpy(a)", "str(a)", "f'{a[0]:.2f}'", "a[a > 0]", "a.nonzero()", "np.flatnonzero(a)", "np.argwhere(a)",
    "np.unique(a)", "np.where(a > 0)", "np.repeat(a, b)", "np.bincount(b)", "a.__setitem__(a > 0, 0.0)", "a.fill(a[0])",
    "xp.cuda.Device(0).synchronize()",
    "xp.cuda.get_current_stream().synchronize()",
])
def test_what_makes_the_host_wait(xp, call):
    names = {"a": xp.asarray(normal(3)), "b": xp.asarray([1, 0, 2]), "xp": xp, "np": np}
    assert costs(lambda: eval(compile(call, "the test's line", "eval"), names)) == (1, 0)
    assert strict_cupy.sync_places == ["the test's line:1"]


@pytest.mark.parametrize("call", [
    "len(a), a.shape, a.size, a.ndim, a.dtype, a.nbytes, a.strides, a.flags.c_contiguous", "list(a)", "a + 1.0",
    "a.sum()", "a[b]", "a[1:]", "a.__setitem__(0, 1.0)", "a.__setitem__(..., a[0])", "np.where(a > 0, a, 0)",
    "a @ a", "np.take_along_axis(a, b, 0)", "xp.zeros(3)", "xp.asarray(a)", "xp.asarray(3.0)", "np.repeat(a, 2)",
    "a.argsort()",
    "np.shape(a), np.ndim(a), np.size(a)", "xp.add.at(a, b, a)", "a.astype('f4')", "a.fill(2.0)",
    "np.diff(a, prepend=-1)",
])
def test_what_costs_no_wait_and_no_copy(xp, call):
    names = {"a": xp.asarray(normal(3)), "b": xp.asarray([1, 0, 2]), "xp": xp, "np": np}
    assert costs(lambda: eval(call, names)) == (0, 0)


def test_copies_to_the_card_are_counted(xp):
    a, host = xp.zeros(3), normal(3)
    for upload in (lambda: xp.asarray(host), lambda: xp.array([1, 2]), lambda: a.set(host), lambda: a[np.array([0, 1])],
                   lambda: a[[0, 1]], lambda: a.__setitem__([0, 1], 2.0)):
        assert costs(upload) == (0, 1)
    copied = xp.asarray(host)
    host[:] = 0.0
    assert (copied != 0.0).all()
    with pytest.raises(ValueError, match="non-scalar"):
        a[:] = host
    with pytest.raises(TypeError):
        a.set(host.astype("f4"))


def test_an_index_out_of_range_wraps(xp):
    a = xp.arange(5)
    assert a[xp.asarray([5, -1, 12])].tolist() == [0, 4, 2]
    assert a.take(xp.asarray([5, -1])).tolist() == [0, 4]
    assert np.take_along_axis(a[None], xp.asarray([[7]]), axis=1).tolist() == [[2]]
    np.put_along_axis(a[None], xp.asarray([[6]]), 9, axis=1)
    a[xp.asarray([5])] = -1
    assert a.tolist() == [-1, 9, 2, 3, 4]
    grid = xp.arange(6).reshape(2, 3)
    assert grid[..., xp.asarray([4])].tolist() == [[1], [4]]
    assert grid[:, None, xp.asarray([4])].tolist() == [[[1]], [[4]]]
    cube, mask = xp.arange(24).reshape(2, 3, 4), xp.asarray(np.arange(6).reshape(2, 3) == 4)
    assert cube[mask, xp.asarray([5])].tolist() == [17]
    with pytest.raises(IndexError):         # a number is looked at on the host
        a[5]


def test_a_repeated_index_is_not_assigned_to(xp):
    a, values = xp.zeros((3, 2)), xp.ones((2, 2))
    for index in ([1, 1], [1, 4]):
        with pytest.raises(ValueError, match="an index repeats"):
            a[xp.asarray(index)] = values
        with pytest.raises(ValueError, match="an index repeats"):
            a[xp.asarray(index)] += values
    a[xp.asarray([1, 1])] = 3.0         # the same value whoever comes last
    xp.add.at(a, xp.asarray([1, 1]), values)
    assert a.tolist() == [[0, 0], [5, 5], [0, 0]]


def test_what_is_in_an_index_array_is_a_copy(xp):
    a = xp.zeros((3, 2))
    a[xp.asarray(1)][...] = 1.0
    a[1][0] = 2.0
    assert a.tolist() == [[0, 0], [2, 0], [0, 0]]


def test_memory_that_nobody_wrote_to_is_garbage(xp):
    for a in (xp.empty(3), np.empty_like(xp.zeros(3)), np.empty(3, like=xp.zeros(3)), xp.ndarray(3)):
        assert xp.isnan(a).all()
    assert (xp.empty(3, dtype=int) < -1000).all()


def test_what_cupy_does_not_do(xp):
    a = xp.asarray(normal(4))
    with pytest.raises(TypeError, match="cupy.zeros takes only"):
        xp.zeros(3, like=a)
    for make in (lambda: np.ones(3, like=a), lambda: np.full(3, 2.0, like=a)):      # NumPy adds device=None
        with pytest.raises(TypeError, match="takes only shape"):
            make()
    with pytest.raises(TypeError, match="cupy.sum takes only"):
        a.sum(where=a > 0)
    with pytest.raises(ValueError, match="kind can only be"):
        np.argsort(a, kind="quicksort")
    with pytest.raises(TypeError, match=r"numpy\.vander"):
        np.vander(a)
    with pytest.raises(TypeError, match="spacing"):
        np.spacing(a)
    with pytest.raises(NotImplementedError, match="maximum.reduce"):
        np.maximum.reduce(a)
    with pytest.raises(NotImplementedError, match="multiply.at"):
        np.multiply.at(a, xp.asarray([0]), 2.0)
    with pytest.raises(TypeError):
        range(a[0])
    with pytest.raises(TypeError):
        hash(a)
    with pytest.raises(ValueError, match="Unsupported dtype"):
        xp.asarray(np.array(["a"]))
    for name in ("random", "vecdot", "errstate", "matvec"):
        assert not hasattr(xp, name)


def test_reduceat_loses_what_a_running_sum_loses(xp):
    a = np.array([1e8, 1.0, 1.0], np.float32)
    starts = np.array([0, 1])
    assert np.add.reduceat(a, starts).tolist() == [1e8, 2.0]
    assert np.add.reduceat(xp.asarray(a), xp.asarray(starts)).tolist() == [1e8, 0.0]


def test_erf_of_scipy(xp):
    special = pytest.importorskip("scipy.special")
    a = normal(5)
    np.testing.assert_array_equal(special.erf(xp.asarray(a)).get(), special.erf(a))


def test_memory(xp):
    pool, used = xp.get_default_memory_pool(), []
    strict_cupy.set_memory_limit(10240)
    a = xp.zeros(1000)
    view = a.reshape(10, 100)[2:].T
    used.append(pool.used_bytes())
    with pytest.raises(xp.cuda.memory.OutOfMemoryError,
                       match=r"^Out of memory allocating 8,192 bytes \(allocated so far: 8,192 bytes\)\.$"):
        a + 1.0
    del a
    gc.collect()
    used.append(pool.used_bytes())          # the view keeps it
    assert xp.cuda.Device(0).mem_info == (2048, 10240)
    del view
    gc.collect()
    used.append(pool.used_bytes())
    pool.free_all_blocks()
    assert used == [8192, 8192, 0]
    xp.zeros(1280)


def test_the_card(xp):
    assert xp.cuda.is_available() and xp.cuda.runtime.getDeviceCount() == 1
    assert str(xp.cuda.Device(0).use()) == str(xp.zeros(1).device) == "<CUDA Device 0>"
    with pytest.raises(xp.cuda.runtime.CUDARuntimeError, match="invalid device ordinal"):
        xp.cuda.Device(1).use()
    assert xp.get_array_module(np.zeros(1), xp.zeros(1)) is xp
    assert xp.get_array_module(np.zeros(1)) is np

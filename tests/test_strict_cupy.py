"""The stand-in for CuPy has no name that CuPy lacks, behaves as CuPy does, and its alarms ring."""

import importlib.metadata
import inspect
import re
import threading

import numpy as np
import pytest

from tests import strict_cupy
from tests.strict_gpu import CUBLAS_TF32_TENSOR_OP_MATH, cublas, gpu, linalg


@pytest.fixture
def cupy():
    """The real one, which works in part without a GPU. It has to be imported before the stand-in is installed."""
    return pytest.importorskip("cupy", reason="CuPy is not installed: there is nothing to compare with")


@pytest.fixture
def xp(monkeypatch):
    return strict_cupy.install(monkeypatch)


@pytest.fixture
def two(xp):
    """Two GPUs; names for `eval`: a, i and b are on the current one, 0, and c is on the other one."""
    gpu.devices = 2
    with xp.cuda.Device(1):
        c = xp.asarray(np.arange(6.0).reshape(2, 3))
    a, i = xp.asarray(np.ones((2, 3))), xp.asarray(np.array([0, 1]))
    return {"np": np, "xp": xp, "a": a, "i": i, "c": c, "b": a > 0, "x": np.ones(3)}


def test_names_and_parameters_are_cupys(cupy):
    methods = "T data flags device view copy get item tolist".split()
    methods += strict_cupy.METHODS + strict_cupy.VIEWS + strict_cupy.FIELDS
    names = [(strict_cupy.UFUNCS, cupy), (methods, cupy.ndarray), (vars(strict_cupy.cupy), cupy),
             (vars(strict_cupy.runtime), cupy.cuda.runtime), (vars(strict_cupy.random), cupy.random),
             (vars(strict_cupy.cuda).keys() - {"cublas"}, cupy.cuda),
             ([name for name in dir(strict_cupy.Device) if name[0] != "_"], cupy.cuda.Device)]
    assert [(name, theirs) for ours, theirs in names for name in ours if not hasattr(theirs, name)] == []
    for ours, theirs in (linalg, cupy._core._routines_linalg), (strict_cupy.runtime, cupy.cuda.runtime):
        assert all(callable(value) or value == getattr(theirs, name) for name, value in vars(ours).items())
    for name, parameters in strict_cupy.FUNCTIONS.items():
        parameters, theirs = parameters.split(), inspect.signature(getattr(cupy, name)).parameters
        assert parameters == [parameter for parameter in theirs if parameter in parameters], name


def test_constants_are_those_of_nvidias_header():
    try:
        header, = (file for file in importlib.metadata.files("nvidia-cublas") if file.name == "cublas_api.h")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-cublas, for a GPU, is not installed")
    text = header.read_text()
    ours = {name: value for name, value in vars(cublas).items() if isinstance(value, int)}
    for name, value in {**ours, "CUBLAS_TF32_TENSOR_OP_MATH": CUBLAS_TF32_TENSOR_OP_MATH}.items():
        assert re.search(rf"\b{name}\s*=\s*{value},", text), name


@pytest.mark.parametrize(
    "line",
    [
        "a + x",
        "x + a",
        "np.add(a, a, out=x)",
        "np.concatenate([a, x])",
        "np.asarray(a)",
        "a[x > 0]",
        "a[b]",
        "np.where(b)",
        "np.unique(a)",
        "np.sum(a, where=b)",
        "np.multiply.at(a, i, 2.0)",
    ],
)
def test_what_leaves_the_gpu_is_refused(two, line):
    """x is not on the GPU; CuPy waits for masks and what depends on them; it lacks the last two."""
    with pytest.raises(TypeError):
        eval(line, two)


@pytest.mark.parametrize(
    "line",
    [
        "c + a",
        "a @ c.T",
        "c.sum()",
        "c[i]",
        "a.__setitem__(0, c[0])",
        "c.__setitem__(0, 1)",
        "np.concatenate([a, c])",
        "np.add.at(c, i, 1.0)",
        "c.T.reshape(6)",
    ],
)
def test_an_array_of_another_device_is_refused(two, line):
    with pytest.raises(ValueError, match=r"resides \(1\) is different from the current device \(0\)"):
        eval(line, two)


def test_devices(two, xp):
    Device, c = xp.cuda.Device, two["c"]
    assert c.device == c[1:].device == c.T.device == Device(1) != Device() and int(c.device) == c.data.device_id == 1
    assert c.copy().device == xp.asarray(c).device == Device(0) and xp.asarray(two["a"]) is two["a"]
    generator, first = xp.random.Generator(xp.random.Philox4x3210(0)), Device(0)
    with Device(1) as entered, Device(0), first, entered:
        assert (gpu.current, (c + 1).device, entered.id) == (1, Device(1), 1)
        with pytest.raises(RuntimeError, match="a different device"):
            generator.random(3)
        there = []
        thread = threading.Thread(target=lambda: there.append(gpu.current))
        thread.start(), thread.join()
    assert gpu.current == 0 and there == [0]            # a new thread begins with device 0
    assert Device(1).use() == Device(1) and gpu.current == 1
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        Device(2).use()


def gemm(xp, a, b, c, transa=0, transb=0, beta=0.0, handle=None, **changes):
    """c = 2 op(a) op(b) + beta c, of C-contiguous arrays (batch, columns, rows): for cuBLAS, matrices by columns."""
    numbers = [np.array(value, c.dtype) for value in (2.0, beta)]
    ours = {"m": c.shape[2], "n": c.shape[1], "k": a.shape[2 if transa else 1], "batchCount": len(c), "algo": -1,
            "alpha": numbers[0].ctypes.data, "beta": numbers[1].ctypes.data,
            "computeType": cublas.CUBLAS_COMPUTE_64F if c.dtype == np.float64 else cublas.CUBLAS_COMPUTE_32F}
    for name, array in (("A", a), ("B", b), ("C", c)):
        ours |= {name: array.data.ptr, f"{name}type": int(c.dtype == np.float64), f"ld{name.lower()}": array.shape[2],
                 f"stride{name}": array.shape[1] * array.shape[2]}
    cublas.gemmStridedBatchedEx(handle or xp.cuda.Device().cublas_handle, transa, transb, **{**ours, **changes})


def operands(xp, transa=0, transb=0, dtype="float64", batch=4, m=2, k=3, n=5):
    """On the host op(a) and op(b), (batch, m, k) and (batch, k, n); on the GPU what `gemm` takes."""
    rng = np.random.default_rng(0)
    a, b = rng.random((batch, m, k)).astype(dtype), rng.random((batch, k, n)).astype(dtype)
    stored = (x if trans else x.swapaxes(1, 2) for x, trans in ((a, transa), (b, transb)))
    return a, b, *map(xp.asarray, map(np.ascontiguousarray, stored)), xp.empty((batch, n, m), dtype)


@pytest.mark.parametrize(("transa", "transb", "dtype"), [(0, 1, "float32"), (1, 0, "float64")])
def test_gemm_is_blas(xp, transa, transb, dtype):
    """From the addresses alone. If beta is 0, C may hold NaN before; a stride of 0 repeats a matrix."""
    a, b, *there = operands(xp, transa, transb, dtype)
    assert np.isnan(there[2].get()).all()
    for beta, factor in ((0.0, 2.0), (0.5, 3.0)):
        gemm(xp, *there, transa, transb, beta)
        np.testing.assert_allclose(there[2].get().swapaxes(1, 2), factor * a @ b, rtol=1e-6)
    gemm(xp, *there, transa, transb, strideB=0)
    np.testing.assert_allclose(there[2].get().swapaxes(1, 2), 2.0 * a @ b[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"lda": 1}, "INVALID_VALUE"),
        ({"batchCount": 5}, "IllegalAddress"),
        ({"strideA": 7}, "IllegalAddress"),
        ({"computeType": cublas.CUBLAS_COMPUTE_32F}, "NOT_SUPPORTED"),
        ({"handle": 5}, "NOT_INITIALIZED"),
    ],
)
def test_what_gemm_refuses(xp, changes, error):
    """Too small leading dimensions, memory beyond an array, and types; the factors are read on the host."""
    *_, a, b, c = operands(xp)
    with pytest.raises(RuntimeError, match=error):
        gemm(xp, a, b, c, **changes)
    with pytest.raises(RuntimeError, match="IllegalAddress"):
        gemm(xp, a, b, c, alpha=a.data.ptr)


@pytest.mark.parametrize(("line", "copies"), [
    ("m @ m.T", 0), ("m[:, ::2] @ m[::2, ::2].T", 2), ("b @ m.T", 1), ("b.swapaxes(0, 2) @ m.T", 2),
    ("m @ m.astype('float32')", 1), ("b[1:] @ b[1:]", 0)])
def test_copies_before_matmuls(xp, line, copies):
    """In 2-D cuBLAS takes rows and columns in either order; batched, CuPy makes all C-contiguous and of one type."""
    arrays = {"m": xp.zeros((4, 4)), "b": xp.zeros((4, 4, 4))}
    eval(compile(line, "npgpt.py", "eval"), {"np": np, **arrays})
    assert gpu.copies == ["npgpt.py:1"] * copies


@pytest.mark.parametrize(
    "line",
    [
        "a.get()",
        "float(a[0, 0])",
        "a[0, 0].item()",
        "f'{a}'",
        "xp.cuda.get_current_stream().synchronize()",
    ],
)
def test_waits(two, line):
    eval(compile(line, "npgpt.py", "eval"), two)
    assert gpu.waits == ["npgpt.py:1"]


def test_memory(xp):
    """Views take none; what is no longer used is free; the limit is for all arrays together."""
    a = xp.zeros(1000)
    view, total = a[10:].reshape(99, 10), a + 1.0
    assert gpu.used == gpu.peak == 16000
    del a, total
    assert (gpu.used, gpu.peak) == (8000, 16000)
    gpu.peak = gpu.used
    view += view * 2.0
    xp.zeros(1)
    assert (gpu.used, gpu.peak) == (8000, 8000 + view.nbytes)
    gpu.memory = 20000
    xp.ones(1500)                       # free at once
    with pytest.raises(MemoryError, match=r"allocating 12,008 bytes \(allocated so far: 8,000 bytes\)"):
        xp.ones(1501)


def test_a_sum_in_any_order_is_recorded(xp):
    a = xp.zeros((2, 3, 7))
    np.add.at(a[0], xp.asarray(np.array([0, 0])), 1.0)
    assert len(gpu.atomics) == 1 and gpu.atomics[0].startswith(f"{__file__}:") and float(a[0, 0, 0]) == 2.0

"""The stand-in for CuPy has no name that CuPy lacks, behaves as CuPy does, and its alarms ring."""

import importlib.metadata
import inspect
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests import strict_cupy
from tests.strict_gpu import CUBLAS_TF32_TENSOR_OP_MATH, cublas, gpu, linalg


@pytest.fixture
def cupy():
    """The real one, which works in part without a GPU. It has to be imported before the stand-in is
    installed.
    """
    return pytest.importorskip(
        "cupy", reason="CuPy is not installed: there is nothing to compare with"
    )


@pytest.fixture
def xp(monkeypatch):
    return strict_cupy.install(monkeypatch)


@pytest.fixture
def two(xp):
    """Two GPUs; names for `eval`: a, i and b are on the current one, 0, c on the other."""
    gpu.devices = 2
    with xp.cuda.Device(1):
        c = xp.asarray(np.arange(6.0).reshape(2, 3))
    a, i = xp.asarray(np.ones((2, 3))), xp.asarray(np.array([0, 1]))
    return {"np": np, "xp": xp, "a": a, "i": i, "c": c, "b": a > 0, "x": np.ones(3)}


def test_names_and_parameters_are_cupys(cupy):
    methods = "T data flags device view copy get item tolist".split()
    methods += strict_cupy.METHODS + strict_cupy.VIEWS + strict_cupy.FIELDS
    names = [
        (strict_cupy.UFUNCS, cupy),
        (methods, cupy.ndarray),
        (vars(strict_cupy.cupy), cupy),
        (vars(strict_cupy.runtime), cupy.cuda.runtime),
        (vars(strict_cupy.random), cupy.random),
        (vars(strict_cupy.cuda).keys() - {"cublas"}, cupy.cuda),
        (vars(linalg), cupy._core._routines_linalg),
    ]
    for ours, theirs in names:
        assert [name for name in ours if not hasattr(theirs, name)] == []
    for name, value in vars(linalg).items():
        assert callable(value) or value == getattr(cupy._core._routines_linalg, name)
    for name, ours in strict_cupy.FUNCTIONS.items():
        theirs = inspect.signature(getattr(cupy, name)).parameters
        assert ours.split() == [each for each in theirs if each in ours.split()], name


def test_constants_are_those_of_nvidias_header():
    try:
        files = importlib.metadata.files("nvidia-cublas")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-cublas, for a GPU, is not installed")
    (text,) = (file.read_text() for file in files if file.name == "cublas_api.h")
    ours = {"CUBLAS_TF32_TENSOR_OP_MATH": CUBLAS_TF32_TENSOR_OP_MATH, **vars(cublas)}
    for name, value in ours.items():
        if isinstance(value, int):
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
    with pytest.raises(
        ValueError, match=r"resides \(1\) is different from the current device \(0\)"
    ):
        eval(line, two)


def test_devices(two, xp):
    Device, c = xp.cuda.Device, two["c"]
    assert c.device == c[1:].device == c.T.device == Device(1) != Device()
    assert c.copy().device == xp.asarray(c).device == Device(0)
    generator = xp.random.Generator(xp.random.Philox4x3210(0))
    with Device(1) as entered, Device(0), entered:
        assert (gpu.current, (c + 1).device) == (1, Device(1))
        with pytest.raises(RuntimeError, match="a different device"):
            generator.random(3)
        with ThreadPoolExecutor(1) as pool:  # a new thread begins with device 0
            assert pool.submit(lambda: gpu.current).result() == 0
    assert gpu.current == 0
    assert Device(1).use() == Device(1) and gpu.current == 1
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        Device(2).use()


@pytest.mark.parametrize(
    ("line", "copies"),
    [
        ("m @ m.T", 0),
        ("m[:, ::2] @ m[::2, ::2].T", 2),
        ("b @ m.T", 1),
        ("b.swapaxes(0, 2) @ m.T", 2),
        ("m @ m.astype('float32')", 1),
        ("b[1:] @ b[1:]", 0),
    ],
)
def test_copies_before_matmuls(xp, line, copies):
    """In 2-D cuBLAS takes rows and columns in either order; batched, CuPy makes all C-contiguous
    and of one type.
    """
    arrays = {"m": xp.zeros((4, 4)), "b": xp.zeros((4, 4, 4))}
    eval(compile(line, "npgpt.py", "eval"), {"np": np, **arrays})
    assert gpu.copies == ["npgpt.py:1"] * copies


@pytest.mark.parametrize(
    ("line", "alarm"),
    [
        ("a.get()", "waits"),
        ("float(a[0, 0])", "waits"),
        ("a[0, 0].item()", "waits"),
        ("xp.cuda.get_current_stream().synchronize()", "waits"),
        ("np.add.at(a[0], i, 1.0)", "atomics"),
    ],
)
def test_what_waits_or_sums_in_any_order_is_recorded(two, line, alarm):
    eval(compile(line, "npgpt.py", "eval"), two)
    assert gpu.waits + gpu.atomics == getattr(gpu, alarm) == ["npgpt.py:1"]


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
    xp.ones(1500)  # free at once
    with pytest.raises(
        MemoryError, match=r"allocating 12,008 bytes \(allocated so far: 8,000 bytes\)"
    ):
        xp.ones(1501)

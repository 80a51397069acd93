"""Matmuls by Intel's MKL, for any layout of memory; and which kernels a machine gets."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from npgpt import UserError
from npgpt.engine import cpu
from npgpt.engine.cpu import cpu_kernels, is_installed
from npgpt.engine.matmul import Intel
from tests.cases import LAYOUTS, unchanged
from tests.helpers.runs import refused

MKL = pytest.mark.skipif(not is_installed(), reason="Intel's MKL is in the extra mkl")
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def check(a, b):
    """As NumPy, whichever of the factors is Intel's; the result is a plain array, the factors stay as they are."""
    expected = a @ b
    for x, y in ((a.view(Intel), b), (a, b.view(Intel)), (a.view(Intel), b.view(Intel))):
        with unchanged((a, b)):
            ours = x @ y
        assert type(ours) is np.ndarray and ours.dtype == expected.dtype
        tolerance = 1e-12 if ours.dtype == np.float64 else 1e-5
        np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)


def backwards(array):
    """The matrices as they are, their order backwards in memory."""
    leading = tuple(range(array.ndim - 2))
    return np.flip(np.flip(array, leading).copy(), leading)


@MKL
@DTYPES
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (5, 7, 3), (1, 6, 4), (4, 6, 1), (3, 1, 5), (0, 3, 2), (3, 0, 2),
                                           (3, 2, 0)])
@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (1, 1), (0, 2)], ids=str)
def test_any_layout(leading, m, k, n, dtype):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((*leading, *shape)).astype(dtype) for shape in ((m, k), (k, n)))
    layouts = [*LAYOUTS, lambda array: array.swapaxes(-1, -2).copy().swapaxes(-1, -2),
               lambda array: np.repeat(array, 2, axis=-2)[..., ::2, :],
               lambda array: np.broadcast_to(array[..., :1, :], array.shape),
               lambda array: np.broadcast_to(array[:1], array.shape), backwards,
               lambda array: np.concatenate(2 * [array], axis=-1)[..., :array.shape[-1]]]
    for of_a, of_b in itertools.product(layouts, layouts):
        check(of_a(a), of_b(b))


@pytest.mark.parametrize(("numba", "installed", "expected"), [
    (True, True, "numba"), (True, False, "numba"), (False, True, "numpy")])
def test_auto_is_the_fastest_that_is_there(monkeypatch, numba, installed, expected):
    if numba:
        pytest.importorskip("numba", reason="compiles loops; it is in the extras fast and test")
    else:
        monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(cpu, "is_installed", lambda: installed)
    assert cpu_kernels() == expected and cpu_kernels("numpy") == "numpy"
    for kernels, extra, there in (("numba", "fast", numba), ("mkl", "mkl", numba and installed)):
        if there:
            assert cpu_kernels(kernels) == kernels
        else:
            with pytest.raises(UserError, match=rf"--kernels {kernels} needs .*npgpt\[{extra}\].*use --kernels numpy"):
                cpu_kernels(kernels)


@pytest.mark.parametrize("threads", ["0", "-1"])
def test_auto_works_with_a_broken_numba(threads, text_file):
    """Numba cannot be imported with such a number of threads, and says so by a ValueError."""
    pytest.importorskip("numba", reason="compiles loops; it is in the extras fast and test")

    def run(*command):
        return subprocess.run([sys.executable, *command], capture_output=True, text=True,
                              env={**os.environ, "NUMBA_NUM_THREADS": threads})

    found = run("-m", "npgpt", "info")
    assert found.returncode == 0 and found.stderr == "" and "--kernels numba              not here: " in found.stdout
    found = run("-c", "from npgpt import GPT, GPTConfig\n"
                      "print(GPT(GPTConfig(vocab_size=5, n_layer=1, n_head=1, n_embd=8), threads=2).engine.kernels)")
    assert (found.returncode, found.stdout, found.stderr) == (0, "numpy\n", "")
    found = run("-m", "npgpt", "train", "--corpus", text_file, "--kernels", "numba")
    refused((found.returncode, found.stdout, found.stderr), "npgpt: --kernels numba needs Numba (")

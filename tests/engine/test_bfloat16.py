"""Matmuls of bfloat16 factors on a CPU: how they round, how often, and what stays float32."""

import importlib.metadata
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import torch

from npgpt import GPT, GPTConfig, UserError, layers, load
from npgpt.engine.threads import blas_threads, using_cores
from tests.cases import LAYOUTS
from tests.helpers.runs import refused, refusing

pytest.importorskip("numba", reason="compiles loops; it is in the extras fast and test")
from npgpt.engine import bfloat16
from npgpt.engine.bfloat16 import Rounding, matmul, rounded

try:
    bfloat16.library()
    missing = ""
except UserError as error:
    missing = str(error)
on_this_cpu = pytest.mark.skipif(bool(missing), reason=missing)
every_size = mock.patch.multiple(bfloat16, LEAST=0, NARROWEST=0)
SIZES = {
    "vocab_size": 65,
    "block_size": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "initializer_range": 0.2,
}
VARIANTS = {"tie_word_embeddings": False, "lm_head_bias": True, "causal": False}
SHAPES = {
    "more rows": ((37, 70), (70, 45)),
    "more columns": ((45, 70), (70, 137)),
    "many matrices": ((2, 3, 33, 64), (2, 3, 64, 40)),
}


def as_float32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def off(ours, expected):
    """Return how far an array is from another one, relative to its norm."""
    return np.linalg.norm(ours - expected) / np.linalg.norm(expected)


@on_this_cpu
@pytest.mark.parametrize("n", [20, 2**18 + 1], ids=["one thread", "parts"])
def test_numbers_are_rounded_as_by_torch(n):
    """To the nearest, ties to even; infinity, NaN and the largest numbers, too."""
    bits = np.random.default_rng(0).integers(0, 2**32, (2, 2, n), np.uint32)
    bits[..., ::3] = bits[..., ::3] & 0xFFFF0000 | 0x8000  # ties
    numbers = bits.view(np.float32)
    numbers[0, 0, :4] = np.inf, -np.inf, np.nan, np.finfo(np.float32).max
    for layout in LAYOUTS:
        ours = layout(numbers)
        expected = torch.tensor(ours.copy()).bfloat16().float().numpy()
        with using_cores(3):
            np.testing.assert_array_equal(as_float32(rounded(ours)), expected)


@on_this_cpu
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_matmul_sums_products_of_rounded_factors_in_float32(shapes):
    """In every layout, on any number of cores."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, np.float32) for shape in shapes)
    exact = as_float32(rounded(a)).astype(float) @ as_float32(rounded(b)).astype(float)
    assert off(exact, a.astype(float) @ b) > 1e-4
    for layout in LAYOUTS:
        x, y = layout(a), layout(b)
        for cores in (1, 3):
            with every_size, using_cores(cores), blas_threads(1):
                left, right = x.view(Rounding) @ y, x @ y.view(Rounding)
                turned = y.view(Rounding).swapaxes(-1, -2) @ x.swapaxes(-1, -2)
            np.testing.assert_array_equal(left, right)
            for ours in (left, turned.swapaxes(-1, -2)):
                assert type(ours) is np.ndarray and ours.dtype == np.float32
                np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-5 * abs(exact).max())


@on_this_cpu
def test_views_have_their_arrays_bits():
    array = np.random.default_rng(0).standard_normal((4, 6, 8), np.float32)
    x = array.view(Rounding)
    views = (
        x[1:3, ::2],
        x.reshape(-1, 8).T,
        x[[2, 0]],
        x[..., None, 1],
        x.reshape(2, 2, -1)[1].T[3:],
        x[::-1, :, ::-2],
    )
    for view in views:
        np.testing.assert_array_equal(view.as_bits(), rounded(np.array(view)))
    assert type(x[1, 2, 3]) is np.float32


@on_this_cpu
def test_what_stays_float32():
    """Small matmuls, other dtypes, a vector, and matrices that are broadcast."""
    a = np.random.default_rng(0).standard_normal((2, 800, 200), np.float32)
    pairs = [
        (a[0, :31], a[1].T),
        (a[0], a[1, :31].T),
        (a[0].astype(float), a[1].T.astype(float)),
        (a[0], a[0, 0]),
        (a, a[0].T),
    ]
    for x, y in pairs:
        with mock.patch.object(bfloat16, "multiply", side_effect=AssertionError):
            np.testing.assert_array_equal(matmul(x.view(Rounding), y), x @ y)
            np.testing.assert_array_equal(matmul(x, y.view(Rounding)), x @ y)
    with pytest.raises(ValueError, match="mismatch"):
        matmul(a[0].view(Rounding), a[1])


@on_this_cpu
@pytest.mark.parametrize("more", [{}, {"activation": "gelu", **VARIANTS}], ids=str)
def test_a_models_gradients_are_near_float64_and_float32s_nearer(more):
    """Of the norm of all; the parameters and the gradients are float32. In tiles, too."""
    idx, targets = np.random.default_rng(0).integers(0, 65, (2, 3, 32))
    config = GPTConfig(**SIZES, **more)

    def gradients(dtype, kernels="auto"):
        model = GPT(config, seed=2, dtype=dtype, kernels=kernels, threads=2)
        tiles = {"QUERIES": 4, "BLOCK_BYTES": 1024, "KEPT": 16}
        with every_size, mock.patch.multiple("npgpt.engine.tiles", **tiles):
            loss, grads = model.loss_and_grads(idx, targets)
        assert {each.dtype for each in grads.values()} == {model.params.dtype}
        return loss, np.concatenate([grads[name].ravel() for name in sorted(grads)])

    (loss, ours), (loss_32, grads_32) = gradients("bfloat16"), gradients("float32")
    exact, expected = gradients("float64", "reference")
    assert abs(loss_32 - exact) < 1e-5 and off(grads_32, expected) < 1e-5
    assert abs(loss - exact) < 1e-2 and 1e-4 < off(ours, expected) < 1e-2


@on_this_cpu
def test_a_lesson_that_writes_to_a_factor_is_not_rounded_once():
    """An edited backward gets arrays that are rounded for each matmul."""

    def edited_backward(dy, cache):
        x, weight, has_bias = cache
        rows, dy_rows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        drows = dy_rows @ weight.T
        dy_rows *= 3.0
        dbias = dy_rows.sum(axis=0) if has_bias else None
        return drows.reshape(x.shape), rows.T @ dy_rows, dbias

    idx, targets = np.random.default_rng(0).integers(0, 65, (2, 3, 32))
    with mock.patch.object(layers, "linear_backward", edited_backward), every_size:
        models = [GPT(GPTConfig(**SIZES), 2, dtype) for dtype in ("bfloat16", "float32")]
        ours, expected = (model.loss_and_grads(idx, targets)[1] for model in models)
    for name in expected:
        assert off(ours[name], expected[name]) < 5e-2, name


@on_this_cpu
def test_a_run_trains_samples_and_resumes_in_bfloat16(train, npgpt):
    flags = "--dtype bfloat16 --n-embd 64 --n-head 1 --block-size 64 --batch-size 24".split()
    with mock.patch.object(bfloat16, "multiply", side_effect=bfloat16.multiply) as multiply:
        code, out, _ = train(*flags, "--max-iters", 4, "--out-dir", "out")
    assert code == 0 and multiply.call_count and "matmuls by oneDNN" in out
    assert train(*flags, "--max-iters", 2, "--out-dir", "half")[0] == 0
    assert npgpt(*"train --resume --out-dir half --max-iters 4".split())[0] == 0
    weights = [load(folder)[0].params.flat for folder in ("out", "half")]
    np.testing.assert_array_equal(*weights)
    assert npgpt(*"sample out --max-new-tokens 5".split())[0] == 0
    assert npgpt("eval", "out")[0] == 0


def test_what_is_refused(monkeypatch):
    config = GPTConfig(**SIZES)
    with refusing("needs --kernels auto, numba or xla"):
        GPT(config, dtype="bfloat16", kernels="reference")
    with monkeypatch.context() as patch, refusing("needs Numba"):
        patch.setitem(sys.modules, "numba", None)
        GPT(config, dtype="bfloat16")
    bfloat16.library.cache_clear()
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)
    with refusing(r'needs oneDNN on a CPU .*pip install "npgpt\[bfloat16\]"'):
        GPT(config, dtype="bfloat16")
    bfloat16.library.cache_clear()


@on_this_cpu
def test_a_cpu_that_gains_nothing_is_told_so(tmp_path):
    command = [sys.executable, "-m", "npgpt", "train", "--corpus", __file__, "--dtype", "bfloat16"]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    )
    refused(
        (found.returncode, found.stdout, found.stderr),
        "npgpt: dtype bfloat16 gains nothing on this CPU",
    )

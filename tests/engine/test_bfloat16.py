"""Matmuls of bfloat16 factors on a CPU: how they round, how often, and what stays float32."""

import ctypes
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from npgpt import GPT, GPTConfig, UserError, layers, load
from npgpt.engine.ops import seen_as
from npgpt.engine.threads import blas_threads, using_cores
from tests.cases import LAYOUTS
from tests.helpers.runs import refused

pytest.importorskip("numba", reason="compiles loops; it is in the extras fast and test")
from npgpt.engine import bfloat16
from npgpt.engine.bfloat16 import Forgetful, Rounding, matmul, rounded

try:
    bfloat16.library()
    missing = ""
except UserError as error:
    missing = str(error)
on_this_cpu = pytest.mark.skipif(bool(missing), reason=missing)
every_size = mock.patch.multiple(bfloat16, LEAST=0, NARROWEST=0)
SIZES = {"vocab_size": 65, "block_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 32,
         "initializer_range": 0.2}
VARIANTS = {"tie_word_embeddings": False, "lm_head_bias": True, "causal": False}
SHAPES = {"more rows": ((37, 70), (70, 45)), "more columns": ((45, 70), (70, 137)),
          "many matrices": ((2, 3, 33, 64), (2, 3, 64, 40))}


def as_float32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def off(ours, expected):
    """Return how far an array is from another one, relative to its norm."""
    return np.linalg.norm(ours - expected) / np.linalg.norm(expected)


@on_this_cpu
@pytest.mark.parametrize("n", [20, 2**18 + 1], ids=["one thread", "parts"])
def test_numbers_are_rounded_as_by_torch(n):
    """To the nearest, ties to even; infinity, NaN and the largest numbers, too."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 4 * n, np.uint32)
    bits[::3] &= 0xFFFF0000
    bits[::3] |= 0x8000                             # ties
    numbers = bits.view(np.float32).reshape(2, 2, n)
    numbers[0, 0, :4] = np.inf, -np.inf, np.nan, np.finfo(np.float32).max
    for layout in LAYOUTS:
        ours = layout(numbers)
        expected = torch.tensor(ours.copy()).bfloat16().float().numpy()
        with using_cores(3):
            np.testing.assert_array_equal(as_float32(rounded(ours)), expected)


@on_this_cpu
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_matmul_sums_products_of_rounded_factors_in_float32(shapes):
    """In every layout, on any number of cores; the same number gives the same bits."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, np.float32) for shape in shapes)
    exact = as_float32(rounded(a)).astype(float) @ as_float32(rounded(b)).astype(float)
    for layout in LAYOUTS:
        x, y = layout(a), layout(b)
        for cores in (1, 2, 3):
            with every_size, using_cores(cores), blas_threads(1):
                left, right = x.view(Rounding) @ y, x @ y.view(Rounding)
                turned = y.view(Rounding).swapaxes(-1, -2) @ x.swapaxes(-1, -2)
            for ours in (left, right, turned.swapaxes(-1, -2)):
                assert type(ours) is np.ndarray and ours.dtype == np.float32
                np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-5 * abs(exact).max())
            np.testing.assert_array_equal(left, right)
        assert off(left, a.astype(float) @ b) > 1e-4                # and they are rounded


@on_this_cpu
def test_views_have_their_arrays_bits():
    array = np.random.default_rng(0).standard_normal((4, 6, 8), np.float32)
    views = (lambda x: x[1:3, ::2], lambda x: x.reshape(-1, 8).T, lambda x: x.swapaxes(0, 1)[:, 2:],
             lambda x: x[[2, 0]], lambda x: x[..., None, 1], lambda x: x.reshape(2, 2, -1)[1].T[3:],
             lambda x: x[::-1, :, ::-2])
    for view in views:
        np.testing.assert_array_equal(view(array.view(Rounding)).as_bits(), rounded(view(array)))
    assert type(array.view(Rounding)[1, 2, 3]) is np.float32


@on_this_cpu
def test_each_array_is_rounded_once():
    """For its forward and its backward: x, the weight and dy of a linear layer."""
    rng = np.random.default_rng(0)
    shapes = (3, 40, 64), (64, 128), (3, 40, 128)
    x, weight, dy = (rng.standard_normal(shape, np.float32) for shape in shapes)
    forward, backward = seen_as(Rounding, layers.linear_forward, layers.linear_backward)
    with every_size, mock.patch.object(bfloat16, "rounded", side_effect=rounded) as rounding:
        _, cache = forward(x, weight)
        dx, dweight, _ = backward(dy, cache)
    assert tuple(each.args[0].shape for each in rounding.call_args_list) == shapes
    assert type(dx) is type(dweight) is np.ndarray


@on_this_cpu
def test_what_stays_float32():
    """Small matmuls, other dtypes, a vector, and matrices that are broadcast."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 800, 200), np.float32)
    wide = a.astype(float)
    for x, y in ((a[0, :31], a[1].T), (a[0], a[1, :31].T), (wide[0], wide[1].T),
                 (a[0], a[0, 0]), (a[0, 0], a[1].T), (a, a[0].T), (a[:, :60, :50], a[:, :50, :60])):
        with mock.patch.object(bfloat16, "multiply", side_effect=AssertionError):
            np.testing.assert_array_equal(matmul(x.view(Rounding), y), x @ y)
            np.testing.assert_array_equal(matmul(x, y.view(Rounding)), x @ y)
    with pytest.raises(ValueError, match="mismatch"):
        matmul(a[0].view(Rounding), a[1])


@on_this_cpu
@pytest.mark.parametrize("more", [{}, {"activation": "gelu"}, {"attn_pdrop": 0.2}, VARIANTS], ids=str)
def test_a_models_gradients_are_near_float64_and_float32s_nearer(more):
    """Of the norm of all; the parameters and the gradients are float32. In tiles, too."""
    idx, targets = np.random.default_rng(0).integers(0, 65, (2, 3, 32))

    def gradients(dtype, kernels):
        model = GPT(GPTConfig(**SIZES, **more), seed=2, dtype=dtype, kernels=kernels, threads=2)
        rng = model.engine.dropout_rng(1, 0, 0)
        tiles = {"QUERIES": 4, "BLOCK_BYTES": 1024, "KEPT": 16}
        with every_size, mock.patch.multiple("npgpt.engine.tiles", **tiles):
            loss, grads = model.engine.loss_and_grads([(idx, targets)], [rng], targets.size)
        kinds = {(type(each), each.dtype) for each in grads.values()}
        assert kinds == {(np.ndarray, model.params.dtype)}
        return loss, np.concatenate([grads[name].ravel() for name in sorted(grads)])

    loss, ours = gradients("bfloat16", "auto")
    loss_32, grads_32 = gradients("float32", "auto")
    assert abs(loss - loss_32) < 1e-2 and 1e-4 < off(ours, grads_32) < 1e-2
    if "attn_pdrop" not in more:            # the masks of float64 are others
        exact, expected = gradients("float64", "reference")
        assert abs(loss_32 - exact) < 1e-5 and off(grads_32, expected) < 1e-5
        assert abs(loss - exact) < 1e-2 and off(ours, expected) < 1e-2


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

    rng = np.random.default_rng(0)
    shapes = (40, 64), (64, 48), (40, 48)
    x, weight, dy = (rng.standard_normal(shape, np.float32) for shape in shapes)
    right = edited_backward(dy.copy(), layers.linear_forward(x, weight)[1])
    for kind, within in ((Forgetful, True), (Rounding, False)):
        forward, backward = seen_as(kind, layers.linear_forward, edited_backward)
        with every_size:
            ours = backward(dy.copy(), forward(x, weight)[1])
        assert off(ours[0], right[0]) < 1e-2 and (off(ours[1], right[1]) < 1e-2) == within
    # An engine notices.
    idx, targets = rng.integers(0, 65, (2, 3, 32))
    with mock.patch.object(layers, "linear_backward", edited_backward), every_size:
        grads, expected = (
            GPT(GPTConfig(**SIZES), seed=2, dtype=dtype).engine.loss_and_grads(
                [(idx, targets)], [None], targets.size)[1] for dtype in ("bfloat16", "float32"))
    for name in expected:
        assert off(grads[name], expected[name]) < 5e-2, name


@on_this_cpu
def test_a_matmul_has_one_thread_of_openmp():
    """Ours work at the same time. The caller's number of OpenMP's threads stays."""
    a, b = np.random.default_rng(0).standard_normal((2, 400, 400), np.float32)
    openmp, threads = ctypes.CDLL("libgomp.so.1"), Path("/proc/self/task")
    openmp.omp_set_num_threads(7)
    expected = a @ b
    before = len([*threads.iterdir()])
    assert off(matmul(a.view(Rounding), b), expected) < 1e-2
    assert (openmp.omp_get_max_threads(), len([*threads.iterdir()])) == (7, before)


@on_this_cpu
@pytest.mark.parametrize("threads", [1, 2])
def test_the_engine_says_so(threads):
    model = GPT(GPTConfig(**SIZES), dtype="bfloat16", threads=threads)
    assert "loops by Numba, matmuls by oneDNN" in repr(model)


@on_this_cpu
def test_a_run_trains_samples_and_resumes_in_bfloat16(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from npgpt.cli.main import main
    tiny = ("--n-layer 1 --n-head 1 --n-embd 64 --block-size 64 --batch-size 24 --eval-iters 1 "
            "--warmup-iters 1 --lr-decay-iters 4")
    (tmp_path / "text").write_text("to be, or not to be: that is the question. " * 60)
    train = f"train --corpus text --dtype bfloat16 --max-iters 4 {tiny} --out-dir "
    with mock.patch.object(bfloat16, "multiply", side_effect=bfloat16.multiply) as multiply:
        assert main(f"{train} out".split()) == 0
    assert multiply.call_count
    assert main([*f"{train} half".split(), "--max-iters", "2"]) == 0
    assert main("train --resume --out-dir half --max-iters 4".split()) == 0
    weights = [load(folder)[0].params.flat for folder in ("out", "half")]
    np.testing.assert_array_equal(*weights)
    assert main("sample out --max-new-tokens 5".split()) == 0
    assert main("eval out".split()) == 0


def test_what_is_refused(monkeypatch):
    config = GPTConfig(**SIZES)
    with pytest.raises(UserError, match="needs --kernels auto, numba or xla"):
        GPT(config, dtype="bfloat16", kernels="reference")
    with monkeypatch.context() as patch, pytest.raises(UserError, match="needs Numba"):
        patch.setitem(sys.modules, "numba", None)
        GPT(config, dtype="bfloat16")
    bfloat16.library.cache_clear()
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)
    with pytest.raises(UserError, match=r'needs oneDNN on a CPU .*pip install "npgpt\[bfloat16\]"'):
        GPT(config, dtype="bfloat16")
    bfloat16.library.cache_clear()


@on_this_cpu
def test_a_cpu_that_gains_nothing_is_told_so(tmp_path):
    command = [sys.executable, "-m", "npgpt", "train", "--corpus", __file__, "--dtype", "bfloat16"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path,
                           env={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"})
    refused((found.returncode, found.stdout, found.stderr),
            "npgpt: dtype bfloat16 gains nothing on this CPU")

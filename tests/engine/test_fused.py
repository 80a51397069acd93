"""Fused lesson lines: a stand-in for `cupy.fuse` calls each kernel's function on NumPy arrays. CuPy's own traces it."""

import dis
import functools

import numpy as np
import pytest
from scipy.special import erf

from npgpt import layers
from npgpt.engine.fused import Fused, fuse_lines
from npgpt.engine.update import adamw_update
from npgpt.study.lessons.random_settings import random_settings
from npgpt.study.lessons.table import LAYERS, lesson_named
from tests.helpers.lines import DTYPES, PAIRS, arguments_of, assert_alike, defined, results_of

FUSED = ["attention", "cross_entropy", "gelu_exact", "gelu_tanh", "layernorm"]


def fused(function, fuse=lambda kernel: kernel, np=np, erf=erf):
    return fuse_lines(function, fuse, np=np, erf=erf)


def pair_of(name, compiled):
    return [compiled(getattr(layers, f"{name}_{way}")) for way in ("forward", "backward")]


@DTYPES
@pytest.mark.parametrize("name", PAIRS)
def test_the_lesson(name, dtype, monkeypatch):
    """Any sizes, layouts, switches and masks: the same bits."""
    monkeypatch.setattr(Fused, "refusal", ())
    for seed, setting in enumerate(random_settings(LAYERS[name], 0)):
        ours, theirs = (results_of(pair_of(name, compiled), *arguments_of(lesson_named(name, setting), seed, dtype))
                        for compiled in (fused, lambda function: function))
        assert_alike(ours, theirs, 0)


def updated(update, dtype, clip):
    arrays = [*np.random.default_rng(0).random((4, 3)).astype(dtype)]
    p, m, v = update(*arrays, 1e-3, 0.1, 1e-8, 0.9, 0.99, 0.1, clip)
    assert p is arrays[0] and m is arrays[2] and v is arrays[3]
    return arrays


@DTYPES
def test_adamw(dtype):
    """In place; on a GPU the factor of the gradients is an array."""
    for clip in 0.5, np.array(0.5, dtype):
        np.testing.assert_array_equal(updated(fused(adamw_update), dtype, clip), updated(adamw_update, dtype, clip))


def test_kernels():
    """The operations of each kernel, forward and backward: without fusion each is a kernel."""
    def fuse(kernel):
        found.append(sum(each.opname in ("BINARY_OP", "CALL") for each in dis.get_instructions(kernel)))
        return kernel

    for name, operations in zip(FUSED, ([2, 2, 2, 3], [2], [5, 8], [9, 14], [3, 3, 4]), strict=True):
        found = []
        pair = pair_of(name, lambda function: fused(function, fuse))
        results_of(pair, *arguments_of(lesson_named(name), 0, np.float32))
        assert found == operations, name


@pytest.mark.parametrize(("lines", "n"), [
    ("a = w * w + w; y = x * a + a", 2), ("a = w * w + w; a = a * x + x", 2),     # results keep their shapes
    ("y = x; a = y * y + x", 1), ("a = x; x = x * x + w", 1), ("y = np.zeros_like(x); y += x * x; y -= x", 1),
    ("s = eps * 2.0; a = x * s + s; s = x * (s * s)", 1), ("a = x * np.sqrt(eps) + w * (eps if flag else 1.0)", 1),
    ("a = i * 0.5 + 1.0", 0), ("a = (x > 0.0) * 0.5 + x", 0),                       # CuPy would compute with float16
    ("x = 1.0; a = x * x + x", 0)])
def test_other_lines(lines, n):
    """The same results with n kernels, and also if CuPy refuses these."""
    function = defined("def f(x, w, i, eps, flag=True, a=0, y=0):\n    " + lines.replace("; ", "\n    ")
                       + "\n    return a, y, a is x, y is x, x")
    x, kernels = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3), []
    for fuse in lambda kernel: kernels.append(kernel) or kernel, lambda kernel: "not a function":
        assert_alike(fused(function, fuse)(x, x[0], x[0] > 0.5, 0.25), function(x, x[0], x[0] > 0.5, 0.25), 0)
    assert len(kernels) == n


def test_an_edit_is_fused():
    f, g = (defined(f"def f(x):\n    y = x * {factor} + x\n    return y") for factor in (4.0, 5.0))
    ours = fused(f)
    assert ours(np.ones(2)).tolist() == [5.0, 5.0]
    f.__code__ = g.__code__
    assert ours(np.ones(2)).tolist() == [6.0, 6.0]


def test_cupy_traces_each_kernel():
    """Without a GPU it fails when a kernel should run: not before, and not in its other, experimental tracer."""
    cupy = pytest.importorskip("cupy", reason="CuPy traces the kernels")
    from cupyx.scipy.special import erf as cupy_erf
    if cupy.cuda.is_available():
        pytest.skip("the arrays have no memory")
    memory, found = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(1, 1 << 30, None, 0), 0), set()

    class Either:
        def __getattr__(self, name):
            return lambda *values: getattr(np if hasattr(values[0], "strides") else cupy, name)(*values)

    def fuse(kernel):
        def call(*values):
            try:
                traced(*[cupy.ndarray(each.shape, each.dtype, memory) if hasattr(each, "shape") else each
                         for each in values])
            except Exception as error:
                found.add((kernel.__name__, type(error), traced.new_fusion))
            return kernel(*values)

        traced = cupy.fuse(kernel)
        return call

    compiled = functools.partial(fused, fuse=fuse, np=Either(), erf=lambda x: (
        erf if hasattr(x, "strides") else cupy_erf)(x))
    for name in FUSED:
        for setting in random_settings(LAYERS[name], 0)[:18]:
            results_of(pair_of(name, compiled), *arguments_of(lesson_named(name, setting), 0, np.float32))
    updated(compiled(adamw_update), np.float32, np.array(0.5, np.float32))
    assert {each[1:] for each in found} == {(cupy.cuda.runtime.CUDARuntimeError, None)} and len(found) == 11, found

"""Kernels against layers: arrays as kernels take them at each precision, and how close to float64 results must be."""

import functools
import os

import numpy as np
import pytest

from npgpt.engine.philox import Philox
from npgpt.model.masks import dropout_mask
from tests.cuda.emulate import compile_kernels
from tests.engine.cuda.cublaslt import round_to_bfloat16, widen

# Kernels are emulated on the CPU, or run on a GPU if tests/gpu asks for it: there is no float64 there.
ON_GPU = os.environ.get("NPGPT_TEST_KERNELS") == "gpu"

# float64: `float` stands for double, and nothing is lost. bfloat16: only for kernels that take `real`.
every_precision = pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
float_precisions = pytest.mark.parametrize("precision", ["float64", "float32"])

TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.uint16): 2.5e-3}       # of norms; bfloat16 rounds by up to 2^-9

SEED, STEP, MICRO_BATCH = 2**40 + 12345, 7, 3


@functools.cache
def kernels(precision, head_size=64):
    """The kernels at a precision: "float64", "float32", "tf32" or "bfloat16"."""
    if ON_GPU:
        from tests.gpu.kernels import GPUKernels
        return GPUKernels("float32" if precision == "float64" else precision, head_size)
    return compile_kernels(precision == "bfloat16", precision == "float64", head_size, int(precision == "tf32"))


class Device:
    """The kernels at one precision. `float` and `real` are their types of numbers."""

    def __init__(self, precision):
        self.kernels = kernels(precision)
        self.float = np.dtype(np.float64 if precision == "float64" and not ON_GPU else np.float32)
        self.real = np.dtype(np.uint16) if precision == "bfloat16" else self.float
        self.launch = self.kernels.launch

    def floats(self, a):
        return np.ascontiguousarray(a, self.float)

    def reals(self, a):
        return round_to_bfloat16(a) if self.real == np.uint16 else self.floats(a)

    def nans(self, *shape):
        """An array of `float` for a kernel to write to."""
        return np.full(shape, np.nan, self.float)

    def real_nans(self, *shape):
        return self.reals(np.full(shape, np.nan))


device = functools.cache(Device)


def exact(a):
    """The values of an array, in float64."""
    return widen(a).astype(np.float64)


def dropout(p, site):
    """A kernel's arguments for dropout."""
    stream = np.array([SEED % 2**32, SEED // 2**32, STEP, MICRO_BATCH], np.uint32)
    return p, stream if p else None, site


def layer_mask(p, site, shape):
    """The same dropout for the layers: their mask, of ones where nothing is dropped."""
    rng = Philox(SEED, STEP, MICRO_BATCH)
    rng.site = site
    mask = dropout_mask(rng, shape, p, np.float64)
    return np.ones(shape) if mask is None else mask


def assert_close(actual, expected):
    """A device's array against float64: every element in double, the norm of the error where numbers are rounded."""
    assert actual.shape == expected.shape
    if actual.dtype == np.float64:
        scale = np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12 * scale)
    else:
        error = np.linalg.norm(exact(actual) - expected)
        assert error <= TOLERANCE[actual.dtype] * np.linalg.norm(expected), error / np.linalg.norm(expected)

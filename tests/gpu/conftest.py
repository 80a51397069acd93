"""Tests that need a GPU: each is skipped, with the reason, if CuPy or JAX finds none."""

import pytest

from npgpt import GPT, UserError
from npgpt.devices import array_module

# The engine and dtype of a model on a GPU -> how far the norm of its gradients may be from the
# CPU's in float64.
WITHIN = {
    ("reference", "float64"): 1e-10,
    ("auto", "float64"): 1e-10,
    ("auto", "float32"): 1e-5,
    ("auto", "tf32"): 3e-3,
    ("xla", "float32"): 1e-5,
    ("xla", "tf32"): 3e-3,
    ("xla", "bfloat16"): 1e-2,
}


def device_of(kernels):
    """Return the device of a test's models. Skips the test if there is none."""
    try:
        if kernels == "xla":
            from npgpt.engine.xla.devices import devices_of

            devices_of("gpu")
        else:
            array_module("gpu")
    except UserError as error:
        pytest.skip(str(error))
    return "gpu"


def model_on_gpu(config, kernels, dtype):
    """Return a model with seed 0."""
    return GPT(config, seed=0, dtype=dtype, device=device_of(kernels), kernels=kernels)

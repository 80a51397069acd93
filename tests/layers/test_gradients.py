"""Every layer against torch: float64, unit scale, random upstream; and float32."""

import numpy as np
import pytest

from tests.cases import arrays_in, engine_cases, layer_cases
from tests.helpers.close import assert_close

LESSON = pytest.mark.parametrize("case", layer_cases(), ids=lambda case: case.name)
LESSON_AND_ENGINE = pytest.mark.parametrize(
    "case", layer_cases() + engine_cases(), ids=lambda case: case.name
)


def upstream(y):
    return np.asarray(np.random.default_rng(7).standard_normal(np.shape(y)))


@LESSON
def test_equals_torch(case):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    y, _ = case.run(case.inputs)
    dy = upstream(y)
    _, grads = case.run(case.inputs, dy)
    tensors = {name: torch.from_numpy(each).requires_grad_() for name, each in case.inputs.items()}
    reference = case.reference(torch, **tensors)
    reference.backward(torch.from_numpy(dy))
    assert_close(y, reference)
    assert_close(grads, {f"d{name}": tensor.grad for name, tensor in tensors.items()})


@LESSON_AND_ENGINE
def test_stays_float32(case):
    """Nothing in the outputs, caches and gradients is promoted to float64."""
    inputs = {name: array.astype(np.float32) for name, array in case.inputs.items()}
    y, cache = case.forward(**inputs)
    dy = upstream(y).astype(np.float32)
    grads = case.backward(dy, cache)
    floats = [
        array for array in arrays_in((np.asarray(y), cache, grads)) if array.dtype.kind == "f"
    ]
    assert len(floats) > 1 and {array.dtype for array in floats} == {np.dtype(np.float32)}

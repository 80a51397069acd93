"""Every layer against torch and against finite differences: float64, unit scale, random upstream, every gradient."""

import numpy as np
import pytest

from tests.cases import arrays_in, engine_cases, layer_cases

LESSON = pytest.mark.parametrize("case", layer_cases(), ids=lambda case: case.name)
LESSON_AND_ENGINE = pytest.mark.parametrize("case", layer_cases() + engine_cases(), ids=lambda case: case.name)


def upstream(y):
    return np.asarray(np.random.default_rng(7).standard_normal(np.shape(y)))


@LESSON_AND_ENGINE
def test_equals_torch(case):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    y, _ = case.run(case.inputs)
    dy = upstream(y)
    _, grads = case.run(case.inputs, dy)
    tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in case.inputs.items()}
    reference = case.reference(torch, **tensors)
    reference.backward(torch.from_numpy(dy))
    expected = {"y": reference.detach(), **{f"d{name}": tensor.grad for name, tensor in tensors.items()}}
    for name, array in {"y": y, **grads}.items():
        theirs = expected[name].numpy()
        assert np.shape(array) == theirs.shape
        np.testing.assert_allclose(array, theirs, rtol=1e-9, atol=1e-12 * max(1.0, abs(theirs).max()), err_msg=name)


@LESSON
def test_equals_finite_differences(case):
    """The gradient projected on a random direction is the slope of the projected output along it; no torch needed."""
    rng = np.random.default_rng(8)
    y, _ = case.run(case.inputs)
    dy = upstream(y)
    _, grads = case.run(case.inputs, dy)
    step = 3e-6
    for name, array in case.inputs.items():
        for _ in range(3):
            direction = rng.standard_normal(array.shape)
            above, _ = case.run({**case.inputs, name: array + step * direction})
            below, _ = case.run({**case.inputs, name: array - step * direction})
            slope = (dy * (above - below)).sum() / (2 * step)
            size = np.linalg.norm(grads[f"d{name}"]) * np.linalg.norm(direction)
            assert abs((grads[f"d{name}"] * direction).sum() - slope) < 1e-8 * size, name


@LESSON_AND_ENGINE
def test_stays_float32(case):
    """Nothing in the outputs, caches and gradients is promoted to float64."""
    inputs = {name: array.astype(np.float32) for name, array in case.inputs.items()}
    y, cache = case.forward(**inputs)
    dy = upstream(y).astype(np.float32)
    grads = case.backward(dy, cache)
    floats = [array for array in arrays_in((np.asarray(y), cache, grads)) if array.dtype.kind == "f"]
    assert len(floats) > 1 and {array.dtype for array in floats} == {np.dtype(np.float32)}

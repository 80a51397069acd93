"""The stand-in for CuPy has no name that CuPy lacks, and its alarms ring."""

import inspect

import numpy as np
import pytest

from tests import strict_cupy


def test_names_and_parameters_are_cupys():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: there are no names to compare with")
    from cupy._core import _routines_linalg
    names = [(strict_cupy.UFUNCS, cupy), ((*strict_cupy.METHODS, *strict_cupy.VIEWS, "get", "item"), cupy.ndarray),
             (vars(strict_cupy.cupy), cupy), (vars(strict_cupy.runtime), cupy.cuda.runtime),
             (vars(strict_cupy.random), cupy.random), (["Device", "nvrtc"], cupy.cuda)]
    assert [(name, theirs) for ours, theirs in names for name in ours if not hasattr(theirs, name)] == []
    for name, value in vars(strict_cupy.linalg).items():
        assert callable(value) or value == getattr(_routines_linalg, name), name
    for name, parameters in strict_cupy.FUNCTIONS.items():
        parameters, theirs = parameters.split(), inspect.signature(getattr(cupy, name)).parameters
        assert parameters == [parameter for parameter in theirs if parameter in parameters], name


@pytest.mark.parametrize("line", [
    "a + b", "b + a", "a @ b", "np.add(a, a, out=b)", "np.where(a > 0, a, b)", "np.concatenate([a, b])",
    "np.asarray(a)", "a[:1].__iadd__(b)", "a[b > 0]", "np.sum(a, where=a > 0)", "np.vander(a)",
    "np.multiply.at(a, a, 2.0)"])
def test_what_leaves_the_gpu_is_refused(monkeypatch, line):
    """a is on the GPU, b is not; CuPy lacks the last three."""
    a = strict_cupy.install(monkeypatch).asarray(np.ones(3))
    with pytest.raises(TypeError):
        eval(line, {"np": np, "a": a, "b": np.ones(3)})
    waits = len(strict_cupy.gpu.waits)
    assert float(a[2]) == 1.0 and len(strict_cupy.gpu.waits) == waits + 1

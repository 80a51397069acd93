"""The exponential of the compiled loops."""

import numpy as np
import pytest

pytest.importorskip("numba", reason="compiles the loops; it is in the extras fast and test")
from npgpt.engine.vectors import exp, loop


@loop
def exps(x, y):
    for i in range(x.size):
        y[i] = exp(x[i])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exp(dtype):
    limits = np.finfo(dtype)
    least, most = np.log(float(limits.tiny)), np.log(2.0) * (limits.maxexp - 0.5)       # infinity half a bit too early
    x = np.concatenate([np.linspace(least, most, 100_001), np.linspace(-1, 1, 10_001), [0.0, -0.0, 1e-30]])
    x = x.astype(dtype)
    x = x[(x > least) & (x < most)]
    y = np.empty_like(x)
    exps(x, y)
    np.testing.assert_allclose(y, np.exp(x.astype(np.longdouble)), rtol=8e-8 if dtype is np.float32 else 1e-14)
    ends = np.array([-np.inf, np.inf, np.nan, limits.min, limits.max, least - 1, most + 1], dtype)
    exps(ends, ends)
    np.testing.assert_array_equal(ends, np.array([0, np.inf, np.nan, 0, np.inf, 0, np.inf], dtype))

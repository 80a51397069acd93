"""What the compiled loops are made of: the exponential, and vector instructions of the machine."""

import platform
import re

import numpy as np
import pytest

numba = pytest.importorskip("numba", reason="compiles the loops; it is in the extras fast and test")
import llvmlite.binding  # noqa: E402

from npgpt.engine import compiled, vectors  # noqa: E402
from npgpt.engine.vectors import exp, loop  # noqa: E402


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


def uncached(function, cache=False, **options):
    """What Numba's njit does if it can write to no folder."""
    if cache:
        raise RuntimeError("cannot cache function: no locator available for file")
    return numba.njit(function, **options)


def test_without_a_folder_for_the_cache_loops_are_vector_instructions_as_well(monkeypatch):
    """Numba shows the machine code only of what it has compiled itself. None of it is for integers of 64 bits."""
    features = llvmlite.binding.get_host_cpu_features()
    if platform.machine().lower() not in ("x86_64", "amd64") or not features.get("avx2"):
        pytest.skip("the instructions are those of x86 with AVX2")
    monkeypatch.setattr(vectors, "njit", uncached)
    rows = [np.ones((4, 64), np.float32) for _ in range(4)]
    arrays = {"_gelu_tanh_forward": [row.reshape(-1) for row in rows[:3]],
              "_layernorm_backward": [*rows[:2], rows[2][:, :1].copy(), rows[3], rows[0][0]],
              "_softmax_forward": [np.float32(1), None, None, rows[0][None], rows[0][None]]}
    for name, arguments in arrays.items():
        fresh = vectors.loop(getattr(compiled, name).py_func)
        fresh(*arguments)
        [machine_code] = fresh.inspect_asm().values()
        found = set(re.findall(r"\t(v\w+)\t.*%[yz]mm", machine_code))
        assert "vmulps" in found and not {"vpaddq", "vcvtqq2ps"} & found, (name, found)

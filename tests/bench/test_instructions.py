"""--instructions avx2 reaches every library that a side uses; without it nothing is restricted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench"
sys.path.insert(0, str(BENCH))
from instructions import environment  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux" or "avx2" not in Path("/proc/cpuinfo").read_text(),
                                reason="needs a CPU with AVX2")
SAY = "import npgpt, instructions as i; print(i.in_use())"      # what is in use once BLAS is loaded


def in_use(variables, code=SAY):
    paths = os.pathsep.join([str(BENCH), str(BENCH.parents[1])])
    return eval(subprocess.run([sys.executable, "-c", code], env={**variables, "PYTHONPATH": paths}, check=True,
                               capture_output=True, text=True).stdout)


def test_numpy_and_openblas_use_no_avx512(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    only_numpy = SAY.replace("; print", "; i.installed = lambda package: False; print")
    assert in_use(environment("avx2"), only_numpy) == {"NumPy": "X86_V3", "OpenBLAS": "Haswell"}
    free = in_use(environment(None), only_numpy)
    assert free["OpenBLAS"] != "Prescott"
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        assert "X86_V4" in free["NumPy"]


def test_numba_uses_no_avx512():
    pytest.importorskip("numba", reason="the extra fast")
    code = ("import numba, numpy as np, instructions as i; square = numba.njit(lambda x: x * x); "
            "i.installed = lambda package: package == 'numba'; square(np.ones(64)); "
            "print({**i.in_use(), 'zmm': 'zmm' in str(square.inspect_asm())})")
    held, free = (in_use(environment(instructions), code) for instructions in ("avx2", None))
    assert held["Numba"] == "haswell" and not held["zmm"]
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        assert free["Numba"] != "haswell"

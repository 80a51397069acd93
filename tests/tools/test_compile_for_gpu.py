"""tools/compile_for_gpu.py: a small training step, compiled for GPUs that are not there."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "compile_for_gpu.py"


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["H100", "RTX4090"])
def test_a_gpu_that_is_not_there(gpu):
    if find_spec("jax_cuda13_plugin") is None:
        pytest.skip("CUDA's compiler is not installed")
    result = subprocess.run([sys.executable, TOOL, gpu, "tiny-gpu"], capture_output=True, text=True)
    assert "GB, 1" in result.stdout and result.stdout.endswith(" kernels\n"), result.stderr


@pytest.mark.parametrize("names", [("H1000", "124M"), ("H100", "A"), ("H100",)])
def test_what_is_not_known_gets_one_line(names):
    result = subprocess.run([sys.executable, TOOL, *names], capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr.startswith("give a GPU") and result.stderr.count("\n") == 1

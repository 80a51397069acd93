"""tools/gpu_check.sh: what its exit status says, and a rehearsal of tests/gpu without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Each test once or twice: all of them take minutes without a GPU.
PART = "(gradients and other and (float32 or bfloat16)) or dropout or generation or full_gpu"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="a script for Linux")]


def gpu_check(script, *arguments, **variables):
    return subprocess.run(["bash", script, *arguments], env={**os.environ, **variables}, capture_output=True, text=True)


@pytest.mark.parametrize(("model", "code"), [("exit 1", "1"), ("sleep 60", "124"), ("echo 1 skipped", "0")])
def test_tests_that_fail_hang_or_are_skipped_are_no_success(tmp_path, model, code):
    """The rest goes on."""
    python, script = tmp_path / "python", tmp_path / "tools" / "gpu_check.sh"
    python.write_text(f'#!/bin/sh\ncase "$*" in *test_model*) {model};; *) echo fine;; esac\n')
    python.chmod(0o755)
    script.parent.mkdir()
    script.write_text((ROOT / "tools" / "gpu_check.sh").read_text().replace("280", "1"))
    found = gpu_check(script, tmp_path / "out", "tests", PYTHON=str(python))
    lines = [line.split() for line in found.stdout.splitlines()]
    assert found.returncode == 1
    assert [(line[0], line[3]) for line in lines] == [("tests-model.log:", code), ("tests-training.log:", "0")]
    assert gpu_check(script, tmp_path / "out", "test", PYTHON=str(python)).stderr == "not a stage: test\n"


def test_a_rehearsal(tmp_path):
    """On the stand-in for CuPy, and on JAX's CPU."""
    found = gpu_check(ROOT / "tools" / "gpu_check.sh", tmp_path, "tests", PYTHON=sys.executable, NPGPT_REHEARSE="1",
                      PYTHONPATH=str(ROOT / "tests" / "stand_in"), PYTEST_ADDOPTS=f"-k '{PART}'")
    assert found.returncode == 0, found.stdout + (tmp_path / "tests-model.log").read_text()[-3000:]
    assert found.stdout.count(" passed") == 2

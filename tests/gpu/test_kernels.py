"""The tests of every kernel, in tests/cuda, once more, with the kernels on the GPU."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1] / "cuda"
EMULATORS_OWN = {"test_emulate", "test_compile"}
NAMES = sorted({path.stem for path in TESTS.glob("test_*.py")} - EMULATORS_OWN)
# If a kernel hangs, pytest says where, and after the interrupt what failed before.
COMMAND = ["timeout", "--signal=INT", "--kill-after=5", "80", sys.executable, "-m", "pytest", "-q", "-rs", "--tb=short",
           "-p", "no:cacheprovider", "-o", "addopts=", "-o", "faulthandler_timeout=60"]


@pytest.fixture(scope="module")
def runs():
    """{name: its process}: all at once, because most of their time they load and compile."""
    with contextlib.ExitStack() as stack:
        processes = {}
        for name in NAMES:
            processes[name] = stack.enter_context(subprocess.Popen(
                [*COMMAND, TESTS / f"{name}.py"], env={**os.environ, "NPGPT_TEST_KERNELS": "gpu"},
                cwd=TESTS.parents[1], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
            stack.callback(processes[name].terminate)
        yield processes


@pytest.mark.parametrize("name", NAMES)
def test_on_the_gpu(runs, name):
    """None of them may be skipped."""
    output, _ = runs[name].communicate()
    assert runs[name].returncode == 0 and "skipped" not in output, output[-5000:]

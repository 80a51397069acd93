"""The tests of every kernel, in tests/cuda, once more, with the kernels on the card."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1] / "cuda"
EMULATORS_OWN = {"test_emulate", "test_compile"}


@pytest.mark.parametrize("name", sorted({path.stem for path in TESTS.glob("test_*.py")} - EMULATORS_OWN))
def test_on_the_card(name):
    """In a process of its own, where nothing is emulated; none of them may be skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(TESTS / f"{name}.py")]
    run = subprocess.run(command, env={**os.environ, "NPGPT_TEST_KERNELS": "card"}, cwd=TESTS.parents[1], text=True,
                         capture_output=True)
    assert run.returncode == 0 and "skipped" not in run.stdout, run.stdout[-4000:] + run.stderr[-1000:]

"""A test that must run in CI is not skipped there, and no test runs forever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest

@pytest.mark.skip(reason="needs a GPU")
def test_skipped(): pass

def test_skips():
    pytest.skip("Chromium is missing")

def test_runs(): pass
"""


def run(tmp_path, tests, *arguments, **environment):
    """Run pytest on a file: its exit code and output."""
    (tmp_path / "test_file.py").write_text(tests)
    result = subprocess.run([sys.executable, "-m", "pytest", "-p", "tests.conftest", *arguments], cwd=tmp_path,
                            env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True)
    return result.returncode, result.stdout


@pytest.mark.parametrize(("may_skip", "missed"), [
    ("GPU|Chromium", []), ("MPI", ["Chromium is missing", "needs a GPU"])])
def test_a_test_that_must_run_and_is_skipped_fails_the_run(tmp_path, may_skip, missed):
    code, out = run(tmp_path, TESTS, "-n", "1", NPGPT_MAY_SKIP=may_skip)
    assert code == (1 if missed else 0) and "1 passed, 2 skipped" in out
    assert [line for line in out.splitlines() if line.startswith("must not")] == [
        f"must not be skipped here: Skipped: {reason}" for reason in missed]


def test_a_test_that_does_not_end_fails(tmp_path, pytestconfig):
    assert 0 < float(pytestconfig.getini("timeout")) < float(pytestconfig.getini("faulthandler_timeout"))
    code, out = run(tmp_path, "import time\ndef test_it(): time.sleep(60)", "-o", "timeout=1")
    assert code == 1 and "Failed: Timeout" in out

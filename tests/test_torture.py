"""A short, seeded slice of each part of tools/torture.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="it forks, and kills by signals")
def test_nothing_is_lost():
    """Run it in a separate process: it forks, and limits the memory of its forks, so torch must not
    be loaded.
    """
    result = subprocess.run(
        [sys.executable, ROOT / "tools/torture.py", "--share", "0.025", "--seed", "1"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout

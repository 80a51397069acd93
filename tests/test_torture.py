"""A short, seeded slice of each part of tools/torture.py, which has the long way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="it forks, and kills by signals")
def test_nothing_is_lost_and_nothing_let_in():
    """In a process of its own: it forks, and limits the memory of what it forks, which must hold no torch."""
    result = subprocess.run([sys.executable, ROOT / "tools/torture.py", "--share", "0.025", "--seed", "1"],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stdout

"""A short, seeded slice of each part of tools/torture.py, which has the long way."""

import os
import sys
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("it forks, and kills by signals", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import torture


@pytest.mark.parametrize(("part", "cases"), [
    ("kills", 12), ("replaced", 12), ("limits", 12), ("files", 300), ("commands", 60), ("calls", 450)])
def test_nothing_is_lost_and_nothing_let_in(part, cases):
    assert torture.run(parts=[part], counts={part: cases}, seed=1, progress=False) == []

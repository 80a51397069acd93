"""tools/mutate.py and tools/mutants.py, as modules."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
mutate, mutants = map(importlib.import_module, ("mutate", "mutants"))

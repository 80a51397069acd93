"""tools/mutate.py and tools/mutants.py, as modules."""

import importlib

mutate, mutants = map(importlib.import_module, ("mutate", "mutants"))

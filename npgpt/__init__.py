"""npgpt: GPT-2 from scratch in NumPy, with every gradient written by hand."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npgpt.api import GPT
    from npgpt.errors import UserError
    from npgpt.loading import load
    from npgpt.model.config import GPTConfig
    from npgpt.training.adamw import AdamW
    from npgpt.training.options import TrainOptions
    from npgpt.training.trainer import Trainer

__version__ = "0.2.0"
__all__ = ["GPT", "AdamW", "GPTConfig", "TrainOptions", "Trainer", "UserError", "load"]
MODULES = {"GPT": "api", "AdamW": "training.adamw", "GPTConfig": "model.config", "TrainOptions": "training.options",
           "Trainer": "training.trainer", "UserError": "errors", "load": "loading"}

if not TYPE_CHECKING:       # for mypy, a name that is not imported above is an error
    def __getattr__(name):
        """Import a public name when it is first used, because NumPy alone takes 0.1 s (PEP 562)."""
        if name not in MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(importlib.import_module(f"npgpt.{MODULES[name]}"), name)
        return globals()[name]


def __dir__():
    return [*globals(), *__all__]

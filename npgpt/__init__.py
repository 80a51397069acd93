"""npgpt: GPT-2 from scratch in NumPy, with every gradient written by hand.

The rooms, from the first that you read to the last; imports go upwards in this list only:

    layers        the lesson: linear, gelu, layernorm, loss, embedding, dropout, attention, lora
    model         GPT-2 built from the layers (transformer.py), its config, parameters and variants
    engine        how the lines run: as they stand, on threads, by Numba, CuPy or XLA
    data          texts, tokenizers, batches
    checkpoints   safetensors, runs, GPT-2's config.json; download: the hub
    training      AdamW, the step (loop.py), the Trainer, presets
    api           GPT, the class that users call; loading: `load`
    study         lessons, the gradient check, exercises and their judge, the page, notebooks
    cli           one file a command
"""

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
MODULES = {
    "GPT": "api",
    "AdamW": "training.adamw",
    "GPTConfig": "model.config",
    "TrainOptions": "training.options",
    "Trainer": "training.trainer",
    "UserError": "errors",
    "load": "loading",
}

if not TYPE_CHECKING:  # for mypy, a name that is not imported above is an error

    def __getattr__(name):
        """Import a public name when it is first used, because NumPy alone takes 0.1 s (PEP 562)."""
        if name not in MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(importlib.import_module(f"npgpt.{MODULES[name]}"), name)
        return globals()[name]


def __dir__():
    return [*globals(), *__all__]

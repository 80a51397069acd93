"""npgpt: GPT-2 from scratch in NumPy, with every gradient written by hand."""

import npgpt.interrupts  # noqa: I001 (before anything that takes long)
import npgpt.engine.blas  # noqa: F401 (before anything that imports NumPy)
from npgpt.api import GPT, load
from npgpt.errors import UserError
from npgpt.model.config import GPTConfig
from npgpt.training.adamw import AdamW
from npgpt.training.options import TrainOptions
from npgpt.training.trainer import Trainer

__version__ = "0.2.0"
__all__ = ["GPT", "AdamW", "GPTConfig", "TrainOptions", "Trainer", "UserError", "load"]

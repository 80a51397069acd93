"""TrainOptions, the hyperparameters of a training run, and presets of them."""

import dataclasses
import math
from pathlib import Path

from npgpt.arrays import DTYPES
from npgpt.checkpoints.run import Checkpoint
from npgpt.checks import (
    MOST,
    MOST_SEED,
    check_choice,
    check_real,
    check_whole,
    plain_numbers,
    require,
)
from npgpt.data.batches import Crops
from npgpt.errors import UserError
from npgpt.fields import documented, option
from npgpt.files import AnyPath, read_toml
from npgpt.model.config import GPTConfig
from npgpt.model.parameters import INITS
from npgpt.training.adamw import DECAYS
from npgpt.training.schedule import learning_rate

PRESETS = {
    path.stem: path for path in sorted((Path(__file__).parent / "presets").glob("*.toml"))
}  # built-in
CHOICES = {"sampling": ("random", "sequential"), "decay": DECAYS, "dtype": DTYPES, "init": INITS}


@documented
@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """The hyperparameters of a training run, with nanoGPT's names.

    Raises
    ------
    UserError
        A value is invalid. The message names the field.
    """

    batch_size: int = option(12, "sequences in a micro-batch")
    crop_length: int = option(0, "tokens in a sequence; 0: the model's block_size")
    gradient_accumulation_steps: int = option(1, "micro-batches in a step")
    sampling: str = option(
        "random", "random, or sequential: batches in the order of the data, repeatedly"
    )
    epochs: int = option(0, "passes over the data, instead of max_iters")
    learning_rate: float = option(1e-3, "the maximum rate, reached at the end of the warm-up")
    min_lr: float = option(1e-4, "the minimum rate, at the end of the cosine decay")
    max_iters: int = option(2000, "steps in total")
    lr_decay_iters: int | None = option(
        None, "the step at which the rate reaches min_lr; None: max_iters; 0: no decay"
    )
    warmup_iters: int = option(100, "steps of linear warm-up")
    weight_decay: float = option(
        0.1, "each step multiplies decaying parameters by 1 - learning rate * this"
    )
    decay: str = option(
        "matrices", "matrices, or all: also biases and LayerNorm gains, as in torch"
    )
    beta1: float = option(0.9, "AdamW's decay rate of the mean of gradients")
    beta2: float = option(0.99, "AdamW's decay rate of the mean of squared gradients")
    grad_clip: float = option(1.0, "maximum global norm of the gradient; 0: no clipping")
    eval_interval: int = option(250, "steps between evaluations, each of which saves a checkpoint")
    eval_iters: int = option(20, "batches of each split in an evaluation")
    log_interval: int = option(10, "steps between records in metrics.jsonl")
    seed: int = option(1337, "of the initial weights, the batches and dropout")
    dtype: str = option(
        "float32", "float32, float64, bfloat16 (CPUs that have it, and XLA) or tf32 (GPUs)"
    )
    eps: float = option(1e-8, "AdamW's; added to the root of the mean of squared gradients")
    init: str = option("gpt2", "fresh weights: gpt2, half-wpe, torch or normal: see `initialize`")
    val_fraction: float = option(
        0.1, "the end of a text that is used for validation; 0: no validation"
    )

    def __post_init__(self):
        plain_numbers(self)
        positive = (
            "batch_size",
            "gradient_accumulation_steps",
            "max_iters",
            "eval_interval",
            "eval_iters",
            "log_interval",
            "learning_rate",
            "eps",
        )
        for field in dataclasses.fields(self):
            name = field.name
            value = getattr(self, name)
            if field.type in (int, int | None):
                most = MOST_SEED if name == "seed" else MOST
                check_whole(name, value, int(name in positive), most, or_none=field.type is not int)
            elif field.type is float:
                check_real(
                    name,
                    value,
                    below=1.0 if name.startswith(("beta", "val_")) else math.inf,
                    above=0.0 if name in positive else -math.inf,
                )
        if self.last_decay_step and self.min_lr > self.learning_rate:
            raise UserError(
                f"min_lr {self.min_lr} is above learning_rate {self.learning_rate}: lower it as "
                "well"
            )
        if self.lr_decay_iters and self.lr_decay_iters <= self.warmup_iters:
            raise UserError(
                f"lr_decay_iters {self.lr_decay_iters} must be more than warmup_iters "
                f"{self.warmup_iters}"
            )
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)

    @property
    def last_decay_step(self) -> int:
        """`lr_decay_iters`, by default max_iters."""
        return self.max_iters if self.lr_decay_iters is None else self.lr_decay_iters

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0: warm-up, then cosine decay."""
        return learning_rate(
            step, self.learning_rate, self.min_lr, self.warmup_iters, self.last_decay_step
        )

    def for_crops(self, crops: Crops) -> "TrainOptions":
        """Return the options with `max_iters` for `epochs`.

        Raises UserError if the crops that are read in order fill no batch.
        """
        if self.epochs or self.sampling == "sequential":
            n = self.epochs * crops.in_epoch(self.batch_size)
        if not self.epochs:
            return self
        in_step = self.batch_size * self.gradient_accumulation_steps
        return dataclasses.replace(self, max_iters=math.ceil(n / in_step))


# Without fields that come from the tokenizer, and those of models that exist already.
MODEL_FIELDS = {field.name for field in dataclasses.fields(GPTConfig)} - {
    "vocab_size",
    "bos_token_id",
    "eos_token_id",
    "block",
}
TRAIN_FIELDS = {field.name for field in dataclasses.fields(TrainOptions)}


def load_preset(name: AnyPath) -> dict:
    """Return the fields of a preset, a dict. name: a built-in preset, or the path of a TOML file.

    The fields are those of GPTConfig (except what the tokenizer determines), of TrainOptions, and
    "tokenizer". What a preset does not say is as in these classes. Raises UserError for any other
    field.
    """
    path = PRESETS.get(str(name), Path(name))
    try:
        fields = read_toml(path)
    except OSError:
        raise UserError(
            f'unknown preset "{name}": choose {", ".join(PRESETS)}, or a TOML file'
        ) from None
    if unknown := set(fields) - MODEL_FIELDS - TRAIN_FIELDS - {"tokenizer"}:
        raise UserError(
            f"{path} sets {', '.join(sorted(unknown))}, which are not fields of a preset"
        )
    tokenizer = fields.get("tokenizer", "char")
    require(f"tokenizer in {path}", tokenizer, isinstance(tokenizer, str), "a name")
    return fields


def with_mup(fields: dict) -> dict:
    """Return the fields of a preset and of flags, with muP's defaults for those that depend on the
    width.

    muP (Yang et al. 2022, arXiv:2203.03466): wider models need smaller initial weights and learning
    rates. The values at width 128 were searched, the exponents measured (RESULTS.md); at 768 they
    give nearly GPT-2's 0.02 and 6e-4. Narrower models use the values at 128. Raises UserError if
    n_embd or learning_rate is invalid.
    """
    check_whole("n_embd", width := fields.get("n_embd", GPTConfig.n_embd), 1)
    ratio = min(1.0, 128 / width)
    check_real("learning_rate", rate := fields.get("learning_rate", 4e-3 * ratio))
    return {
        "initializer_range": 0.08 * ratio**0.75,
        "learning_rate": rate,
        "min_lr": rate / 40,
        **fields,
    }


def options_of(checkpoint: Checkpoint) -> TrainOptions:
    """Return the `TrainOptions` in a checkpoint's state. Raises UserError if they are invalid."""
    saved = {**checkpoint.state["options"]}
    saved.pop("partial_batch", None)  # runs of earlier versions have it
    try:
        return TrainOptions(**saved)
    except (TypeError, UserError) as error:  # TypeError: unknown fields
        raise UserError(f"{checkpoint.folder / 'state.json'} is damaged: {error}") from None

"""One training step: batch, loss and gradients, AdamW. Read this first; the `Trainer` takes these steps."""

import math

import numpy as np

from npgpt.arrays import is_on_host
from npgpt.engine.reference import counted
from npgpt.errors import NotFiniteError
from npgpt.model.batch import check_batch
from npgpt.training.adamw import AdamW
from npgpt.training.options import TrainOptions
from npgpt.training.schedule import learning_rate

BATCHES = 0         # the stream of random numbers that batches are drawn with; dropout has another one


def train_step(
    model, optimizer: AdamW, crops, options: TrainOptions, step: int
) -> tuple[float, float, float]:
    """Take step number `step` of a run; return the loss, the learning rate and the gradient norm.

    Raises NotFiniteError, before anything has changed. On a GPU nothing waits: loss and norm are
    0-d arrays there.
    """
    batches, rngs, count = [], [], 0
    for i in range(options.gradient_accumulation_steps):
        # A micro-batch: crops of the tokens, and as targets the same crops one token later.
        idx, targets = check_batch(model.config, *crops.at(batch_starts(crops, options, step, i)))     # (B, T)
        batches.append((idx, targets))
        rngs.append(model.engine.dropout_rng(options.seed, step, i))
        count += counted(targets)
    # The loss of all micro-batches is the mean over all their targets.
    loss, grads = model.engine.loss_and_grads(batches, rngs, count)
    if is_on_host(loss) and not math.isfinite(loss):
        raise NotFiniteError(f"the loss is {loss}")
    lr = learning_rate(step, options.learning_rate, options.min_lr, options.warmup_iters, options.last_decay_step)
    norm = optimizer.step(grads, options.grad_clip or None, lr)
    return loss, lr, norm


def batch_starts(crops, options: TrainOptions, step: int, i: int) -> np.ndarray:
    """Start offsets of micro-batch i; they depend on (seed, step) only, so a resumed run sees the same data."""
    if options.sampling == "sequential":
        return crops.in_order(step * options.gradient_accumulation_steps + i, options.batch_size)
    return crops.random(options.batch_size, np.random.default_rng([options.seed, BATCHES, step, i]))

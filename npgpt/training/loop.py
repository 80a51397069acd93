"""One training step: batch, loss and gradients, AdamW. Read this first; the `Trainer` takes these
steps.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from npgpt.arrays import is_on_host
from npgpt.checks import require
from npgpt.engine.reference import counted
from npgpt.errors import NotFiniteError
from npgpt.model.batch import check_batch, loss_of
from npgpt.training.optimizer import Optimizer
from npgpt.training.options import TrainOptions

BATCHES = 0  # the stream of random numbers that batches are drawn with; dropout has another one

Schedule = Callable[[int], float]
Batches = Callable[[int], tuple[ArrayLike, ArrayLike]]
Loss = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]


def train_step(
    model,
    optimizer: Optimizer,
    batches: Batches,
    options: TrainOptions,
    step: int,
    lr: float,
    own_loss: Loss | None = None,
) -> tuple[float, float]:
    """Take step number `step` of a run; return the loss and the gradient norm.

    Parameters
    ----------
    model : GPT
    optimizer : Optimizer
    batches : function, number of a micro-batch -> idx, targets; integers (B, T) each
    options : TrainOptions
    step : int, from 0
    lr : float, the learning rate
    own_loss : function, logits (B, T, V), targets (B, T) -> loss, dlogits; or None
        Instead of the cross-entropy. The loss is the mean over the micro-batches; that of the
        cross-entropy is the mean over all their targets.

    Returns
    -------
    loss : float, in nats per token
    norm : float
        Of the gradient before clipping. On a GPU nothing waits: both are 0-d arrays there.

    Raises
    ------
    NotFiniteError
        The loss or the norm is infinite or NaN. Nothing has changed.
    """
    engine = model.engine
    n = options.gradient_accumulation_steps
    micro_batches = [check_batch(model.config, *batches(step * n + i)) for i in range(n)]
    rngs = [engine.dropout_rng(options.seed, step, i) for i in range(n)]
    parts = []
    if own_loss:
        for (idx, targets), rng in zip(micro_batches, rngs, strict=True):
            (targets,) = engine.on_device(targets)
            share = share_of(own_loss, targets, n)
            parts.append(engine.own_loss(share, idx, rng))
    else:
        count = sum(counted(targets) for _, targets in micro_batches)
        for same in of_one_shape(micro_batches, rngs):
            parts.append(engine.loss_and_grads(*same, count))
    loss, grads = summed(engine, parts)
    if is_on_host(loss) and not math.isfinite(loss):
        raise NotFiniteError(f"the loss is {loss}")
    if getattr(optimizer, "engine", None) is not engine:
        loss, grads = engine.for_user(loss, grads)
    norm = optimizer.step(grads, options.grad_clip or None, lr)
    require("what the optimizer's step returns", norm, norm is not None, "the gradient norm")
    return loss, norm


def of_one_shape(batches, rngs):
    """Divide micro-batches and their rngs into runs of one shape: (batches, rngs) of each."""
    drawn = zip(batches, rngs, strict=True)
    for _, same in itertools.groupby(drawn, lambda each: each[0][0].shape):
        yield zip(*same, strict=True)


def summed(engine, parts):
    """Add up the losses and the gradients of micro-batches."""
    if len(parts) == 1:
        return parts[0]
    total = 0.0
    grads = None
    for part in parts:
        loss, new = engine.for_user(*part)
        total = total + loss
        grads = engine.added(new, grads)
    return total, grads


def share_of(own_loss, targets, n):
    """Return a function logits -> loss / n, dlogits / n."""

    def share(logits):
        loss, dlogits = loss_of(lambda given: own_loss(given, targets), logits)
        return loss / n, dlogits / n

    return share


def batch_starts(crops, options: TrainOptions, step: int, i: int) -> np.ndarray:
    """Start offsets of micro-batch i; they depend on (seed, step) only, so a resumed run sees the
    same data.
    """
    if options.sampling == "sequential":
        return crops.in_order(step * options.gradient_accumulation_steps + i, options.batch_size)
    return crops.random(options.batch_size, np.random.default_rng([options.seed, BATCHES, step, i]))

"""Training in its barest form: batch, loss and gradients, step. Read this first; the `Trainer` computes the same bits.

What the Trainer adds: gradient accumulation, documents, epochs, evaluation, checkpoints, metrics, and a clean stop.
"""

from collections.abc import Iterator

import numpy as np

from npgpt.training.adamw import AdamW
from npgpt.training.options import TrainOptions
from npgpt.training.schedule import learning_rate

BATCHES = 0         # the stream of random numbers that batches are drawn with; dropout has another one


def train(model, tokens: np.ndarray, options: TrainOptions) -> Iterator[float]:
    """Train a `GPT` on tokens, a 1-D integer array; yield the loss of each step."""
    optimizer = AdamW(model.params, options.learning_rate, (options.beta1, options.beta2), options.eps,
                      options.weight_decay, engine=model.engine, decay=options.decay)
    T = model.config.block_size
    for step in range(options.max_iters):
        # A batch: crops at random places, and as targets the same crops one token later.
        rng = np.random.default_rng([options.seed, BATCHES, step, 0])
        starts = rng.integers(len(tokens) - T, size=options.batch_size)
        crops = np.stack([tokens[start:start + T + 1] for start in starts])         # (B, T + 1)
        idx, targets = crops[:, :-1], crops[:, 1:]                                  # (B, T)
        # Loss and gradients.
        loss, grads = model.loss_and_grads(idx, targets, model.engine.dropout_rng(options.seed, step, 0))
        # A step.
        lr = learning_rate(step, options.learning_rate, options.min_lr, options.warmup_iters, options.last_decay_step)
        optimizer.step(grads, options.grad_clip or None, lr)
        yield loss

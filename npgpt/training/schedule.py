"""The learning rate schedule: linear warm-up, then cosine decay to a minimum."""

import math


def learning_rate(
    step: int, learning_rate: float, min_lr: float, warmup_iters: int, lr_decay_iters: int
) -> float:
    """Return the learning rate of a step, counted from 0 (Loshchilov & Hutter 2016,
    arXiv:1608.03983).

    It rises linearly until step `warmup_iters`, and falls along a cosine until step
    `lr_decay_iters`; 0: no decay.
    """
    if step < warmup_iters:
        return learning_rate * (step + 1) / (warmup_iters + 1)
    if lr_decay_iters == 0:
        return learning_rate
    if step >= lr_decay_iters:
        return min_lr
    progress = (step - warmup_iters) / (lr_decay_iters - warmup_iters)  # 0 to 1
    return min_lr + (learning_rate - min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))

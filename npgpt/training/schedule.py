"""The learning rate over time: a linear warm-up, then half a cosine down to a smallest rate."""

import math


def learning_rate(step, learning_rate, min_lr, warmup_iters, lr_decay_iters):
    """The rate for the step of that number, counted from 0 (Loshchilov & Hutter 2016, arXiv:1608.03983).

    Rises linearly over the first `warmup_iters` steps, is `learning_rate` at the end of them, and falls along a cosine
    to `min_lr` at step `lr_decay_iters`, where it stays. `lr_decay_iters=0` means no decay.
    """
    if step < warmup_iters:
        return learning_rate * (step + 1) / (warmup_iters + 1)
    if lr_decay_iters == 0:
        return learning_rate
    if step >= lr_decay_iters:
        return min_lr
    progress = (step - warmup_iters) / (lr_decay_iters - warmup_iters)          # 0 to 1
    return min_lr + (learning_rate - min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))

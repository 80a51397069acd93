"""The lesson of the softmax and the cross-entropy, and the long way of its backward."""

import numpy as np

from npgpt import layers
from npgpt.study.lessons.lesson import Lesson


def cross_entropy_backward(dloss, cache):
    """Undo `cross_entropy_forward` line by line: dloss (a number, 1.0 for training) -> dlogits (..., V).

    There is no dprobs: it is 0, because the loss does not read probs.
    """
    probs, column, counted, count = cache
    # the largest of exps is exp(0) = 1, so that of probs is 1 / total
    total = 1.0 / probs.max(axis=-1, keepdims=True)                     # (..., 1)
    exps = probs * total                                                # (..., V)
    # loss = np.where(counted, losses, 0.0).sum() / count
    dlosses = np.where(counted, dloss / count, 0.0)                     # (..., 1)
    # losses = np.log(total) - at_target
    dat_target = -dlosses                                               # (..., 1)
    dtotal = dlosses / total                                            # (..., 1)
    # total = exps.sum(axis=-1, keepdims=True)
    dexps = np.broadcast_to(dtotal, exps.shape)                         # (..., V)
    # at_target = np.take_along_axis(shifted, column, axis=-1)
    # exps = np.exp(shifted)
    dshifted = dexps * exps + dat_target * (np.arange(exps.shape[-1]) == column)        # (..., V)
    # shifted = logits - logits.max(axis=-1, keepdims=True): the maximum gets -dshifted.sum(axis=-1), which is 0
    dlogits = dshifted                                                  # (..., V)
    return dlogits


def targets(setting, rng):
    """Return targets (B, T), one of them ignored unless that is off."""
    drawn = rng.integers(0, setting.sizes.V, (setting.sizes.B, setting.sizes.T))
    if setting.has("ignored"):
        drawn[0, 0] = layers.IGNORE_INDEX
    return {"targets": drawn}


LESSON = Lesson(
    "Softmax cross-entropy", layers.cross_entropy_forward, layers.cross_entropy_backward, {"logits": "B T V"}, targets,
    switches=("ignored",), skipped=("shifted", "exps", "total", "probs", "at_target"),
    torch=lambda torch, logits, targets: torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=layers.IGNORE_INDEX),
    long_way=cross_entropy_backward)

"""Softmax cross-entropy: the surprise at the right next token, averaged over the tokens."""

import numpy as np

from npgpt.engine.rowwise import rowwise
from npgpt.engine.sums import row_sum

IGNORE_INDEX = -1


def cross_entropy_forward(logits, targets, count=None):
    """loss = mean over the targets of -log softmax(logits)[target].

    logits (..., V), targets (...) integers in [0, V), or -1 (`IGNORE_INDEX`) for a position that does not count
    -> loss (0-d array, nats per token), cache. `count` is the number that the sum is divided by, by default the number
    of targets that count; one part of a larger batch is given the whole batch's count, so that the parts' losses and
    gradients add up to the whole's.

    The largest logit of each row is subtracted first: softmax does not change, and exp cannot overflow. The cache keeps
    the probabilities, from which the gradient is one subtraction away; the logits themselves are not needed again.
    """
    counted = targets != IGNORE_INDEX                           # (...)
    column = np.where(counted, targets, 0)[..., None]           # (..., 1) any column will do where nothing counts
    if count is None:
        count = int(counted.sum())
    share = (counted.astype(logits.dtype) / count)[..., None]   # (..., 1) 1 / count, or 0 where ignored
    loss, softmax_loss = softmax_loss_forward(logits, column, share)
    return loss, softmax_loss


def cross_entropy_backward(dloss, cache):
    """Undo `cross_entropy_forward`: dloss (a number, 1.0 for training) -> dlogits (..., V)."""
    # loss, softmax_loss = softmax_loss_forward(logits, column, share)
    return softmax_loss_backward(dloss, cache)


@rowwise
def softmax_loss_forward(logits, column, share):
    """The sum over all rows of share * -log softmax(logits)[column]: logits (..., V), column and share (..., 1)."""
    shifted = logits - logits.max(axis=-1, keepdims=True)       # (..., V)
    exps = np.exp(shifted)                                      # (..., V)
    total = row_sum(exps)                                       # (..., 1)
    probs = exps / total                                        # (..., V)
    target = np.take_along_axis(shifted, column, axis=-1)       # (..., 1)
    losses = np.log(total) - target                             # (..., 1) -log probs[column]
    loss = (np.where(share == 0.0, 0.0, losses) * share).sum()  # () an ignored loss may be inf: inf * 0 is NaN
    return loss, (probs, column, share)


@rowwise
def softmax_loss_backward(dloss, cache):
    """Undo `softmax_loss_forward`: dloss (a number, 1.0 for training) -> dlogits (..., V).

    Short cut: dprobs, dexps, dtotal, dtarget and dshifted are skipped. For one row with target k, and
    p = softmax(logits),

        loss = log(sum_j exp(logits_j)) - logits_k
        dloss/dlogits_i = exp(logits_i) / sum_j exp(logits_j) - [i == k] = p_i - [i == k]

    so the gradient is what the model believes minus what is true. (The subtracted maximum drops out: it was added to
    both terms.) Every row of it sums to zero.
    """
    probs, column, share = cache
    # loss = (np.where(share == 0.0, 0.0, losses) * share).sum()
    dlosses = dloss * share                                     # (..., 1)
    # losses = -log softmax(logits)[column], all of it at once
    dlogits = probs * dlosses                                   # (..., V)
    at_target = np.take_along_axis(dlogits, column, axis=-1)    # (..., 1)
    np.put_along_axis(dlogits, column, at_target - dlosses, axis=-1)
    return dlogits

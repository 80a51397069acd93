"""Softmax cross-entropy: the surprise at the right next token, averaged over the tokens."""

import numpy as np

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
    rows = logits.reshape(-1, logits.shape[-1])                 # (N, V)
    target_rows = targets.reshape(-1)                           # (N,)
    counted = target_rows != IGNORE_INDEX                       # (N,)
    column = np.where(counted, target_rows, 0)                  # (N,) any valid column will do where nothing counts
    if count is None:
        count = int(counted.sum())
    shifted = rows - rows.max(axis=-1, keepdims=True)           # (N, V)
    exps = np.exp(shifted)                                      # (N, V)
    total = exps.sum(axis=-1, keepdims=True)                    # (N, 1)
    probs = exps / total                                        # (N, V)
    row = np.arange(len(column), like=column)                   # (N,)
    losses = np.log(total[:, 0]) - shifted[row, column]         # (N,) -log probs[target]
    share = counted.astype(rows.dtype) / count                  # (N,) 1 / count, or 0 where ignored
    loss = (losses * share).sum()                               # ()
    return loss, (probs, row, column, share, logits.shape)


def cross_entropy_backward(dloss, cache):
    """Undo `cross_entropy_forward`: dloss (a number, 1.0 for training) -> dlogits (..., V).

    Short cut: dprobs, dexps, dtotal and dshifted are skipped. For one row with target k, and p = softmax(logits),

        loss = log(sum_j exp(logits_j)) - logits_k
        dloss/dlogits_i = exp(logits_i) / sum_j exp(logits_j) - [i == k] = p_i - [i == k]

    so the gradient is what the model believes minus what is true. (The subtracted maximum drops out: it was added to
    both terms.) Every row of it sums to zero.
    """
    probs, row, column, share, shape = cache
    # loss = (losses * share).sum()
    dlosses = dloss * share                         # (N,)
    # losses = -log softmax(rows)[row, column], all of it at once
    drows = probs * dlosses[:, None]                # (N, V)
    drows[row, column] -= dlosses                   # one column a row, so no index repeats and none is lost
    # rows = logits.reshape(-1, V)
    dlogits = drows.reshape(shape)                  # (..., V)
    return dlogits

"""Softmax cross-entropy: minus the log of the right next token's probability, averaged."""

import numpy as np

IGNORE_INDEX = -1       # the target of a position that does not count


def cross_entropy_forward(logits, targets):
    """Compute loss = mean over the counted targets of -log softmax(logits)[target].

    Parameters
    ----------
    logits : array (..., V), floating
    targets : integers (...), in [0, V)
        -1 (`IGNORE_INDEX`) for a position that does not count; at least one counts.

    Returns
    -------
    loss : array (), in nats per token, the unit of a natural logarithm
    cache : tuple
        The probabilities, from which two lines make the gradient.

    Notes
    -----
    The largest logit of each row is subtracted first: the softmax does not change, and exp cannot
    overflow.
    """
    counted = (targets != IGNORE_INDEX)[..., None]                  # (..., 1)
    column = np.where(counted, targets[..., None], 0)               # (..., 1) any column if ignored
    count = counted.sum(dtype=logits.dtype)                         # ()
    shifted = logits - logits.max(axis=-1, keepdims=True)           # (..., V)
    exps = np.exp(shifted)                                          # (..., V)
    total = exps.sum(axis=-1, keepdims=True)                        # (..., 1)
    probs = exps / total                                            # (..., V)
    at_target = np.take_along_axis(shifted, column, axis=-1)        # (..., 1)
    losses = np.log(total) - at_target                              # (..., 1) -log probs[column]
    loss = np.where(counted, losses, 0.0).sum() / count             # () ignored: maybe infinite
    return loss, (probs, column, counted, count)


def cross_entropy_backward(dloss, cache):
    """Undo `cross_entropy_forward`.

    Parameters
    ----------
    dloss : float or array (); 1.0 for training
    cache : tuple, from `cross_entropy_forward`

    Returns
    -------
    dlogits : array (..., V)

    Notes
    -----
    Fused: dprobs, dat_target, dtotal, dexps and dshifted are skipped. Line by line, in one row,
    with true = 1 at the target and 0 elsewhere:

        dlosses = dloss / count                         loss = sum(losses) / count; 0 if ignored
        dprobs = 0                                      the loss does not read probs
        dat_target = -dlosses                           losses = log(total) - at_target
        dtotal = dlosses / total                        the derivative of log(total) is 1 / total
        dexps = dtotal                                  total = sum(exps)
        dshifted = exps dexps + true dat_target         used twice: exp(shifted), and at_target
                 = (probs - true) dlosses               because probs = exps / total
        dlogits = dshifted                              shifted = logits - max(logits)

    So the gradient is the predicted minus the true distribution. max(logits) gets -sum(dshifted),
    which is 0, because probs and true both sum to 1.
    """
    probs, column, counted, count = cache
    # loss = np.where(counted, losses, 0.0).sum() / count
    dlosses = np.where(counted, dloss / count, 0.0)                 # (..., 1)
    # shifted = logits - logits.max(axis=-1, keepdims=True)
    # exps = np.exp(shifted)
    # total = exps.sum(axis=-1, keepdims=True)
    # at_target = np.take_along_axis(shifted, column, axis=-1)
    # losses = np.log(total) - at_target, these five lines in one step
    true = np.arange(probs.shape[-1], like=column) == column        # (..., V) 1 at the target
    dlogits = (probs - true) * dlosses                              # (..., V) predicted minus true
    return dlogits

"""Losses beside the lesson's: the log-probabilities of tokens, and a loss with weights."""

import numpy as np

from npgpt.layers.loss import IGNORE_INDEX, cross_entropy_backward, cross_entropy_forward


def log_probs(logits, tokens):
    """Return the log-probability of each token, in nats: logits (..., V), tokens (...) -> (...)."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(shifted).sum(axis=-1)
    return np.take_along_axis(shifted, tokens[..., None], axis=-1)[..., 0] - np.log(total)


def weighted_loss(logits, targets, weights, count):
    """Compute sum(weights * losses) / count and its gradient, without ignored targets.

    logits (B, T, V), targets and weights (B, T) -> loss (0-d array), dlogits (B, T, V).
    """
    counted = targets != IGNORE_INDEX
    losses = -log_probs(logits, np.where(counted, targets, 0))
    loss = np.where(counted, weights * losses, 0.0).sum() / count
    # The mean of n losses, each times weight * n / count.
    _, cross_entropy = cross_entropy_forward(logits, targets)
    dlosses = weights[..., None] * (counted.sum() / count)  # (B, T, 1)
    return loss, cross_entropy_backward(dlosses.astype(logits.dtype), cross_entropy)

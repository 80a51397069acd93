"""The softmax loss at each step of a sequence. A mask of 0 and 1 leaves out the padding.

Nothing says the shapes: give them, as in --input x=4,5,3 --input y=4,5:0..3 --input mask=4,5:0..2.
"""

import numpy as np


def temporal_softmax_loss(x, y, mask):
    """Return the loss, summed over the steps and averaged over the examples, and the gradient of
    the scores x.
    """
    N, T, V = x.shape
    x_flat = x.reshape(N * T, V)
    y_flat = y.reshape(N * T)
    mask_flat = mask.reshape(N * T)

    probs = np.exp(x_flat - np.max(x_flat, axis=1, keepdims=True))
    probs /= np.sum(probs, axis=1, keepdims=True)
    loss = -np.sum(mask_flat * np.log(probs[np.arange(N * T), y_flat])) / N

    dx_flat = probs.copy()
    dx_flat[np.arange(N * T), y_flat] -= 1
    dx_flat *= mask_flat[:, None] / N
    dx = dx_flat.reshape(N, T, V)
    return loss, dx

"""The softmax loss with a loop over the rows. One function returns the loss and its gradient."""

import numpy as np

LESSON = {"x": "N C", "y": "N: 0..C"}


def softmax_loss(x, y):
    """Return the mean of -log p[y] over the N rows of scores x, and the gradient of x."""
    N, C = x.shape
    loss = 0.0
    dx = np.zeros_like(x)
    for n in range(N):
        e = np.exp(x[n] - np.max(x[n]))
        p = e / np.sum(e)
        loss -= np.log(p[y[n]])
        for c in range(C):
            dx[n, c] += p[c]
        dx[n, y[n]] -= 1
    loss /= N
    dx /= N
    return loss, dx

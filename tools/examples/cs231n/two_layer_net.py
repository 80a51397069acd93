"""A network of two layers with L2 regularisation. One function returns the loss and a dict of
gradients.
"""

import numpy as np

LESSON = {
    "X": "N D: constant",
    "y": "N: 0..C",
    "W1": "D H",
    "b1": "H",
    "W2": "H C",
    "b2": "C",
    "reg": 0.1,
}


def two_layer_net_loss(X, y, W1, b1, W2, b2, reg):
    N = X.shape[0]

    # forward: affine, ReLU, affine, softmax
    a1 = X.dot(W1) + b1
    h1 = np.maximum(0, a1)
    scores = h1.dot(W2) + b2
    scores = scores - np.max(scores, axis=1, keepdims=True)
    probs = np.exp(scores)
    probs /= np.sum(probs, axis=1, keepdims=True)
    data_loss = -np.sum(np.log(probs[np.arange(N), y])) / N
    reg_loss = reg * (np.sum(W1 * W1) + np.sum(W2 * W2))
    loss = data_loss + reg_loss

    # backward
    grads = {}
    dscores = probs / N
    dscores[np.arange(N), y] -= 1 / N
    grads["W2"] = h1.T.dot(dscores) + 2 * reg * W2
    grads["b2"] = dscores.sum(axis=0)
    dh1 = dscores.dot(W2.T)
    da1 = dh1.copy()
    da1[a1 <= 0] = 0
    grads["W1"] = X.T.dot(da1) + 2 * reg * W1
    grads["b1"] = da1.sum(axis=0)
    return loss, grads

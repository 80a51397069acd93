import numpy as np


class ConvPool:
    """1-d convolution, x (C, L) with weights (F, C, K), then max-pooling in pairs."""

    def __init__(self, W):
        self.W = W

    def forward(self, x):
        F, C, K = self.W.shape
        n = x.shape[1] - K + 1
        conv = np.zeros((F, n))
        for f in range(F):
            for i in range(n):
                conv[f, i] = np.sum(x[:, i : i + K] * self.W[f])
        self.x, self.n = x, n
        self.first = conv[:, ::2] > conv[:, 1::2]
        return np.maximum(conv[:, ::2], conv[:, 1::2])

    def backward(self, dout):
        F, C, K = self.W.shape
        dconv = np.zeros((F, self.n))
        dconv[:, ::2] = dout * self.first
        dconv[:, 1::2] = dout * ~self.first
        self.dW = np.zeros_like(self.W)
        dx = np.zeros_like(self.x)
        for f in range(F):
            for i in range(self.n):
                self.dW[f] += dconv[f, i] * self.x[:, i : i + K]
                dx[:, i : i + K] += dconv[f, i] * self.W[f]
        return dx


class CharRNN:
    def __init__(self, vocab, hidden):
        self.E = np.random.randn(vocab, hidden)  # noqa: NPY002
        self.U = np.random.randn(hidden, hidden)  # noqa: NPY002

    def forward(self, ids):
        self.ids = ids
        self.hs = [np.zeros(len(self.U))]
        for i in ids:
            self.hs.append(np.tanh(self.E[i] + self.hs[-1] @ self.U))
        return np.stack(self.hs[1:])

    def backward(self, dhs):
        self.dE, self.dU = np.zeros_like(self.E), np.zeros_like(self.U)
        dh_next = 0
        for t in reversed(range(len(self.ids))):
            dh = dhs[t] + dh_next
            da = dh * (1 - self.hs[t + 1] ** 2)
            np.add.at(self.dE, self.ids[t], da)
            self.dU += np.outer(self.hs[t], da)
            dh_next = da @ self.U.T

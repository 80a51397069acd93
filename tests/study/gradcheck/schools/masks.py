"""Layers with dice in them."""

import numpy as np


class ResidualDropout:
    """x + scale * dropout(tanh(x))"""

    def __init__(self, scale, p=0.4):
        self.scale, self.p = scale, p

    def forward(self, x):
        self.mask = (np.random.rand(*x.shape) >= self.p) / (1 - self.p)  # noqa: NPY002
        a = np.tanh(x)
        self.a, self.d = a, a * self.mask
        return x + self.scale * self.d

    def backward(self, dy):
        self.dscale = np.sum(dy * self.d, axis=0)
        dd = dy * self.scale
        da = dd * self.mask
        return dy + da * (1 - self.a**2)


class DropConnect:
    """A linear layer that loses weights instead of activations."""

    def __init__(self, W, b, keep=0.6, seed=3):
        self.W, self.b, self.keep = W, b, keep
        self.rng = np.random.default_rng(seed)

    def forward(self, x):
        self.x = x
        self.m = self.rng.binomial(1, self.keep, size=self.W.shape) / self.keep
        self.Wm = self.W * self.m
        z = x @ self.Wm + self.b
        self.out = np.where(z > 0, z, 0.1 * z)
        return self.out

    def backward(self, dout):
        dz = np.where(self.out > 0, dout, 0.1 * dout)
        self.db = dz.sum(axis=0)
        dWm = self.x.T @ dz
        self.dW = dWm * self.m
        return dz @ self.Wm.T

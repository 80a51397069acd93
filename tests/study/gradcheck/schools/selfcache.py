"""Layers that keep what they need in self and leave gradients in attributes."""

import numpy as np


class AffineGelu:
    """gelu(x @ W + b) with the tanh formula."""

    def __init__(self, W, b):
        self.W = W
        self.b = b

    def forward(self, x):
        z = x @ self.W + self.b
        u = np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)
        t = np.tanh(u)
        self.x, self.z, self.t = x, z, t
        return 0.5 * z * (1 + t)

    def backward(self, dout):
        z, t = self.z, self.t
        dt = 0.5 * dout * z
        du = dt * (1 - t**2)
        dz = 0.5 * dout * (1 + t)
        dz = dz + du * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * z**2)
        self.dW = self.x.T @ dz
        self.db = dz.sum(axis=0)
        return dz @ self.W.T


class LayerNorm:
    def __init__(self, gamma, beta, eps=1e-5):
        self.gamma, self.beta, self.eps = gamma, beta, eps

    def forward(self, x):
        mu = x.mean(axis=-1, keepdims=True)
        self.xc = x - mu
        var = (self.xc**2).mean(axis=-1, keepdims=True)
        self.istd = 1 / np.sqrt(var + self.eps)
        self.xhat = self.xc * self.istd
        return self.gamma * self.xhat + self.beta

    def backward(self, dy):
        n = dy.shape[-1]
        self.dgamma = (dy * self.xhat).sum(axis=0)
        self.dbeta = dy.sum(axis=0)
        dxhat = dy * self.gamma
        distd = (dxhat * self.xc).sum(axis=-1, keepdims=True)
        dvar = -0.5 * distd * self.istd**3
        dxc = dxhat * self.istd + 2 * self.xc * dvar / n
        dmu = -dxc.sum(axis=-1, keepdims=True)
        return dxc + dmu / n

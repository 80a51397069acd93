"""RMSNorm as a class, with nothing of npgpt in it: the cache and the weight's gradient are in self.

npgpt gradcheck "rmsnorm.py:RMSNorm(6)" --input x=2,3,6
"""

import numpy as np


class RMSNorm:
    def __init__(self, n, eps=1e-5):
        self.weight = np.ones(n)
        self.eps = eps

    def forward(self, x):
        self.rstd = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)
        self.xhat = x * self.rstd
        out = self.weight * self.xhat
        return out

    def backward(self, dout):
        self.dweight = (dout * self.xhat).sum(axis=(0, 1))
        dxhat = dout * self.weight
        # x reaches xhat directly, and through rstd; the second path is projected out along xhat
        along = (dxhat * self.xhat).mean(axis=-1, keepdims=True)
        dx = self.rstd * (dxhat - self.xhat * along)
        return dx

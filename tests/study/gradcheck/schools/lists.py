"""Every layer has params and grads, two lists in the same order, so one optimizer fits all."""

import numpy as np


class RMSNorm:
    def __init__(self, g, eps=1e-5):
        self.params = [g]
        self.grads = [np.zeros_like(g)]
        self.__eps = eps

    def forward(self, x):
        (g,) = self.params
        ms = np.mean(x * x, axis=1, keepdims=True)
        r = 1.0 / np.sqrt(ms + self.__eps)
        n = x * r
        self.cache = (x, ms, r, n)
        return n * g

    def backward(self, dout):
        (g,) = self.params
        x, ms, r, n = self.cache
        dg = np.sum(dout * n, axis=0)
        dn = dout * g
        dr = np.sum(dn * x, axis=1, keepdims=True)
        dms = dr * -0.5 * (ms + self.__eps) ** -1.5
        dx = dn * r + dms * 2 * x / x.shape[1]
        self.grads[0][...] = dg
        return dx


class SwiGLU:
    def __init__(self, W_gate, W_up):
        self.params = [W_gate, W_up]
        self.grads = [np.zeros_like(p) for p in self.params]

    def forward(self, x):
        W_gate, W_up = self.params
        gate = np.dot(x, W_gate)
        up = np.dot(x, W_up)
        sig = 1 / (1 + np.exp(-gate))
        act = gate * sig
        self.cache = x, up, sig, act
        return act * up

    def backward(self, dout):
        W_gate, W_up = self.params
        x, up, sig, act = self.cache
        dup = dout * act
        dact = dout * up
        dgate = dact * (sig + act * (1 - sig))
        self.grads[1][...] = np.dot(x.T, dup)
        self.grads[0][...] = np.dot(x.T, dgate)
        dx = np.dot(dup, W_up.T)
        dx += np.dot(dgate, W_gate.T)
        return dx

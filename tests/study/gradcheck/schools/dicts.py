"""Nets whose weights live in a dict."""

import numpy as np


class TwoLayerNet:
    def __init__(self, input_size, hidden_size, output_size):
        self.params = {"b1": np.zeros(hidden_size)}
        self.params["W1"] = np.random.randn(input_size, hidden_size)  # noqa: NPY002
        self.params["W2"] = np.random.randn(hidden_size, output_size)  # noqa: NPY002
        self.grads = {}

    def forward(self, x):
        p = self.params
        a = x.dot(p["W1"]) + p["b1"]
        h = np.tanh(a)
        self.cache = (x, h)
        return h.dot(p["W2"])

    def backward(self, dscores):
        x, h = self.cache
        self.grads["W2"] = h.T.dot(dscores)
        dh = dscores.dot(self.params["W2"].T)
        da = dh * (1 - h**2)
        self.grads["W1"] = x.T.dot(da)
        self.grads["b1"] = np.sum(da, axis=0)
        return da.dot(self.params["W1"].T)


class Attention:
    """One causal head over one sequence, x of shape (T, D)."""

    def __init__(self, d_model, d_head):
        self.d_head = d_head
        self.grads = {}
        draw = np.random.randn
        self.params = {k: draw(d_model, d_head) for k in ("Wq", "Wk", "Wv")}

    def _scale(self):
        return 1.0 / np.sqrt(self.d_head)

    def forward(self, x):
        q, k, v = (x @ each for each in self.params.values())
        s = q @ k.T * self._scale()
        s = np.where(np.tri(len(s)) > 0, s, -1e9)
        e = np.exp(s - s.max(axis=1, keepdims=True))
        p = e / e.sum(axis=1, keepdims=True)
        self.cache = x, q, k, v, p
        return p @ v

    def backward(self, dout):
        x, q, k, v, p = self.cache
        dp = dout @ v.T
        dv = p.T @ dout
        ds = p * (dp - (dp * p).sum(axis=1, keepdims=True))
        dq = ds @ k * self._scale()
        dk = ds.T @ q * self._scale()
        self.grads["Wq"] = x.T @ dq
        self.grads["Wk"] = x.T @ dk
        self.grads["Wv"] = x.T @ dv
        P = self.params
        return dq @ P["Wq"].T + dk @ P["Wk"].T + dv @ P["Wv"].T

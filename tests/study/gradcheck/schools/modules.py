import numpy as np


class Parameter:
    def __init__(self, data):
        self.data = data
        self.grad = np.zeros_like(data)


class Module:
    def __init__(self):
        self.training = True


class TiedAutoencoder(Module):
    def __init__(self, n_in, n_hid):
        super().__init__()
        self.W = Parameter(np.random.uniform(-0.5, 0.5, (n_in, n_hid)))  # noqa: NPY002

    def forward(self, x):
        self.x = x
        z = x @ self.W.data
        self.h = 1.0 / (1.0 + np.exp(-z))
        return self.h @ self.W.data.T

    def backward(self, dy):
        self.W.grad += dy.T @ self.h
        dh = dy @ self.W.data
        dz = dh * self.h * (1.0 - self.h)
        self.W.grad += self.x.T @ dz
        return dz @ self.W.data.T


class BatchNorm1d(Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.gamma = Parameter(np.ones(num_features))
        self.eps = eps
        self.running_mean = np.zeros(num_features)

    def forward(self, x):
        mean = x.mean(0)
        self.running_mean = 0.9 * self.running_mean + 0.1 * mean
        self.diff = x - mean
        var = (self.diff**2).mean(0)
        self.std = np.sqrt(var + self.eps)
        self.norm = self.diff / self.std
        return self.gamma.data * self.norm

    def backward(self, dy):
        self.gamma.grad += (dy * self.norm).sum(0)
        dnorm = dy * self.gamma.data
        dstd = -(dnorm * self.diff).sum(0) / self.std**2
        dvar = dstd / (2 * self.std)
        ddiff = dnorm / self.std + dvar * 2 * self.diff / len(dy)
        return ddiff - ddiff.mean(0)

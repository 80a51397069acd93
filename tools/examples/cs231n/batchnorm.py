"""Batch normalisation in training mode. The forward updates bn_param's running averages."""

import numpy as np

LESSON = {
    "x": "N D",
    "gamma": "D",
    "beta": "D",
    "bn_param": {"mode": "train", "eps": 1e-5, "momentum": 0.9},
}


def batchnorm_forward(x, gamma, beta, bn_param):
    mode = bn_param["mode"]
    eps = bn_param.get("eps", 1e-5)
    momentum = bn_param.get("momentum", 0.9)
    running_mean = bn_param.get("running_mean", np.zeros(x.shape[1]))
    running_var = bn_param.get("running_var", np.ones(x.shape[1]))
    if mode != "train":
        raise ValueError(f"no backward in mode {mode}")

    mean = x.mean(axis=0)
    xc = x - mean
    var = np.mean(xc**2, axis=0)
    std = np.sqrt(var + eps)
    x_hat = xc / std
    out = gamma * x_hat + beta

    bn_param["running_mean"] = momentum * running_mean + (1 - momentum) * mean
    bn_param["running_var"] = momentum * running_var + (1 - momentum) * var
    cache = (xc, std, x_hat, gamma)
    return out, cache


def batchnorm_backward(dout, cache):
    """Go back step by step: through x_hat, std, var and mean to x."""
    xc, std, x_hat, gamma = cache
    N = dout.shape[0]
    dgamma = np.sum(dout * x_hat, axis=0)
    dbeta = np.sum(dout, axis=0)
    dx_hat = dout * gamma
    dstd = -np.sum(dx_hat * xc, axis=0) / std**2
    dvar = 0.5 * dstd / std
    dxc = dx_hat / std + 2 / N * xc * dvar
    dmean = -np.sum(dxc, axis=0)
    dx = dxc + dmean / N
    return dx, dgamma, dbeta

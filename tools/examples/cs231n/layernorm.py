"""Layer normalisation. The cache is a dict, and the results have names of their own: their order
says what they are.
"""

import numpy as np

LESSON = {"x": "N D", "gamma": "D", "beta": "D", "ln_param": {"eps": 1e-5}}


def layernorm_forward(x, gamma, beta, ln_param):
    eps = ln_param.get("eps", 1e-5)
    mean = np.mean(x, axis=1, keepdims=True)
    var = np.var(x, axis=1, keepdims=True)
    std = np.sqrt(var + eps)
    x_hat = (x - mean) / std
    out = gamma * x_hat + beta
    cache = {"x": x, "mean": mean, "std": std, "x_hat": x_hat, "gamma": gamma}
    return out, cache


def layernorm_backward(dout, cache):
    xc, std = cache["x"] - cache["mean"], cache["std"]
    D = dout.shape[1]
    grad_gamma = (dout * cache["x_hat"]).sum(axis=0)
    grad_beta = dout.sum(axis=0)

    dx_hat = dout * cache["gamma"]
    dvar = -0.5 * np.sum(dx_hat * xc, axis=1, keepdims=True) / std**3
    dmean = -np.sum(dx_hat, axis=1, keepdims=True) / std
    grad_x = dx_hat / std + dvar * 2 * xc / D + dmean / D
    return grad_x, grad_gamma, grad_beta

"""How large each layer's gradient, parameters and update are: what metrics.jsonl has of every logged step."""

import math
from collections import defaultdict

import numpy as np

from npgpt.engine.adamw import SLICE, bias_correction

KINDS = {"grad_norm": "gradient, before clipping", "param_norm": "parameters", "update_norm": "update"}


def layer_of(name):
    """Return "h.0" for "h.0.ln_1.weight", and "wte" for "wte.weight"."""
    first, second, *_ = name.split(".")
    return f"{first}.{second}" if first == "h" else first


def layer_norms(optimizer, grads):
    """Compute {"grad_norm.wte": …, "param_norm.wte": …, "update_norm.wte": …, …} after a step of an `AdamW` on a CPU.

    The step has replaced the parameters, but its moments and its rule say by how much: p = (1 - decay) p_old - moved.
    """
    params, squares, begin = optimizer.params, defaultdict(float), 0
    step_size, eps = bias_correction(optimizer.t, optimizer.lr, *optimizer.betas, optimizer.eps)
    for name in params.flat_names:
        decay = optimizer.lr * optimizer.weight_decay if begin < optimizer.n_decay else 0.0
        arrays = [each[name].reshape(-1) for each in (params, grads, optimizer.m, optimizer.v)]
        begin += params[name].size
        for start in range(0, params[name].size, SLICE):
            p, g, m, v = (each[start:start + SLICE] for each in arrays)
            moved = step_size * m / (np.sqrt(v) + eps)
            update = moved + decay / (1.0 - decay) * (p + moved)
            for kind, array in zip(KINDS, (g, p, update), strict=True):
                squares[f"{kind}.{layer_of(name)}"] += float(array @ array)
    return {key: math.sqrt(square) for key, square in squares.items()}

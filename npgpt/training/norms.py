"""The norms of each layer's gradient, parameters and update, for metrics.jsonl."""

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from npgpt.model.parameters import Parameters

KINDS = {"grad_norm": "gradient, before clipping", "param_norm": "parameters", "update_norm": "update"}


def layer_of(name: str) -> str:
    """Return "h.0" for "h.0.ln_1.weight", and "wte" for "wte.weight"."""
    first, second, *_ = name.split(".")
    return f"{first}.{second}" if first == "h" else first


def layer_norms(params: Parameters, grads: Mapping, before: np.ndarray) -> dict[str, float]:
    """Compute {"grad_norm.wte": …, "param_norm.wte": …, "update_norm.wte": …, …} after a step, on a CPU.

    params: `Parameters`; before: a copy of `flat[:n_trained]` from before the step, which is overwritten.
    """
    squares, begin = defaultdict(float), 0
    before -= params.flat[:len(before)]         # the update, but for its sign
    for name in params.flat_names:
        p, g = params[name].reshape(-1), grads[name].reshape(-1)
        for kind, array in zip(KINDS, (g, p, before[begin:begin + p.size]), strict=True):
            squares[f"{kind}.{layer_of(name)}"] += float(array @ array)
        begin += p.size
    return {key: math.sqrt(square) for key, square in squares.items()}

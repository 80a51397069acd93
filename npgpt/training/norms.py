"""The norms of each layer's gradient, parameters and update, for metrics.jsonl."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from npgpt.model.parameters import Parameters

KINDS = {"grad_norm": "gradient, before clipping", "param_norm": "parameters", "update_norm": "update"}


def layer_norms(params: Parameters, grads: Mapping, before: np.ndarray) -> dict[str, float]:
    """Compute {"grad_norm.wte": …, "param_norm.wte": …, "update_norm.wte": …, …} after a step, on a CPU.

    params: `Parameters`; before: a copy of `flat[:n_trained]` from before the step, which is overwritten.
    """
    squares, begin = defaultdict(float), 0
    before -= params.flat[:len(before)]         # the update, but for its sign
    for name in params.flat_names:
        p, g = params[name].reshape(-1), grads[name].reshape(-1)
        layer = re.findall(r"h\.\d+|\w+", name)[0]         # h.0 of h.0.ln_1.weight, wte of wte.weight
        for kind, array in zip(KINDS, (g, p, before[begin:begin + p.size]), strict=True):
            squares[f"{kind}.{layer}"] += float(array @ array)
        begin += p.size
    return {key: math.sqrt(square) for key, square in squares.items()}

"""The norm of each layer's gradient, for metrics.jsonl."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping


def layer_norms(grads: Mapping) -> dict[str, float]:
    """Compute {"grad_norm.wte": …, "grad_norm.h.0": …, …}, of the gradients before clipping, on a CPU."""
    squares = defaultdict(float)
    for name, array in grads.items():
        layer = re.findall(r"h\.\d+|\w+", name)[0]         # h.0 of h.0.ln_1.weight, wte of wte.weight
        gradient = array.reshape(-1)
        squares[f"grad_norm.{layer}"] += float(gradient @ gradient)
    return {key: math.sqrt(square) for key, square in squares.items()}

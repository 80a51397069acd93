"""The MLP of a transformer block: widen four times, GELU, narrow again."""

from npgpt.layers.gelu import gelu_exact_backward, gelu_exact_forward, gelu_tanh_backward, gelu_tanh_forward
from npgpt.layers.linear import linear_backward, linear_forward

GELU = {
    "gelu_tanh": (gelu_tanh_forward, gelu_tanh_backward),
    "gelu": (gelu_exact_forward, gelu_exact_backward),
}


def mlp_forward(x, c_fc_weight, c_fc_bias, c_proj_weight, c_proj_bias, activation="gelu_tanh"):
    """y = GELU(x W_fc + b_fc) W_proj + b_proj.

    x (..., C), c_fc_weight (C, F), c_fc_bias (F,) or None, c_proj_weight (F, C), c_proj_bias (C,) or None, F = 4 C in
    GPT-2; activation "gelu_tanh" or "gelu" -> y (..., C), cache: the three layers' own caches, and
    which GELU it was.
    """
    gelu_forward, _ = GELU[activation]
    hidden, c_fc = linear_forward(x, c_fc_weight, c_fc_bias)            # (..., F)
    active, gelu = gelu_forward(hidden)                                 # (..., F)
    y, c_proj = linear_forward(active, c_proj_weight, c_proj_bias)      # (..., C)
    return y, (c_fc, gelu, activation, c_proj)


def mlp_backward(dy, cache, dc_fc_weight=None, dc_proj_weight=None):
    """Undo `mlp_forward`: dy (..., C) -> dx, dc_fc_weight, dc_fc_bias, dc_proj_weight, dc_proj_bias.

    dc_fc_weight, dc_proj_weight: where to write the two, as in `linear_backward`.
    """
    c_fc, gelu, activation, c_proj = cache
    _, gelu_backward = GELU[activation]
    # y, c_proj = linear_forward(active, c_proj_weight, c_proj_bias)
    dactive, dc_proj_weight, dc_proj_bias = linear_backward(dy, c_proj, dc_proj_weight)
    # active, gelu = gelu_forward(hidden)
    dhidden = gelu_backward(dactive, gelu)
    # hidden, c_fc = linear_forward(x, c_fc_weight, c_fc_bias)
    dx, dc_fc_weight, dc_fc_bias = linear_backward(dhidden, c_fc, dc_fc_weight)
    return dx, dc_fc_weight, dc_fc_bias, dc_proj_weight, dc_proj_bias

"""Self-attention, the layer: queries, keys and values from one linear layer, attention, and a linear layer after it."""

import math

from npgpt.layers.attention_tiles import tiled_attention_backward, tiled_attention_forward
from npgpt.layers.linear import linear_backward, linear_forward


def split_heads(qkv, n_head):
    """(B, T, 3 C) -> q, k, v, each (B, H, T, D): three views, nothing is copied."""
    B, T, C3 = qkv.shape
    D = C3 // 3 // n_head
    heads = qkv.reshape(B, T, 3, n_head, D).transpose(2, 0, 3, 1, 4)    # (3, B, H, T, D)
    return heads[0], heads[1], heads[2]


def merge_heads(mix):
    """(B, H, T, D) -> (B, T, C): the heads' channels side by side."""
    B, H, T, D = mix.shape
    return mix.transpose(0, 2, 1, 3).reshape(B, T, H * D)


def self_attention_forward(x, c_attn_weight, c_attn_bias, c_proj_weight, c_proj_bias, n_head, scale=None, causal=True,
                           dropout_mask=None, extend=None):
    """Self-attention with H heads: one product makes queries, keys and values, a last one mixes the heads' results.

    x (B, T, C), c_attn_weight (C, 3 C), c_attn_bias (3 C,) or None, c_proj_weight (C, C), c_proj_bias (C,) or None,
    n_head H (divides C), scale 1 / sqrt(D) unless given, causal: no position sees a later one, dropout_mask
    (B, H, T, T) or None -> y (B, T, C), cache: the three layers' own caches. In generation `extend` puts the keys and
    values of earlier positions in front: extend(k, v) -> k, v (B, H, S, D); such a forward has no backward.

    The scores are divided by sqrt(D) because the dot product of two random vectors of D unit values has variance D.
    """
    B, T, C = x.shape
    if scale is None:
        scale = 1.0 / math.sqrt(C // n_head)
    qkv, c_attn = linear_forward(x, c_attn_weight, c_attn_bias)                 # (B, T, 3 C)
    q, k, v = split_heads(qkv, n_head)                                          # 3 x (B, H, T, D)
    k, v = (k, v) if extend is None else extend(k, v)                           # 2 x (B, H, S, D), S >= T
    mix, attention = tiled_attention_forward(q, k, v, scale, causal, dropout_mask)          # (B, H, T, D)
    merged = merge_heads(mix)                                                   # (B, T, C)
    y, c_proj = linear_forward(merged, c_proj_weight, c_proj_bias)              # (B, T, C)
    return y, (c_attn, attention, c_proj, n_head)


def self_attention_backward(dy, cache, dc_attn_weight=None, dc_proj_weight=None):
    """Undo `self_attention_forward`: dy (B, T, C) -> dx, dc_attn_weight, dc_attn_bias, dc_proj_weight, dc_proj_bias.

    dc_attn_weight, dc_proj_weight: where to write the two, as in `linear_backward`.
    """
    c_attn, attention, c_proj, n_head = cache
    B, T, C = dy.shape
    # y, c_proj = linear_forward(merged, c_proj_weight, c_proj_bias)
    dmerged, dc_proj_weight, dc_proj_bias = linear_backward(dy, c_proj, dc_proj_weight)         # (B, T, C)
    # merged = merge_heads(mix)
    dmix = dmerged.reshape(B, T, n_head, C // n_head).transpose(0, 2, 1, 3)                    # (B, H, T, D)
    # mix, attention = tiled_attention_forward(q, k, v, scale, causal, dropout_mask)
    dq, dk, dv = dheads = tiled_attention_backward(dmix, attention)             # 3 x (B, H, T, D), and all as one
    # q, k, v = split_heads(qkv, n_head)
    dqkv = dheads.transpose(1, 3, 0, 2, 4).reshape(B, T, 3 * C)                 # (B, T, 3 C)
    # qkv, c_attn = linear_forward(x, c_attn_weight, c_attn_bias)
    dx, dc_attn_weight, dc_attn_bias = linear_backward(dqkv, c_attn, dc_attn_weight)            # (B, T, C)
    return dx, dc_attn_weight, dc_attn_bias, dc_proj_weight, dc_proj_bias

"""Attention: every position looks at the positions before it and takes a weighted mixture of what they hold."""

import math

import numpy as np

from npgpt.backend.arrays import causal_mask
from npgpt.layers.linear import linear_backward, linear_forward


def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
    """mix = softmax(q k^T scale + mask) v, for each batch entry and head (Vaswani et al. 2017, arXiv:1706.03762).

    q (B, H, T, D) queries, k and v (B, H, S, D) keys and values (S = T, but in generation with a cache), scale a Python
    float, mask (T, S) with 0 where a query may look and -inf where it may not, or None, dropout_mask (B, H, T, S) as
    `dropout_mask` draws it, or None -> mix (B, H, T, D), cache.

    The cache keeps q, k, v and att. att is the largest array of the model (T values for each position and head); to
    compute it again would cost a third of the forward's products and both passes of the softmax.
    """
    product = q @ k.swapaxes(-1, -2)                                # (B, H, T, S)
    scores = product * scale                                        # (B, H, T, S)
    masked = scores if mask is None else scores + mask              # (B, H, T, S)
    exps = np.exp(masked - masked.max(axis=-1, keepdims=True))      # (B, H, T, S): exp(-inf) = 0
    att = exps / exps.sum(axis=-1, keepdims=True)                   # (B, H, T, S): each row sums to 1
    kept = att if dropout_mask is None else att * dropout_mask      # (B, H, T, S)
    mix = kept @ v                                                  # (B, H, T, D)
    return mix, (q, k, v, scale, att, dropout_mask)


def attention_backward(dmix, cache):
    """Undo `attention_forward`: dmix (B, H, T, D) -> dq (B, H, T, D), dk and dv (B, H, S, D).

    Short cut: dexps is skipped. For one row of the softmax, with a = softmax(m):

        da_j/dm_i = a_j ([i == j] - a_i)
        dm_i = sum_j datt_j a_j ([i == j] - a_i) = a_i (datt_i - sum_j datt_j a_j)

    Where the mask was -inf, a_i is 0, and so is the gradient: the mask needs no line of its own.
    """
    q, k, v, scale, att, dropout_mask = cache
    # mix = kept @ v
    kept = att if dropout_mask is None else att * dropout_mask      # (B, H, T, S)
    dkept = dmix @ v.swapaxes(-1, -2)                               # (B, H, T, S)
    dv = kept.swapaxes(-1, -2) @ dmix                               # (B, H, S, D)
    # kept = att * dropout_mask
    datt = dkept if dropout_mask is None else dkept * dropout_mask  # (B, H, T, S)
    # att = softmax(masked)
    dot = (datt * att).sum(axis=-1, keepdims=True)                  # (B, H, T, 1)
    dmasked = att * (datt - dot)                                    # (B, H, T, S)
    # masked = scores + mask
    dscores = dmasked                                               # (B, H, T, S)
    # scores = product * scale
    dproduct = dscores * scale                                      # (B, H, T, S)
    # product = q @ k.swapaxes(-1, -2)
    dq = dproduct @ k                                               # (B, H, T, D)
    dk = dproduct.swapaxes(-1, -2) @ q                              # (B, H, S, D)
    return dq, dk, dv


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
    S = k.shape[2]
    mask = causal_mask(S, like=q)[S - T:] if causal and T > 1 else None         # (T, S): the last T of S positions
    mix, attention = attention_forward(q, k, v, scale, mask, dropout_mask)      # (B, H, T, D)
    merged = merge_heads(mix)                                                   # (B, T, C)
    y, c_proj = linear_forward(merged, c_proj_weight, c_proj_bias)              # (B, T, C)
    return y, (c_attn, attention, c_proj)


def self_attention_backward(dy, cache):
    """Undo `self_attention_forward`: dy (B, T, C) -> dx, dc_attn_weight, dc_attn_bias, dc_proj_weight, dc_proj_bias."""
    c_attn, attention, c_proj = cache
    B, H, T, D = attention[0].shape
    # y, c_proj = linear_forward(merged, c_proj_weight, c_proj_bias)
    dmerged, dc_proj_weight, dc_proj_bias = linear_backward(dy, c_proj)         # (B, T, C)
    # merged = merge_heads(mix)
    dmix = dmerged.reshape(B, T, H, D).transpose(0, 2, 1, 3)                    # (B, H, T, D)
    # mix, attention = attention_forward(q, k, v, scale, mask, dropout_mask)
    dq, dk, dv = attention_backward(dmix, attention)                            # 3 x (B, H, T, D)
    # q, k, v = split_heads(qkv, n_head)
    dheads = np.stack([dq, dk, dv])                                             # (3, B, H, T, D)
    dqkv = dheads.transpose(1, 3, 0, 2, 4).reshape(B, T, 3 * H * D)             # (B, T, 3 C)
    # qkv, c_attn = linear_forward(x, c_attn_weight, c_attn_bias)
    dx, dc_attn_weight, dc_attn_bias = linear_backward(dqkv, c_attn)            # (B, T, C)
    return dx, dc_attn_weight, dc_attn_bias, dc_proj_weight, dc_proj_bias

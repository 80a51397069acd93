"""Attention: every position looks at the positions before it and takes a weighted mixture of what they hold."""

import numpy as np

from npgpt.engine.sums import row_dot, row_sum


def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
    """mix = softmax(q k^T scale + mask) v, for each batch entry and head (Vaswani et al. 2017, arXiv:1706.03762).

    q (B, H, T, D) queries, k and v (B, H, S, D) keys and values (S = T, but in generation with a cache), scale a Python
    float, mask (T, S) with 0 where a query may look and -inf where it may not, or None, dropout_mask (B, H, T, S) as
    `dropout_mask` draws it, or None -> mix (B, H, T, D), cache.

    A query whose keys are all masked gets weights of 0, so its mix is 0, and its gradients are 0, as in torch's
    scaled_dot_product_attention. The plain softmax would divide 0 by 0.

    The cache keeps q, k, v and att. att is the largest array of the model (T values for each position and head); to
    compute it again would cost a third of the forward's products and both passes of the softmax.
    """
    scaled = q * scale                                              # (B, H, T, D): D columns to scale, not S
    scores = scaled @ k.swapaxes(-1, -2)                            # (B, H, T, S)
    masked = scores if mask is None else scores + mask              # (B, H, T, S)
    lowest = float(np.finfo(masked.dtype).min)                      # finite: -inf - -inf would be NaN
    exps = np.exp(masked - np.maximum(masked.max(axis=-1, keepdims=True), lowest))  # (B, H, T, S): exp(-inf) = 0
    # The largest score adds exp(0) = 1 to its row's sum. So 0.5 replaces only the sum 0, of a row that is all masked.
    att = exps / np.maximum(row_sum(exps), 0.5)                     # (B, H, T, S): each row sums to 1, or 0
    kept = att if dropout_mask is None else att * dropout_mask      # (B, H, T, S)
    mix = kept @ v                                                  # (B, H, T, D)
    return mix, (q, k, v, scale, att, dropout_mask)


def attention_backward(dmix, cache):
    """Undo `attention_forward`: dmix (B, H, T, D) -> dq (B, H, T, D), dk and dv (B, H, S, D).

    Short cut: dexps is skipped. For one row of the softmax, with a = softmax(m):

        da_j/dm_i = a_j ([i == j] - a_i)
        dm_i = sum_j datt_j a_j ([i == j] - a_i) = a_i (datt_i - sum_j datt_j a_j)

    Where the mask was -inf, a_i is 0, and so is the gradient: the mask needs no line of its own. That holds for a row
    whose keys are all masked, too: all its a_i are 0.
    """
    q, k, v, scale, att, dropout_mask = cache
    # mix = kept @ v
    kept = att if dropout_mask is None else att * dropout_mask      # (B, H, T, S)
    dkept = dmix @ v.swapaxes(-1, -2)                               # (B, H, T, S)
    dv = kept.swapaxes(-1, -2) @ dmix                               # (B, H, S, D)
    # kept = att * dropout_mask
    datt = dkept if dropout_mask is None else dkept * dropout_mask  # (B, H, T, S)
    # att = softmax(masked)
    dot = row_dot(datt, att)                                        # (B, H, T, 1)
    dmasked = att * (datt - dot)                                    # (B, H, T, S)
    # masked = scores + mask
    dscores = dmasked                                               # (B, H, T, S)
    # scores = scaled @ k.swapaxes(-1, -2)
    scaled = q * scale                                              # (B, H, T, D): a second time, cheaper than to keep
    dscaled = dscores @ k                                           # (B, H, T, D)
    dk = dscores.swapaxes(-1, -2) @ scaled                          # (B, H, S, D)
    # scaled = q * scale
    dq = dscaled * scale                                            # (B, H, T, D)
    return dq, dk, dv

"""The long way of three backwards: a gradient for each line, also those that fused ones skip."""

import numpy as np


def layernorm_backward(dy, cache):
    """Undo `layernorm_forward` line by line: dy (..., C) -> dx (..., C), dweight, dbias (C,)."""
    xhat, rstd, weight, has_bias = cache
    C = xhat.shape[-1]
    centred = xhat / rstd                                               # (..., C) not in the cache
    # y = y + bias
    dbias = dy.reshape(-1, C).sum(axis=0) if has_bias else None         # (C,)
    # y = xhat * weight
    dweight = (dy * xhat).reshape(-1, C).sum(axis=0)                    # (C,)
    dxhat = dy * weight                                                 # (..., C)
    # xhat = centred * rstd
    drstd = (dxhat * centred).sum(axis=-1, keepdims=True)               # (..., 1)
    # rstd = 1.0 / np.sqrt(var + eps)
    dvar = drstd * (-0.5 * rstd * rstd * rstd)                          # (..., 1)
    # xhat = centred * rstd
    # var = (centred * centred).mean(axis=-1, keepdims=True)
    dcentred = dxhat * rstd + dvar * (2.0 / C * centred)                # (..., C)
    # centred = x - mean
    dmean = -dcentred.sum(axis=-1, keepdims=True)                       # (..., 1)
    # centred = x - mean
    # mean = x.mean(axis=-1, keepdims=True)
    dx = dcentred + dmean / C                                           # (..., C)
    return dx, dweight, dbias


def cross_entropy_backward(dloss, cache):
    """Undo `cross_entropy_forward` line by line: dloss (1.0 for training) -> dlogits (..., V).

    There is no dprobs: it is 0, because the loss does not read probs.
    """
    probs, column, counted, count = cache
    # the largest of exps is exp(0) = 1, so that of probs is 1 / total
    total = 1.0 / probs.max(axis=-1, keepdims=True)                     # (..., 1)
    exps = probs * total                                                # (..., V)
    # loss = np.where(counted, losses, 0.0).sum() / count
    dlosses = np.where(counted, dloss / count, 0.0)                     # (..., 1)
    # losses = np.log(total) - at_target
    dat_target = -dlosses                                               # (..., 1)
    dtotal = dlosses / total                                            # (..., 1)
    # total = exps.sum(axis=-1, keepdims=True)
    dexps = np.broadcast_to(dtotal, exps.shape)                         # (..., V)
    # at_target = np.take_along_axis(shifted, column, axis=-1)
    # exps = np.exp(shifted)
    dshifted = dexps * exps + dat_target * (np.arange(exps.shape[-1]) == column)        # (..., V)
    # shifted = logits - logits.max(axis=-1, keepdims=True): the maximum's gradient is 0
    dlogits = dshifted                                                  # (..., V)
    return dlogits


def attention_backward(dmix, cache):
    """Undo `attention_forward` line by line: dmix, dq (B, H, T, D), dk, dv (B, H, S, D)."""
    q, k, v, scale, att, dropout_mask = cache
    # the largest of exps is exp(0) = 1, so that of att is 1 / total
    total = 1.0 / att.max(axis=-1, keepdims=True)                       # (B, H, T, 1)
    exps = att * total                                                  # (B, H, T, S)
    # mix = kept @ v
    kept = att if dropout_mask is None else att * dropout_mask          # (B, H, T, S)
    dkept = dmix @ v.swapaxes(-1, -2)                                   # (B, H, T, S)
    dv = kept.swapaxes(-1, -2) @ dmix                                   # (B, H, S, D)
    # kept = att if dropout_mask is None else att * dropout_mask
    datt = dkept if dropout_mask is None else dkept * dropout_mask      # (B, H, T, S)
    # att = exps / total
    dtotal = -(datt * exps / total**2).sum(axis=-1, keepdims=True)      # (B, H, T, 1)
    # att = exps / total
    # total = exps.sum(axis=-1, keepdims=True)
    dexps = datt / total + dtotal                                       # (B, H, T, S)
    # exps = np.exp(masked - largest)
    dlargest = -(dexps * exps).sum(axis=-1, keepdims=True)              # (B, H, T, 1) nearly 0
    # exps = np.exp(masked - largest)
    # largest = masked.max(axis=-1, keepdims=True)
    is_largest = att == att.max(axis=-1, keepdims=True)                 # (B, H, T, S)
    dmasked = dexps * exps + dlargest * is_largest                      # (B, H, T, S)
    # masked = scaled if mask is None else scaled + mask
    dscaled = dmasked                                                   # (B, H, T, S)
    # scaled = scores * scale
    dscores = dscaled * scale                                           # (B, H, T, S)
    # scores = q @ k.swapaxes(-1, -2)
    dq = dscores @ k                                                    # (B, H, T, D)
    dk = dscores.swapaxes(-1, -2) @ q                                   # (B, H, S, D)
    return dq, dk, dv

"""Backwards without a shortcut: one line for each line of the forward. Only the study page uses them."""

import dataclasses


def layernorm_backward_long_way(dy, cache):
    """Undo `layernorm_forward` line by line: dy (..., C) -> dx (..., C), dweight (C,), dbias (C,) or None."""
    xhat, rstd, weight, has_bias = cache
    C = xhat.shape[-1]
    centred = xhat / rstd                                           # (..., C): not in the cache
    # y = y + bias
    dbias = dy.reshape(-1, C).sum(axis=0) if has_bias else None     # (C,)
    # y = xhat * weight
    dweight = (dy * xhat).reshape(-1, C).sum(axis=0)                # (C,)
    dxhat = dy * weight                                             # (..., C)
    # xhat = centred * rstd
    dcentred_xhat = dxhat * rstd                                    # (..., C): centred is used twice
    drstd = (dxhat * centred).sum(axis=-1, keepdims=True)           # (..., 1): rstd was broadcast over the channels
    # rstd = 1.0 / np.sqrt(var + eps)
    dvar = drstd * (-0.5 * rstd * rstd * rstd)                      # (..., 1)
    # var = (centred * centred).mean(axis=-1, keepdims=True)
    dcentred_var = dvar * (2.0 / C * centred)                       # (..., C)
    dcentred = dcentred_xhat + dcentred_var                         # (..., C)
    # centred = x - mean
    dmean = -dcentred.sum(axis=-1, keepdims=True)                   # (..., 1): mean was broadcast over the channels
    # mean = x.mean(axis=-1, keepdims=True)
    dx = dcentred + dmean / C                                       # (..., C): x is used twice as well
    return dx, dweight, dbias


LONG_WAYS = {"layernorm": layernorm_backward_long_way}


def ways(lesson):
    """Return a lesson with each of its backwards: the package's, and the one without a shortcut if it exists."""
    long_way = LONG_WAYS.get(lesson.name)
    return [lesson, dataclasses.replace(lesson, backward=long_way)] if long_way else [lesson]

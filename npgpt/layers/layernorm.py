"""LayerNorm: every position brought to mean 0 and variance 1, then scaled and shifted by learned vectors."""

import numpy as np

from npgpt.engine.rowwise import rowwise
from npgpt.engine.sums import column_dot, column_sum, row_dot, row_sum


@rowwise
def layernorm_forward(x, weight, bias=None, eps=1e-5):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, over the last axis (Ba et al. 2016, arXiv:1607.06450).

    x (..., C), weight (C,), bias (C,) or None -> y (..., C), cache. The variance is the biased one (divided by C).

    The cache keeps xhat and rstd: they are all that the backward needs of x. xhat costs as much memory as x, which can
    then be let go; to keep x instead would mean computing the mean and xhat a second time.
    """
    C = x.shape[-1]
    mean = row_sum(x) / C                               # (..., 1)
    centred = x - mean                                  # (..., C)
    var = row_dot(centred, centred) / C                 # (..., 1)
    rstd = 1.0 / np.sqrt(var + eps)                     # (..., 1) reciprocal standard deviation
    xhat = centred * rstd                               # (..., C) normalized: mean 0, variance 1
    scaled = xhat * weight                              # (..., C)
    y = scaled if bias is None else scaled + bias       # (..., C)
    return y, (xhat, rstd, weight, bias is not None)


@rowwise
def layernorm_backward(dy, cache):
    """Undo `layernorm_forward`: dy (..., C) -> dx (..., C), dweight (C,), dbias (C,) or None.

    Short cut: dmean, dcentred, dvar and drstd are skipped. Walking the lines one by one (all means over the C channels
    of one position):

        xhat = centred rstd             dcentred = dxhat rstd + …       drstd = sum(dxhat centred)
        rstd = (var + eps)^(-1/2)       dvar     = drstd (-1/2) rstd^3
        var  = mean(centred^2)          dcentred = … + dvar 2 centred / C
        centred = x - mean(x)           dx       = dcentred - mean(dcentred)

    Put the second and third into dcentred, and use centred = xhat / rstd:

        dcentred = rstd (dxhat - xhat mean(dxhat xhat))

    The last line subtracts the mean of that; xhat has mean zero, so only the mean of dxhat is left to subtract:

        dx = rstd (dxhat - mean(dxhat) - xhat mean(dxhat xhat))

    In words: the gradient loses its part along (1, …, 1) and its part along xhat, because moving x in those two
    directions, shifting it or stretching it, does not change xhat at all (but for eps, which rstd carries exactly).
    """
    xhat, rstd, weight, has_bias = cache
    C = xhat.shape[-1]
    # y = scaled + bias
    dbias = column_sum(dy) if has_bias else None                    # (C,)
    dscaled = dy                                                    # (..., C)
    # scaled = xhat * weight
    dweight = column_dot(dscaled, xhat)                             # (C,)
    dxhat = dscaled * weight                                        # (..., C)
    # xhat = (x - mean) * rstd, all of it at once
    mean_dxhat = row_sum(dxhat) / C                                 # (..., 1)
    mean_dxhat_xhat = row_dot(dxhat, xhat) / C                      # (..., 1)
    dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)       # (..., C)
    return dx, dweight, dbias

"""LayerNorm: bring each position to mean 0 and variance 1, then scale and shift it."""

import numpy as np


def layernorm_forward(x, weight, bias=None, eps=1e-5):
    """Compute y = (x - mean) / sqrt(var + eps) * weight + bias over the last axis.

    Parameters
    ----------
    x : array (..., C), floating
    weight : array (C,), of x's dtype
    bias : array (C,), or None
    eps : float
        Added to the variance, which is the biased one (divided by C).

    Returns
    -------
    y : array (..., C)
    cache : tuple
        xhat and rstd, all that the backward needs of x. Caching x instead would take as much
        memory, and the backward would have to recompute mean and xhat.

    References
    ----------
    Ba et al. 2016, arXiv:1607.06450.
    """
    mean = x.mean(axis=-1, keepdims=True)                       # (..., 1)
    centred = x - mean                                          # (..., C)
    var = (centred * centred).mean(axis=-1, keepdims=True)      # (..., 1)
    rstd = 1.0 / np.sqrt(var + eps)                             # (..., 1) 1 / standard deviation
    xhat = centred * rstd                                       # (..., C) mean 0, variance 1
    y = xhat * weight                                           # (..., C)
    if bias is not None:
        y = y + bias                                            # (..., C)
    return y, (xhat, rstd, weight, bias is not None)


def layernorm_backward(dy, cache):
    """Undo `layernorm_forward`.

    Parameters
    ----------
    dy : array (..., C)
    cache : tuple, from `layernorm_forward`

    Returns
    -------
    dx : array (..., C)
    dweight : array (C,)
    dbias : array (C,), or None

    Notes
    -----
    Fused: drstd, dvar, dcentred and dmean are skipped. Line by line, with sums and means over the C
    channels of one position:

        m = mean(dxhat xhat)                            mean_dxhat_xhat below
        drstd = sum(dxhat centred)                      xhat = centred rstd, one rstd for C channels
              = C m / rstd                              because centred = xhat / rstd
        dvar = drstd (-1/2) rstd^3                      rstd = (var + eps)^(-1/2)
             = -C/2 rstd^2 m
        dcentred = rstd dxhat + dvar 2 centred / C      used twice: xhat, and var = mean(centred^2)
                 = rstd dxhat - rstd^2 m centred
                 = rstd (dxhat - xhat m)
        dmean = -sum(dcentred)                          centred = x - mean, one mean for C channels
              = -rstd (sum(dxhat) - m sum(xhat))
              = -C rstd mean(dxhat)                     because sum(xhat) = 0
        dx = dcentred + dmean / C                       used twice: centred, and mean = sum(x) / C
           = rstd (dxhat - mean(dxhat) - xhat m)

    In words: dxhat loses its part along (1, …, 1) and its part along xhat, because moving x in
    these two directions, a shift or a stretch, does not change xhat. (But for eps, which is not
    stretched with x: mean(xhat^2) is var / (var + eps), so the rest of the part along xhat stays.)
    """
    xhat, rstd, weight, has_bias = cache
    C = xhat.shape[-1]
    # y = y + bias
    dbias = dy.reshape(-1, C).sum(axis=0) if has_bias else None         # (C,)
    # y = xhat * weight
    dweight = (dy * xhat).reshape(-1, C).sum(axis=0)                    # (C,)
    dxhat = dy * weight                                                 # (..., C)
    # mean = x.mean(axis=-1, keepdims=True)
    # centred = x - mean
    # var = (centred * centred).mean(axis=-1, keepdims=True)
    # rstd = 1.0 / np.sqrt(var + eps)
    # xhat = centred * rstd, these five lines in one step
    mean_dxhat = dxhat.mean(axis=-1, keepdims=True)                     # (..., 1)
    mean_dxhat_xhat = (dxhat * xhat).mean(axis=-1, keepdims=True)       # (..., 1)
    dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)           # (..., C)
    return dx, dweight, dbias

"""LayerNorm, in the short way of the package and in the long way that undoes every line.

x (4, 5, 6)."""

SOLUTIONS = r"""
layer layernorm
right | the long way
    xhat, rstd, weight, has_bias = cache
    C = xhat.shape[-1]
    centred = xhat / rstd
    dbias = dy.reshape(-1, C).sum(axis=0) if has_bias else None
    dweight = (dy * xhat).reshape(-1, C).sum(axis=0)
    dxhat = dy * weight
    # xhat = centred * rstd
    drstd = (dxhat * centred).sum(axis=-1, keepdims=True)
    # rstd = 1.0 / np.sqrt(var + eps)
    dvar = drstd * -0.5 * rstd**3
    # var = (centred * centred).mean(axis=-1, keepdims=True), and centred is used in xhat too
    dcentred = dxhat * rstd + dvar * 2.0 * centred / C
    # mean = x.mean(axis=-1, keepdims=True)
    dmean = -dcentred.sum(axis=-1, keepdims=True)
    dx = dcentred + dmean / C
    return dx, dweight, dbias
right | dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat) \
  => sum_dxhat = dxhat.sum(axis=-1, keepdims=True)\n    sum_dxhat_xhat = (dxhat * \
  xhat).sum(axis=-1, keepdims=True)\n    dx = (1.0 / C) * rstd * (C * dxhat - sum_dxhat - xhat * \
  sum_dxhat_xhat) | sums and 1 / C
right | an array of its own, changed in place
    xhat, rstd, weight, has_bias = cache
    dbias = dy.sum(axis=(0, 1)) if has_bias else None
    dweight = (xhat * dy).sum(axis=(0, 1))
    dx = dy * weight
    along_xhat = (dx * xhat).mean(axis=-1, keepdims=True)
    dx -= dx.mean(axis=-1, keepdims=True)
    dx -= xhat * along_xhat
    dx *= rstd
    return dx, dweight, dbias
right | dbias = dy.reshape(-1, C).sum(axis=0, dtype=np.float64) if has_bias else None | dbias \
  summed in float64
right | the longest way
    xhat, rstd, weight, has_bias = cache
    C = xhat.shape[-1]
    std = 1.0 / rstd
    centred = xhat * std
    dbias = dy.sum(axis=(0, 1)) if has_bias else None
    dweight = (dy * xhat).sum(axis=(0, 1))
    dxhat = dy * weight
    dcentred = dxhat / std
    dstd = -(dxhat * centred).sum(axis=-1, keepdims=True) / std**2
    dvar = dstd * 0.5 / std
    dsquare = dvar / C * np.ones_like(centred)
    dcentred = dcentred + 2.0 * centred * dsquare
    dx = dcentred - dcentred @ np.ones((C, 1)) / C
    return dx, dweight, dbias
wrong | dxhat = dy
wrong | dxhat = dy * xhat
wrong | dweight = dy.reshape(-1, C).sum(axis=0)
wrong | dweight = dy * xhat
wrong | dweight = (dy * xhat).reshape(-1, C).sum(axis=-1)
wrong | dbias = dy.reshape(C, -1).sum(axis=1) if has_bias else None
wrong | dbias = dy.sum() if has_bias else None
wrong | mean_dxhat = dxhat.mean(axis=0, keepdims=True)
wrong | mean_dxhat = dxhat.mean(axis=-1)
wrong | mean_dxhat = dxhat.mean(axis=3, keepdims=True)
wrong | mean_dxhat = dxhat.mean(axis=-1, keepdims=True) * mean_dxhat_xhat
wrong | mean_dxhat = dxhat.sum(axis=-1, keepdims=True)
wrong | dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat) / C
wrong | dx = rstd * (dxhat - xhat * mean_dxhat_xhat)
wrong | dx = rstd * (dxhat - mean_dxhat)
wrong | dx = rstd * dxhat
wrong | dx = rstd * (dxhat - mean_dxhat + xhat * mean_dxhat_xhat)
wrong | dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat)
wrong | C = xhat.shape[-1] => C = xhat.shape[-1]\n    centred = xhat / rstd\n    rstd = 1.0 / \
  np.sqrt((centred * centred).mean(axis=-1, keepdims=True)) | at rstd = 1.0 / np.sqrt(
wrong | dweight = dy.T @ xhat
wrong | dxhat = dy @@ dx = (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)
wrong | drstd = (dxhat * xhat).sum(axis=-1, keepdims=True) | of the long way
wrong | dvar = drstd * -0.5 * rstd**2 | of the long way
wrong | dcentred = dvar * 2.0 * centred / C | of the long way
wrong | dx = dcentred | of the long way
wrong | dx = rstd * dxhat - mean_dxhat - xhat * mean_dxhat_xhat
wrong | = -( => = ( | of the longest way
wrong | dcentred + 2.0 => dcentred - 2.0 | of the longest way
wrong | = dcentred + 2.0 => = 2.0 | of the longest way
wrong | np.ones((C, 1)) / C => np.ones((C, 1)) | of the longest way
wrong | dx = dcentred - dcentred @ np.ones((C, 1)) / C \
  => size = (xhat * xhat).sum(axis=-1, keepdims=True)\n    along = (dxhat * xhat).sum(axis=-1, \
  keepdims=True)\n    dx = rstd * (dxhat - dxhat.mean(axis=-1, keepdims=True) - xhat * along / \
  size) | at nowhere | of the longest way
wrong | dvar = drstd * rstd**3 | of the long way
wrong | at dx = rstd
    xhat, rstd, weight, has_bias = cache
    dbias = dy.sum(axis=(0, 1)) if has_bias else None
    dweight = (dy * xhat).sum(axis=(0, 1))
    g = dy * weight
    dx = rstd * (g - g.mean(axis=0, keepdims=True) - xhat * (g * xhat).mean(axis=0, keepdims=True))
    return dx, dweight, dbias
wrong | dx = rstd * (dxhat => dx = 0.99999 * rstd * (dxhat
"""

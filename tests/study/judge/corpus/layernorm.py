"""LayerNorm, in the short way of the package and in the long way that undoes every line. x (4, 5, 6)."""

from npgpt.study.judge.explain import UNKNOWN
from tests.study.judge.corpus.solution import right, wrong

LAYERNORM = [
    right("the long way", body="""
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
        """),
    right("the long way, dcentred added to in place", body="""
        xhat, rstd, weight, has_bias = cache
        C = xhat.shape[-1]
        centred = xhat / rstd
        dweight = np.sum(dy * xhat, axis=(0, 1))
        dbias = np.sum(dy, axis=(0, 1)) if has_bias else None
        dxhat = dy * weight
        dcentred = dxhat * rstd
        drstd = np.sum(dxhat * centred, axis=-1, keepdims=True)
        dvar = -0.5 * drstd * rstd * rstd * rstd
        dcentred += 2.0 / C * centred * dvar
        dx = dcentred
        dmean = -np.sum(dcentred, axis=-1, keepdims=True)
        dx += dmean / C
        return dx, dweight, dbias
        """),
    right("the long way of the BatchNorm paper", body="""
        xhat, rstd, weight, has_bias = cache
        C = xhat.shape[-1]
        centred = xhat / rstd
        dbias = dy.sum(axis=1).sum(axis=0) if has_bias else None
        dweight = (dy * xhat).sum(axis=1).sum(axis=0)
        dxhat = dy * weight
        dvar = (dxhat * centred).sum(axis=-1, keepdims=True) * (-0.5) * rstd**3
        dmean = (-dxhat * rstd).sum(axis=-1, keepdims=True) + dvar * (-2.0 * centred).mean(axis=-1, keepdims=True)
        dx = dxhat * rstd + dvar * 2.0 * centred / C + dmean / C
        return dx, dweight, dbias
        """),
    right("the long way by way of the standard deviation", body="""
        xhat, rstd, weight, has_bias = cache
        C = xhat.shape[-1]
        std = 1.0 / rstd
        centred = xhat * std
        dbias = dy.reshape(-1, C).sum(axis=0) if has_bias else None
        dweight = (dy * xhat).reshape(-1, C).sum(axis=0)
        dxhat = dy * weight
        dstd = -(dxhat * centred / std**2).sum(axis=-1, keepdims=True)
        dvar = 0.5 * dstd / std
        dsquares = np.ones_like(centred) * dvar / C
        dcentred_1 = dxhat / std
        dcentred_2 = dsquares * 2.0 * centred
        dcentred = dcentred_1 + dcentred_2
        dx = dcentred - dcentred.mean(axis=-1, keepdims=True)
        return dx, dweight, dbias
        """),
    right("sums and 1 / C", ("dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)",
          "sum_dxhat = dxhat.sum(axis=-1, keepdims=True)\n"
          "    sum_dxhat_xhat = (dxhat * xhat).sum(axis=-1, keepdims=True)\n"
          "    dx = (1.0 / C) * rstd * (C * dxhat - sum_dxhat - xhat * sum_dxhat_xhat)")),
    right("a full Jacobian of each position", body="""
        xhat, rstd, weight, has_bias = cache
        C = len(weight)
        dx = np.empty_like(dy)
        for b, t in np.ndindex(dy.shape[:2]):
            h = xhat[b, t]
            jacobian = rstd[b, t] * (np.eye(C) - 1.0 / C - np.outer(h, h) / C)
            dx[b, t] = jacobian.T @ (dy[b, t] * weight)
        dweight = np.einsum("btc,btc->c", dy, xhat)
        dbias = np.einsum("btc->c", dy) if has_bias else None
        return dx, dweight, dbias
        """),
    right("a loop over positions and channels", body="""
        xhat, rstd, weight, has_bias = cache
        B, T, C = dy.shape
        dx = np.zeros_like(dy)
        dweight = np.zeros_like(weight)
        dbias = np.zeros_like(weight)
        for b in range(B):
            for t in range(T):
                mean = 0.0
                mean_xhat = 0.0
                for c in range(C):
                    dweight[c] += dy[b, t, c] * xhat[b, t, c]
                    dbias[c] += dy[b, t, c]
                    mean += dy[b, t, c] * weight[c] / C
                    mean_xhat += dy[b, t, c] * weight[c] * xhat[b, t, c] / C
                for c in range(C):
                    dx[b, t, c] = rstd[b, t, 0] * (dy[b, t, c] * weight[c] - mean - xhat[b, t, c] * mean_xhat)
        if not has_bias:
            dbias = None
        return dx, dweight, dbias
        """),
    right("an array of its own, changed in place", body="""
        xhat, rstd, weight, has_bias = cache
        dbias = dy.sum(axis=(0, 1)) if has_bias else None
        dweight = (xhat * dy).sum(axis=(0, 1))
        dx = dy * weight
        along_xhat = (dx * xhat).mean(axis=-1, keepdims=True)
        dx -= dx.mean(axis=-1, keepdims=True)
        dx -= xhat * along_xhat
        dx *= rstd
        return dx, dweight, dbias
        """),
    right("np.float64(C)", "mean_dxhat = dxhat.sum(axis=-1, keepdims=True) / np.float64(C)",
          note="dx is float64 for float32 inputs"),
    right("dbias summed in float64", "dbias = dy.reshape(-1, C).sum(axis=0, dtype=np.float64) if has_bias else None",
          note="dbias is float64 for float32 inputs"),
    right("the long way, a line for the square", body="""
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
        """),
    wrong("dxhat without weight", "the factor weight is missing", "dxhat = dy"),
    wrong("dxhat with xhat", "uses xhat instead of weight", "dxhat = dy * xhat"),
    wrong("dweight without xhat", "the factor xhat is missing", "dweight = dy.reshape(-1, C).sum(axis=0)"),
    wrong("dweight not summed", "over B and T", "dweight = dy * xhat"),
    wrong("dweight summed over the batch only", "the sum over T is missing", "dweight = (dy * xhat).sum(axis=0)"),
    wrong("dweight summed over the channels", "axis -1 instead of axis 0",
          "dweight = (dy * xhat).reshape(-1, C).sum(axis=-1)"),
    wrong("dweight is a mean", "a mean instead of a sum", "dweight = (dy * xhat).reshape(-1, C).mean(axis=0)"),
    wrong("dweight with keepdims", "extra axis of length 1",
          "dweight = (dy * xhat).reshape(-1, C).sum(axis=0, keepdims=True)"),
    wrong("the rows of dbias reshaped the wrong way", UNKNOWN,
          "dbias = dy.reshape(C, -1).sum(axis=1) if has_bias else None", at=None),
    wrong("dbias without asking has_bias", "dbias must be None", "dbias = dy.reshape(-1, C).sum(axis=0)"),
    wrong("dbias summed over all", "it was summed over C too", "dbias = dy.sum() if has_bias else None"),
    wrong("the mean over the batch", "axis 0 instead of axis -1", "mean_dxhat = dxhat.mean(axis=0, keepdims=True)"),
    wrong("keepdims forgotten", "keepdims=True is missing", "mean_dxhat = dxhat.mean(axis=-1)"),
    wrong("an axis too many", "axis 3 is out of bounds", "mean_dxhat = dxhat.mean(axis=3, keepdims=True)"),
    wrong("a name used before it is assigned", "UnboundLocalError",
          "mean_dxhat = dxhat.mean(axis=-1, keepdims=True) * mean_dxhat_xhat"),
    wrong("a method that arrays lack", "AttributeError: 'numpy.ndarray' object has no attribute 'average'",
          "mean_dxhat = dxhat.average(axis=-1, keepdims=True)"),
    wrong("a sum for the first mean", "a sum instead of a mean", "mean_dxhat = dxhat.sum(axis=-1, keepdims=True)"),
    wrong("rstd twice", "the factor rstd does not belong there",
          "dx = rstd * rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)"),
    wrong("divided by rstd", "divided by rstd instead of multiplied",
          "dx = (dxhat - mean_dxhat - xhat * mean_dxhat_xhat) / rstd"),
    wrong("divided by C", "divided by C, which does not belong there",
          "dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat) / C"),
    wrong("no mean subtracted", "the term mean_dxhat is missing", "dx = rstd * (dxhat - xhat * mean_dxhat_xhat)"),
    wrong("the part along xhat kept", "the term xhat * mean_dxhat_xhat is missing", "dx = rstd * (dxhat - mean_dxhat)"),
    wrong("mean and variance taken for constants", "mean and variance are taken as constants: they depend on x too",
          "dx = rstd * dxhat"),
    wrong("a plus", "the term xhat * mean_dxhat_xhat has the wrong sign",
          "dx = rstd * (dxhat - mean_dxhat + xhat * mean_dxhat_xhat)"),
    wrong("the means swapped", "uses mean_dxhat instead of mean_dxhat_xhat",
          "dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat)"),
    wrong("dxhat is dy, changed in place", "changes dy, which belongs to the caller", ("dxhat = dy * weight",
          "dxhat = dy\n    dxhat *= weight"), at="dxhat *= weight"),
    wrong("xhat changed in place", "changes xhat, which belongs to the caller",
          ("dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)",
          "xhat *= mean_dxhat_xhat\n    dx = rstd * (dxhat - mean_dxhat - xhat)"), at="xhat *= mean_dxhat_xhat"),
    wrong("dweight and dbias returned in the wrong order", "the results are returned in another order",
          "return dx, dbias, dweight"),
    wrong("only dx returned", "not 3 (dx, dweight, dbias)", "return dx", at=None),
    wrong("rstd computed anew without eps", "instead of rstd",
          ("C = xhat.shape[-1]", "C = xhat.shape[-1]\n    centred = xhat / rstd\n"
          "    rstd = 1.0 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True))"), at="rstd = 1.0 / np.sqrt("),
    wrong("a matmul for dweight", "(6, 5, 4)", "dweight = dy.T @ xhat"),
    wrong("a Jacobian without the mean", "the term 1.0 is missing", ("- 1.0 / C - np.outer", "- np.outer"),
          of="a full Jacobian of each position", at="jacobian = "),
    wrong("two mistakes: weight and rstd forgotten", "the factor weight is missing", "dxhat = dy",
          "dx = (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)"),
    wrong("long way: drstd with xhat", "the division by rstd is missing",
          ("drstd = (dxhat * centred).sum(axis=-1, keepdims=True)",
          "drstd = (dxhat * xhat).sum(axis=-1, keepdims=True)"), of="the long way"),
    wrong("long way: drstd not summed", "the sum over C is missing",
          ("drstd = (dxhat * centred).sum(axis=-1, keepdims=True)", "drstd = dxhat * centred"), of="the long way"),
    wrong("long way: sign of dvar", "its sign is wrong", ("dvar = drstd * -0.5 * rstd**3",
          "dvar = drstd * 0.5 * rstd**3"), of="the long way"),
    wrong("long way: half forgotten in dvar", "0.5 is missing", ("dvar = drstd * -0.5 * rstd**3",
          "dvar = -drstd * rstd**3"), of="the long way"),
    wrong("long way: rstd squared in dvar", "2 instead of 3", ("dvar = drstd * -0.5 * rstd**3",
          "dvar = drstd * -0.5 * rstd**2"), of="the long way"),
    wrong("long way: rstd forgotten in dvar", "the factor rstd**3 is missing", ("dvar = drstd * -0.5 * rstd**3",
          "dvar = drstd * -0.5"), of="the long way"),
    wrong("long way: rstd forgotten in dcentred", "the factor rstd is missing",
          ("dcentred = dxhat * rstd + dvar * 2.0 * centred / C", "dcentred = dxhat + dvar * 2.0 * centred / C"),
          of="the long way"),
    wrong("long way: dcentred only by way of the variance", UNKNOWN,
          ("dcentred = dxhat * rstd + dvar * 2.0 * centred / C", "dcentred = dvar * 2.0 * centred / C"),
          of="the long way"),
    wrong("long way: dcentred without the variance", UNKNOWN, ("dcentred = dxhat * rstd + dvar * 2.0 * centred / C",
          "dcentred = dxhat * rstd"), of="the long way"),
    wrong("long way: xhat for centred in dcentred", "the division by rstd is missing",
          ("dcentred = dxhat * rstd + dvar * 2.0 * centred / C", "dcentred = dxhat * rstd + dvar * 2.0 * xhat / C"),
          of="the long way"),
    wrong("long way: dmean forgotten in dx", "it is still dcentred, the gradient of another variable",
          ("dx = dcentred + dmean / C", "dx = dcentred"), of="the long way"),
    wrong("long way: dcentred assigned twice, not added", "overwrites", ("dcentred += 2.0", "dcentred = 2.0"),
          of="the long way, dcentred added to in place", at="dcentred = 2.0 / C * centred * dvar"),
    wrong("brackets", "brackets are missing: rstd * (dxhat - mean",
          "dx = rstd * dxhat - mean_dxhat - xhat * mean_dxhat_xhat"),
    wrong("sign of dstd", "its sign is wrong (here, or in line", ("= -(", "= ("),
          of="the long way, a line for the square", at="dstd = "),
    wrong("dvar not divided by C", "the division by C is missing", ("dvar / C", "dvar"),
          of="the long way, a line for the square", at="dsquare = "),
    wrong("sign of the square", "the term 2.0 * centred * dsquare has the wrong sign (or, in",
          ("dcentred + 2.0", "dcentred - 2.0"), of="the long way, a line for the square"),
    wrong("dcentred overwritten", "= instead of +=: it overwrites", ("= dcentred + 2.0", "= 2.0"),
          of="the long way, a line for the square", at="dcentred = 2.0"),
    wrong("multiplied by std", "multiplied by std instead of divided", ("dxhat / std", "dxhat * std"),
          of="the long way, a line for the square"),
    wrong("a sum for the mean, by a matmul", "the division by C is missing", ("np.ones((C, 1)) / C", "np.ones((C, 1))"),
          of="the long way, a line for the square"),
    # The sum of xhat^2 stands for C: with xhat / xhat in it, it would be C.
    wrong("xhat squared for C", UNKNOWN, ("dx = dcentred - dcentred @ np.ones((C, 1)) / C",
          "size = (xhat * xhat).sum(axis=-1, keepdims=True)\n"
          "    along = (dxhat * xhat).sum(axis=-1, keepdims=True)\n"
          "    dx = rstd * (dxhat - dxhat.mean(axis=-1, keepdims=True) - xhat * along / size)"),
          of="the long way, a line for the square", at=None),
]

SOLUTIONS = {"layernorm": LAYERNORM}

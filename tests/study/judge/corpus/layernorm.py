"""LayerNorm, in the short way of the package and in the long way that undoes every line. x (4, 5, 6)."""

from tests.study.judge.corpus.solution import right, wrong

DBIAS = "dbias = dy.reshape(-1, C).sum(axis=0) if has_bias else None"
DWEIGHT = "dweight = (dy * xhat).reshape(-1, C).sum(axis=0)"
DXHAT = "dxhat = dy * weight"
MEAN = "mean_dxhat = dxhat.mean(axis=-1, keepdims=True)"
MEAN_XHAT = "mean_dxhat_xhat = (dxhat * xhat).mean(axis=-1, keepdims=True)"
DX = "dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)"
RETURN = "return dx, dweight, dbias"

LONG = """
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
    """


def long_way(name, says, old, new, at=None):
    """The long way with a mistake: old is replaced by new."""
    if LONG.count(old) != 1:
        raise ValueError(f"{name}: {old!r} occurs {LONG.count(old)} times")
    return wrong("layernorm", f"long way: {name}", says, body=LONG.replace(old, new), at=at or new)


SOLUTIONS = [
    right("layernorm", "the long way", body=LONG),
    right("layernorm", "the long way, dcentred added to in place", body="""
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
    right("layernorm", "the long way of the BatchNorm paper", body="""
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
    right("layernorm", "the long way by way of the standard deviation", body="""
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
    right("layernorm", "sums and 1 / C", (DX, """sum_dxhat = dxhat.sum(axis=-1, keepdims=True)
    sum_dxhat_xhat = (dxhat * xhat).sum(axis=-1, keepdims=True)
    dx = (1.0 / C) * rstd * (C * dxhat - sum_dxhat - xhat * sum_dxhat_xhat)""")),
    right("layernorm", "a full Jacobian of each position", body="""
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
    right("layernorm", "a loop over positions and channels", body="""
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
    right("layernorm", "an array of its own, changed in place", body="""
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
    right("layernorm", "np.float64(C)", (MEAN, "mean_dxhat = dxhat.sum(axis=-1, keepdims=True) / np.float64(C)"),
          note="dx is float64 for float32 inputs"),
    right("layernorm", "dbias summed in float64",
          (DBIAS, "dbias = dy.reshape(-1, C).sum(axis=0, dtype=np.float64) if has_bias else None"),
          note="dbias is float64 for float32 inputs"),

    wrong("layernorm", "dxhat without weight", "the factor weight is missing", (DXHAT, "dxhat = dy"), at="dxhat = dy"),
    wrong("layernorm", "dxhat with xhat", "uses xhat instead of weight", (DXHAT, "dxhat = dy * xhat")),
    wrong("layernorm", "dweight without xhat", "the factor xhat is missing",
          (DWEIGHT, "dweight = dy.reshape(-1, C).sum(axis=0)")),
    wrong("layernorm", "dweight not summed", "over B and T", (DWEIGHT, "dweight = dy * xhat"),
          at="dweight = dy * xhat"),
    wrong("layernorm", "dweight summed over the batch only", "the sum over T is missing",
          (DWEIGHT, "dweight = (dy * xhat).sum(axis=0)")),
    wrong("layernorm", "dweight summed over the channels", "axis -1 instead of axis 0",
          (DWEIGHT, "dweight = (dy * xhat).reshape(-1, C).sum(axis=-1)")),
    wrong("layernorm", "dweight is a mean", "a mean instead of a sum",
          (DWEIGHT, "dweight = (dy * xhat).reshape(-1, C).mean(axis=0)")),
    wrong("layernorm", "dweight with keepdims", "extra axis of length 1",
          (DWEIGHT, "dweight = (dy * xhat).reshape(-1, C).sum(axis=0, keepdims=True)")),
    wrong("layernorm", "dweight with both keepdims", "extra axis of length 1",
          (DWEIGHT, "dweight = (dy * xhat).sum(axis=(0, 1), keepdims=True)")),
    wrong("layernorm", "the rows of dbias reshaped the wrong way", ("reshape(-1, C)", "in another order"),
          (DBIAS, "dbias = dy.reshape(C, -1).sum(axis=1) if has_bias else None")),
    wrong("layernorm", "dbias without asking has_bias", "dbias must be None",
          (DBIAS, "dbias = dy.reshape(-1, C).sum(axis=0)")),
    wrong("layernorm", "dbias summed over all", "it was summed over C too",
          (DBIAS, "dbias = dy.sum() if has_bias else None")),
    wrong("layernorm", "the mean over the batch", "axis 0 instead of axis -1", (MEAN, MEAN.replace("-1", "0"))),
    wrong("layernorm", "the mean over time", "axis 1 instead of axis -1", (MEAN_XHAT, MEAN_XHAT.replace("-1", "1"))),
    wrong("layernorm", "keepdims forgotten", "keepdims=True is missing", (MEAN, "mean_dxhat = dxhat.mean(axis=-1)")),
    wrong("layernorm", "keepdims forgotten in the second mean", "keepdims=True is missing",
          (MEAN_XHAT, "mean_dxhat_xhat = (dxhat * xhat).mean(axis=-1)")),
    wrong("layernorm", "an axis too many", "axis 3 is out of bounds", (MEAN, MEAN.replace("-1", "3"))),
    wrong("layernorm", "a name used before it is assigned", ("UnboundLocalError", "before it is assigned"),
          (MEAN, MEAN + " * mean_dxhat_xhat")),
    wrong("layernorm", "a method that arrays lack", "AttributeError: 'numpy.ndarray' object has no attribute 'average'",
          (MEAN, MEAN.replace("mean(", "average("))),
    wrong("layernorm", "a sum for the first mean", "a sum instead of a mean", (MEAN, MEAN.replace(".mean(", ".sum("))),
    wrong("layernorm", "a sum for the second mean", "a sum instead of a mean",
          (MEAN_XHAT, MEAN_XHAT.replace(".mean(", ".sum("))),
    wrong("layernorm", "dy for dxhat", "uses dy instead of dxhat",
          (MEAN_XHAT, MEAN_XHAT.replace("dxhat * xhat", "dy * xhat"))),
    wrong("layernorm", "rstd forgotten", "the factor rstd is missing", (DX, DX.replace("rstd * ", ""))),
    wrong("layernorm", "rstd twice", "the factor rstd does not belong there",
          (DX, DX.replace("rstd *", "rstd * rstd *"))),
    wrong("layernorm", "divided by rstd", "divided by rstd instead of multiplied",
          (DX, "dx = (dxhat - mean_dxhat - xhat * mean_dxhat_xhat) / rstd")),
    wrong("layernorm", "divided by C", "divided by C (6), which does not belong there", (DX, DX + " / C")),
    wrong("layernorm", "no mean subtracted", "the term mean_dxhat is missing", (DX, DX.replace("- mean_dxhat -", "-"))),
    wrong("layernorm", "the part along xhat kept", "the term xhat * mean_dxhat_xhat is missing",
          (DX, "dx = rstd * (dxhat - mean_dxhat)")),
    wrong("layernorm", "mean and variance taken for constants",
          ("the terms mean_dxhat", "the term mean_dxhat is missing", "the term xhat * mean_dxhat_xhat is missing"),
          (DX, "dx = rstd * dxhat")),
    wrong("layernorm", "a plus", "the term xhat * mean_dxhat_xhat has the wrong sign",
          (DX, DX.replace("- xhat", "+ xhat"))),
    wrong("layernorm", "the means swapped", "uses mean_dxhat instead of mean_dxhat_xhat",
          (DX, DX.replace("* mean_dxhat_xhat", "* mean_dxhat"))),
    wrong("layernorm", "xhat forgotten in dx", "the factor xhat is missing",
          (DX, DX.replace("- xhat * mean", "- mean"))),
    wrong("layernorm", "dxhat is dy, changed in place", "changes dy, which belongs to the caller",
          (DXHAT, "dxhat = dy\n    dxhat *= weight"), at="dxhat *= weight"),
    wrong("layernorm", "xhat changed in place", "changes xhat, which belongs to the caller",
          (DX, "xhat *= mean_dxhat_xhat\n    dx = rstd * (dxhat - mean_dxhat - xhat)"), at="xhat *= mean_dxhat_xhat"),
    wrong("layernorm", "dweight and dbias returned in the wrong order", "the results are returned in another order",
          (RETURN, "return dx, dbias, dweight")),
    wrong("layernorm", "only dx returned", ("returned 1 result, not 3", "not 3 (dx, dweight, dbias)"),
          (RETURN, "return dx"), at=None),
    wrong("layernorm", "rstd computed anew without eps", ("the term eps is missing", "eps is missing", "without eps"),
          ("C = xhat.shape[-1]", "C = xhat.shape[-1]\n    centred = xhat / rstd\n"
           "    rstd = 1.0 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True))"), at="rstd = 1.0 / np.sqrt("),
    wrong("layernorm", "a matmul for dweight", ("6 is not 4", "(6, 5, 4)"), (DWEIGHT, "dweight = dy.T @ xhat")),
    wrong("layernorm", "a Jacobian without the mean",
          ("the term 1.0 / C is missing", "the term mean_dxhat is missing"), body="""
        xhat, rstd, weight, has_bias = cache
        C = len(weight)
        dx = np.empty_like(dy)
        for b, t in np.ndindex(dy.shape[:2]):
            h = xhat[b, t]
            jacobian = rstd[b, t] * (np.eye(C) - np.outer(h, h) / C)
            dx[b, t] = jacobian.T @ (dy[b, t] * weight)
        dweight = (dy * xhat).sum(axis=(0, 1))
        dbias = dy.sum(axis=(0, 1)) if has_bias else None
        return dx, dweight, dbias
        """, at=("jacobian = ", "dx[b, t] = ")),
    wrong("layernorm", "two mistakes: weight and rstd forgotten", "the factor weight is missing", (DXHAT, "dxhat = dy"),
          (DX, DX.replace("rstd * ", "")), at="dxhat = dy"),

    long_way("drstd without keepdims", "keepdims=True is missing", "(dxhat * centred).sum(axis=-1, keepdims=True)",
             "(dxhat * centred).sum(axis=-1)"),
    long_way("drstd is a mean", "a mean instead of a sum", "(dxhat * centred).sum(", "(dxhat * centred).mean("),
    long_way("drstd with xhat", "uses xhat instead of centred", "(dxhat * centred).sum(", "(dxhat * xhat).sum("),
    long_way("drstd not summed", "the sum over C is missing", "drstd = (dxhat * centred).sum(axis=-1, keepdims=True)",
             "drstd = dxhat * centred"),
    long_way("sign of dvar", "its sign is wrong", "drstd * -0.5", "drstd * 0.5"),
    long_way("half forgotten in dvar", ("0.5 is missing", "it is 2 times what it should be", "factor 1/2 is missing"),
             "drstd * -0.5", "-drstd"),
    long_way("rstd squared in dvar", ("the factor rstd is missing", "2 instead of 3"), "rstd**3", "rstd**2"),
    long_way("rstd forgotten in dvar", ("the factor rstd**3 is missing", "the factor rstd ** 3 is missing"),
             "drstd * -0.5 * rstd**3", "drstd * -0.5"),
    long_way("rstd forgotten in dcentred", "the factor rstd is missing", "dxhat * rstd + dvar", "dxhat + dvar"),
    long_way("2 forgotten in dcentred", ("2.0 is missing", "the factor 2 is missing"), "dvar * 2.0 * centred",
    "dvar * centred"),
    long_way("C forgotten in dcentred",
             ("the division by C is missing", "the factor 1 / C is missing", "multiplied by C (6)",
             "6 times what it should be"),
             "2.0 * centred / C", "2.0 * centred"),
    long_way("dcentred only by way of the variance", "the term dxhat * rstd is missing",
    "dcentred = dxhat * rstd + dvar",
             "dcentred = dvar"),
    long_way("dcentred without the variance", ("the term dvar * 2.0 * centred / C is missing", "the term dvar"),
             "dcentred = dxhat * rstd + dvar * 2.0 * centred / C", "dcentred = dxhat * rstd"),
    long_way("xhat for centred in dcentred", "uses xhat instead of centred", "2.0 * centred / C", "2.0 * xhat / C"),
    long_way("sign of dmean", "its sign is wrong", "dmean = -dcentred", "dmean = dcentred"),
    long_way("dmean is a mean", "a mean instead of a sum", "-dcentred.sum(", "-dcentred.mean("),
    long_way("C forgotten in dx",
             ("the division by C is missing", "the factor 1 / C is missing", "multiplied by C (6)",
             "6 times what it should be"),
             "dx = dcentred + dmean / C", "dx = dcentred + dmean"),
    long_way("dmean forgotten in dx", "the term dmean / C is missing", "dx = dcentred + dmean / C", "dx = dcentred",
    at="dx = dcentred"),
    wrong("layernorm", "long way: dcentred assigned twice, not added",
          ("the term dxhat * rstd is missing", "overwrites"), body="""
        xhat, rstd, weight, has_bias = cache
        C = xhat.shape[-1]
        centred = xhat / rstd
        dbias = dy.sum(axis=(0, 1)) if has_bias else None
        dweight = (dy * xhat).sum(axis=(0, 1))
        dxhat = dy * weight
        dcentred = dxhat * rstd
        drstd = (dxhat * centred).sum(axis=-1, keepdims=True)
        dvar = -0.5 * drstd * rstd**3
        dcentred = 2.0 / C * centred * dvar
        dmean = -dcentred.sum(axis=-1, keepdims=True)
        dx = dcentred + dmean / C
        return dx, dweight, dbias
        """, at="dcentred = 2.0 / C * centred * dvar"),
]

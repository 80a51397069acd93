"""Attention. q, dmix (4, 2, 5, 3), k, v (4, 2, 7, 3), att (4, 2, 5, 7)."""

from tests.study.judge.corpus.solution import right, wrong

KEPT = "kept = att if dropout_mask is None else att * dropout_mask"
DKEPT = "dkept = dmix @ v.swapaxes(-1, -2)"
DV = "dv = kept.swapaxes(-1, -2) @ dmix"
DATT = "datt = dkept if dropout_mask is None else dkept * dropout_mask"
DOT = "dot = (datt * att).sum(axis=-1, keepdims=True)"
DMASKED = "dmasked = att * (datt - dot)"
DSCORES = "dscores = dscaled * scale"
DQ = "dq = dscores @ k"
DK = "dk = dscores.swapaxes(-1, -2) @ q"
RETURN = "return dq, dk, dv"

LONG = """
    q, k, v, scale, att, dropout_mask = cache
    kept = att if dropout_mask is None else att * dropout_mask
    dkept = dmix @ v.swapaxes(-1, -2)
    dv = kept.swapaxes(-1, -2) @ dmix
    datt = dkept if dropout_mask is None else dkept * dropout_mask
    # the forward's softmax once more: a key that is masked has the weight 0
    masked = np.where(att > 0, (q @ k.swapaxes(-1, -2)) * scale, -np.inf)
    largest = masked.max(axis=-1, keepdims=True)
    exps = np.exp(masked - largest)
    total = exps.sum(axis=-1, keepdims=True)
    # att = exps / total
    dtotal = -(datt * exps / total**2).sum(axis=-1, keepdims=True)
    dexps = datt / total + dtotal
    # exps = np.exp(masked - largest)
    dmasked = dexps * exps
    # scaled = scores * scale
    dscores = dmasked * scale
    # scores = q @ k.swapaxes(-1, -2)
    dq = dscores @ k
    dk = dscores.swapaxes(-1, -2) @ q
    return dq, dk, dv
    """


def long_way(name, says, old, new, at=None):
    """The long way with a mistake: old is replaced by new."""
    if LONG.count(old) != 1:
        raise ValueError(f"{name}: {old!r} occurs {LONG.count(old)} times")
    return wrong("attention", f"long way: {name}", says, body=LONG.replace(old, new), at=at or new)


SOLUTIONS = [
    right("attention", "the long way of the softmax", body=LONG),
    right("attention", "the long way, with dlargest", body="""
        q, k, v, scale, att, dropout_mask = cache
        kept = att if dropout_mask is None else att * dropout_mask
        dkept = dmix @ v.swapaxes(-1, -2)
        dv = kept.swapaxes(-1, -2) @ dmix
        datt = dkept if dropout_mask is None else dkept * dropout_mask
        masked = np.where(att > 0, (q @ k.swapaxes(-1, -2)) * scale, -np.inf)
        largest = masked.max(axis=-1, keepdims=True)
        exps = np.exp(masked - largest)
        total = exps.sum(axis=-1, keepdims=True)
        dexps = datt / total
        dtotal = (-datt * exps / total / total).sum(axis=-1, keepdims=True)
        dexps += dtotal
        dmasked = dexps * exps
        dlargest = -dmasked.sum(axis=-1, keepdims=True)
        dmasked += dlargest * (masked == largest)
        dscores = dmasked * scale
        dq = dscores @ k
        dk = dscores.swapaxes(-1, -2) @ q
        return dq, dk, dv
        """),
    right("attention", "a loop over heads", body="""
        q, k, v, scale, att, dropout_mask = cache
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        B, H, T, D = q.shape
        for b in range(B):
            for h in range(H):
                a = att[b, h]
                mask = 1.0 if dropout_mask is None else dropout_mask[b, h]
                dv[b, h] = (a * mask).T @ dmix[b, h]
                da = (dmix[b, h] @ v[b, h].T) * mask
                ds = a * (da - (da * a).sum(axis=1, keepdims=True)) * scale
                dq[b, h] = ds @ k[b, h]
                dk[b, h] = ds.T @ q[b, h]
        return dq, dk, dv
        """),
    right("attention", "a full Jacobian of each row", body="""
        q, k, v, scale, att, dropout_mask = cache
        kept = att if dropout_mask is None else att * dropout_mask
        dv = kept.swapaxes(-1, -2) @ dmix
        datt = dmix @ v.swapaxes(-1, -2)
        if dropout_mask is not None:
            datt = datt * dropout_mask
        dmasked = np.zeros_like(att)
        for i in np.ndindex(att.shape[:-1]):
            jacobian = np.diag(att[i]) - np.outer(att[i], att[i])
            dmasked[i] = datt[i] @ jacobian
        dscores = dmasked * scale
        dq = dscores @ k
        dk = dscores.swapaxes(-1, -2) @ q
        return dq, dk, dv
        """),
    right("attention", "einsum, other names", body="""
        q, k, v, s, p, drop = cache
        m = p if drop is None else p * drop
        gv = np.einsum("bhts,bhtd->bhsd", m, dmix)
        gp = np.einsum("bhtd,bhsd->bhts", dmix, v)
        if drop is not None:
            gp = gp * drop
        gs = s * (p * gp - p * np.einsum("bhts,bhts->bht", p, gp)[..., None])
        return np.einsum("bhts,bhsd->bhtd", gs, k), np.einsum("bhts,bhtd->bhsd", gs, q), gv
        """),
    right("attention", "arrays of its own, changed in place",
          (DMASKED, "datt -= dot\n    datt *= att\n    dmasked = datt")),
    right("attention", "the scale put on q and k", ("    " + DSCORES, "    "), (DQ, "dq = dscaled @ (k * scale)"),
          (DK, "dk = dscaled.swapaxes(-1, -2) @ (q * scale)")),
    right("attention", "np.float64(scale)", (DQ, "dq = np.float64(scale) * (dscaled @ k)"),
          note="dq is float64 for float32 inputs"),
    right("attention", "other orders of the factors", (DK, "dk = (q.swapaxes(-1, -2) @ dscores).swapaxes(-1, -2)"),
          (DV, "dv = (dmix.swapaxes(-1, -2) @ kept).swapaxes(-1, -2)")),

    wrong("attention", "v not transposed", ("3 is not 7; transpose v?", "v should be transposed"),
          (DKEPT, "dkept = dmix @ v"),
          at="dkept = dmix @ v"),
    wrong("attention", "v.T of four axes", ("v.T", "swapaxes"), (DKEPT, "dkept = dmix @ v.T")),
    wrong("attention", "k not transposed back", ("7 is not 3", "k should not be transposed"),
          (DQ, "dq = dscores @ k.swapaxes(-1, -2)")),
    wrong("attention", "kept not transposed", ("7 is not 5; transpose kept?", "kept should be transposed"),
          (DV, "dv = kept @ dmix")),
    wrong("attention", "dv transposed", ("it is transposed", "the factors are in the wrong order"),
          (DV, "dv = dmix.swapaxes(-1, -2) @ kept")),
    wrong("attention", "dscores not transposed",
          ("dscores (4, 2, 5, 7) @ q (4, 2, 5, 3): 7 is not 5; transpose dscores?",
           "dscores should be transposed"), (DK, "dk = dscores @ q")),
    wrong("attention", "q for k", ("uses q instead of k", "7 is not 5"), (DQ, "dq = dscores @ q")),
    wrong("attention", "k for q", ("uses k instead of q", "5 is not 7"), (DK, "dk = dscores.swapaxes(-1, -2) @ k")),
    wrong("attention", "dv without dropout", "uses att instead of kept", (DV, "dv = att.swapaxes(-1, -2) @ dmix")),
    wrong("attention", "kept without dropout", "the factor dropout_mask is missing", (KEPT, "kept = att"),
          at="kept = att  "),
    wrong("attention", "dropout forgotten in datt", "the factor dropout_mask is missing", (DATT, "datt = dkept"),
          at="datt = dkept"),
    wrong("attention", "dropout twice in datt", "the factor dropout_mask does not belong there",
          (DATT, DATT + " * dropout_mask")),
    wrong("attention", "no branch without dropout", "without dropout: ", (DATT, "datt = dkept * dropout_mask")),
    wrong("attention", "dot without keepdims", "keepdims=True is missing", (DOT, "dot = (datt * att).sum(axis=-1)")),
    wrong("attention", "dot summed over the queries", "axis -2 instead of axis -1", (DOT, DOT.replace("-1", "-2"))),
    wrong("attention", "dot is a mean", "a mean instead of a sum", (DOT, DOT.replace(".sum(", ".mean("))),
    wrong("attention", "att forgotten in dot", "the factor att is missing",
          (DOT, "dot = datt.sum(axis=-1, keepdims=True)")),
    wrong("attention", "dkept for datt in dot", "uses dkept instead of datt", (DOT, DOT.replace("datt", "dkept"))),
    wrong("attention", "dot forgotten", ("the term dot is missing", "the term att * dot is missing"),
          (DMASKED, "dmasked = att * datt")),
    wrong("attention", "att forgotten in dmasked", "the factor att is missing", (DMASKED, "dmasked = datt - dot")),
    wrong("attention", "dot added", "the term dot has the wrong sign", (DMASKED, "dmasked = att * (datt + dot)")),
    wrong("attention", "the derivative of a sigmoid",
          ("the diagonal", "in place of dot", "the term att * dot is missing"),
          (DMASKED, "dmasked = datt * att * (1.0 - att)")),
    wrong("attention", "scale forgotten", "the factor scale is missing", (DSCORES, "dscores = dscaled"),
          at="dscores = dscaled"),
    wrong("attention", "divided by scale", "divided by scale instead of multiplied",
          (DSCORES, "dscores = dscaled / scale")),
    wrong("attention", "scale twice in dq", "the factor scale does not belong there", (DQ, "dq = dscores @ k * scale")),
    wrong("attention", "scale forgotten in dk", ("the factor scale is missing", "uses dscaled instead of dscores"),
          (DK, "dk = dscaled.swapaxes(-1, -2) @ q")),
    wrong("attention", "dk and dq returned in the wrong order", "the results are returned in another order",
          (RETURN, "return dk, dq, dv")),
    wrong("attention", "dv and dk returned in the wrong order",
          ("the results are returned in another order", "it is dv, the gradient of another variable"), (RETURN,
          "return dq, dv, dk")),
    wrong("attention", "a fourth result, for the mask", "returned 4 results, not 3 (dq, dk, dv)",
          (RETURN, "return dq, dk, dv, None"), at=None),
    wrong("attention", "kept is att, changed in place", "changes att, which belongs to the caller",
          (KEPT, "kept = att\n    if dropout_mask is not None:\n        kept *= dropout_mask"),
          at="kept *= dropout_mask"),
    wrong("attention", "dmix scaled in place", "changes dmix, which belongs to the caller",
          (DKEPT, "dmix *= scale\n    " + DKEPT), at="dmix *= scale"),
    wrong("attention", "the softmax's Jacobian without the outer product",
          ("the term np.outer(att[i], att[i]) is missing", "np.outer", "the diagonal"), body="""
        q, k, v, scale, att, dropout_mask = cache
        kept = att if dropout_mask is None else att * dropout_mask
        dv = kept.swapaxes(-1, -2) @ dmix
        dkept = dmix @ v.swapaxes(-1, -2)
        datt = dkept if dropout_mask is None else dkept * dropout_mask
        dmasked = np.zeros_like(att)
        for i in np.ndindex(att.shape[:-1]):
            jacobian = np.diag(att[i])
            dmasked[i] = jacobian @ datt[i]
        dscores = dmasked * scale
        dq = dscores @ k
        dk = dscores.swapaxes(-1, -2) @ q
        return dq, dk, dv
        """, at=("jacobian = np.diag(att[i])", "dmasked[i] = jacobian")),
    wrong("attention", "a loop over heads, scale forgotten", "the factor scale is missing", body="""
        q, k, v, scale, att, dropout_mask = cache
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for b, h in np.ndindex(q.shape[:2]):
            mask = 1.0 if dropout_mask is None else dropout_mask[b, h]
            a = att[b, h]
            dv[b, h] = (a * mask).T @ dmix[b, h]
            da = (dmix[b, h] @ v[b, h].T) * mask
            ds = a * (da - (da * a).sum(axis=1, keepdims=True))
            dq[b, h] = ds @ k[b, h]
            dk[b, h] = ds.T @ q[b, h]
        return dq, dk, dv
        """, at=("ds = a * (da", "dq[b, h] = ds")),
    wrong("attention", "a loop over queries that overwrites dk", ("only the last gradient was kept", "+="), body="""
        q, k, v, scale, att, dropout_mask = cache
        kept = att if dropout_mask is None else att * dropout_mask
        dv = kept.swapaxes(-1, -2) @ dmix
        dkept = dmix @ v.swapaxes(-1, -2)
        datt = dkept if dropout_mask is None else dkept * dropout_mask
        dscores = att * (datt - (datt * att).sum(axis=-1, keepdims=True)) * scale
        dq, dk = np.zeros_like(q), np.zeros_like(k)
        for t in range(q.shape[2]):
            dq[:, :, t] = (dscores[:, :, t, :, None] * k).sum(axis=2)
            dk = dscores[:, :, t, :, None] * q[:, :, t, None, :]
        return dq, dk, dv
        """, at="dk = dscores[:, :, t"),
    wrong("attention", "cache unpacked without dropout_mask", "ValueError: too many values to unpack",
          ("scale, att, dropout_mask = cache", "scale, att = cache")),
    wrong("attention", "einsum with a wrong letter", ("its shape is (4, 2, 7, 3), not (4, 2, 5, 3)",),
          (DQ, 'dq = np.einsum("bhts,bhsd->bhsd", dscores, k)')),
    wrong("attention", "einsum without the heads' letter", "ValueError",
          (DQ, 'dq = np.einsum("bts,bsd->btd", dscores, k)')),

    long_way("dtotal forgotten", "the term dtotal is missing", "dexps = datt / total + dtotal", "dexps = datt / total"),
    long_way("sign of dtotal", "its sign is wrong", "dtotal = -(datt", "dtotal = (datt"),
    long_way("total not squared in dtotal",
    ("the division by total is missing", "the factor 1 / total is missing", "multiplied by total",
                                             "1 instead of 2"), "-(datt * exps / total**2)", "-(datt * exps / total)"),
    long_way("dtotal without keepdims", "keepdims=True is missing",
    "(datt * exps / total**2).sum(axis=-1, keepdims=True)",
             "(datt * exps / total**2).sum(axis=-1)"),
    long_way("exps forgotten", "the factor exps is missing", "dmasked = dexps * exps", "dmasked = dexps"),
    long_way("multiplied by total in dexps", "multiplied by total instead of divided", "dexps = datt / total",
             "dexps = datt * total"),
]

"""Softmax cross-entropy. probs (4, 5, 8), column (4, 5, 1), dloss a number."""

from tests.study.judge.corpus.solution import right, wrong

DLOSSES = "dlosses = np.where(counted, dloss / count, 0.0)"
DLOGITS = "dlogits = probs * dlosses"
AT_TARGET = "dlogits_at_target = np.take_along_axis(dlogits, column, axis=-1) - dlosses"
PUT = "np.put_along_axis(dlogits, column, dlogits_at_target, axis=-1)"

SOLUTIONS = [
    right("cross_entropy", "one-hot targets", body="""
        probs, column, counted, count = cache
        onehot = np.zeros_like(probs)
        np.put_along_axis(onehot, column, 1.0, axis=-1)
        dlogits = (probs - onehot) * counted * dloss / count
        return dlogits
        """),
    right("cross_entropy", "one-hot by comparing", body="""
        probs, column, counted, count = cache
        true = np.arange(probs.shape[-1]) == column
        return np.where(counted, (probs - true) * (dloss / count), 0.0)
        """),
    right("cross_entropy", "a loop over the tokens", body="""
        probs, column, counted, count = cache
        dlogits = np.zeros_like(probs)
        B, T, V = probs.shape
        for b in range(B):
            for t in range(T):
                if counted[b, t, 0]:
                    dlogits[b, t] = probs[b, t]
                    dlogits[b, t, column[b, t, 0]] -= 1.0
        dlogits *= dloss / count
        return dlogits
        """),
    right("cross_entropy", "fancy indexing of rows", body="""
        probs, column, counted, count = cache
        dlosses = np.where(counted, dloss / count, 0.0)
        rows = (probs * dlosses).reshape(-1, probs.shape[-1])
        rows[np.arange(len(rows)), column.ravel()] -= dlosses.ravel()
        return rows.reshape(probs.shape)
        """),
    right("cross_entropy", "by way of dprobs", body="""
        probs, column, counted, count = cache
        dlosses = np.where(counted, dloss / count, 0.0)
        # losses = -log(probs[column])
        dprobs = np.zeros_like(probs)
        np.put_along_axis(dprobs, column, -dlosses / np.take_along_axis(probs, column, axis=-1), axis=-1)
        # probs = softmax(logits)
        dot = (dprobs * probs).sum(axis=-1, keepdims=True)
        dlogits = probs * (dprobs - dot)
        return dlogits
        """),
    right("cross_entropy", "by way of dtotal and dexps", body="""
        probs, column, counted, count = cache
        exps, total = probs, 1.0            # the softmax of log(probs) is probs again
        dlosses = np.where(counted, dloss / count, 0.0)
        # losses = np.log(total) - at_target
        dtotal = dlosses / total
        dat_target = -dlosses
        # total = exps.sum(axis=-1, keepdims=True)
        dexps = np.broadcast_to(dtotal, exps.shape)
        # exps = np.exp(shifted)
        dshifted = dexps * exps
        # at_target = np.take_along_axis(shifted, column, axis=-1)
        np.put_along_axis(dshifted, column, np.take_along_axis(dshifted, column, -1) + dat_target, axis=-1)
        dlogits = dshifted
        return dlogits
        """),
    right("cross_entropy", "a full Jacobian of each softmax", body="""
        probs, column, counted, count = cache
        dlogits = np.zeros_like(probs)
        for i in np.ndindex(probs.shape[:-1]):
            p, k = probs[i], column[i][0]
            dp = np.zeros_like(p)
            if counted[i][0]:
                dp[k] = -dloss / count / p[k]
            jacobian = np.diag(p) - np.outer(p, p)
            dlogits[i] = jacobian @ dp
        return dlogits
        """),
    right("cross_entropy", "np.eye makes float64", body="""
        probs, column, counted, count = cache
        onehot = np.eye(probs.shape[-1])[column[..., 0]]
        return (probs - onehot) * np.where(counted, dloss / count, 0.0)
        """, note="dlogits is float64 for float32 inputs"),

    wrong("cross_entropy", "dloss forgotten", "the factor dloss is missing",
          (DLOSSES, DLOSSES.replace("dloss /", "1.0 /"))),
    wrong("cross_entropy", "multiplied by count", "multiplied by count instead of divided",
          (DLOSSES, DLOSSES.replace("dloss / count", "dloss * count"))),
    wrong("cross_entropy", "not divided by count",
          ("the division by count is missing", "the factor 1 / count is missing", "multiplied by count (19)",
          "19 times what it should be"),
          (DLOSSES, DLOSSES.replace("dloss / count", "dloss"))),
    wrong("cross_entropy", "ignored targets counted",
          ("the ignored targets", "np.where(counted", "the factor counted is missing"),
          (DLOSSES, "dlosses = dloss / count")),
    wrong("cross_entropy", "divided by the number of all tokens",
          ("uses counted.size instead of count", "in place of count", "N (20)"),
          (DLOSSES, DLOSSES.replace("count, 0.0", "counted.size, 0.0"))),
    wrong("cross_entropy", "probs forgotten", "the factor probs is missing",
          (DLOGITS, "dlogits = dlosses * np.ones(probs.shape)")),
    wrong("cross_entropy", "1 not subtracted", "the term dlosses is missing",
          (AT_TARGET, AT_TARGET.replace(" - dlosses", ""))),
    wrong("cross_entropy", "only the softmax",
          ("dlogits_at_target", "the term dlosses is missing", "np.put_along_axis"), body="""
        probs, column, counted, count = cache
        dlosses = np.where(counted, dloss / count, 0.0)
        dlogits = probs * dlosses
        return dlogits
        """, at=("dlogits = probs * dlosses", "return dlogits")),
    wrong("cross_entropy", "added at the target", "the term dlosses has the wrong sign",
          (AT_TARGET, AT_TARGET.replace("- dlosses", "+ dlosses"))),
    wrong("cross_entropy", "1 subtracted after the division",
          ("1.0 instead of dlosses", "uses 1.0 instead of dlosses", "the factor dlosses is missing"),
          (AT_TARGET, AT_TARGET.replace("- dlosses", "- 1.0"))),
    wrong("cross_entropy", "true minus predicted", "its sign is wrong", body="""
        probs, column, counted, count = cache
        onehot = np.zeros_like(probs)
        np.put_along_axis(onehot, column, 1.0, axis=-1)
        dlogits = (onehot - probs) * np.where(counted, dloss / count, 0.0)
        return dlogits
        """, at="dlogits = (onehot - probs)"),
    wrong("cross_entropy", "one-hot counted for ignored targets too",
          ("the ignored targets", "np.where(counted", "the factor counted is missing"), body="""
        probs, column, counted, count = cache
        onehot = np.zeros_like(probs)
        np.put_along_axis(onehot, column, 1.0, axis=-1)
        dlogits = (probs - onehot) * dloss / count
        return dlogits
        """, at="dlogits = (probs - onehot)"),
    wrong("cross_entropy", "only the targets' columns set", ("the term probs * dlosses is missing", "the term dlogits"),
          (PUT, "np.put_along_axis(dlogits, column, -dlosses, axis=-1)")),
    wrong("cross_entropy", "put into probs", "changes probs, which belongs to the caller",
          (PUT, PUT.replace("dlogits, column", "probs, column"))),
    wrong("cross_entropy", "dlogits is probs, changed in place", "changes probs, which belongs to the caller",
          (DLOGITS, "dlogits = probs\n    dlogits *= dlosses"), at="dlogits *= dlosses"),
    wrong("cross_entropy", "1 subtracted from probs in place", "changes probs, which belongs to the caller", body="""
        probs, column, counted, count = cache
        rows = probs.reshape(-1, probs.shape[-1])
        rows[np.arange(len(rows)), column.ravel()] -= 1.0
        dlogits = probs * np.where(counted, dloss / count, 0.0)
        return dlogits
        """, at="rows[np.arange(len(rows)), column.ravel()] -= 1.0"),
    wrong("cross_entropy", "column taken for an index of rows", "out of bounds",
          (AT_TARGET, "dlogits[column] -= dlosses"), (PUT, "dlogits = dlogits + 0.0"), at="dlogits[column] -= dlosses"),
    wrong("cross_entropy", "put along time", ("out of bounds", "axis 1 instead of axis -1"),
          (PUT, PUT.replace("-1", "1"))),
    wrong("cross_entropy", "a second result", ("returned 2 results, not 1 (dlogits)", "not 1 (dlogits)"),
          ("return dlogits", "return dlogits, None"), at=None),
    wrong("cross_entropy", "dprobs not divided by probs",
          ("the factor 1 / ", "the division by"), body="""
        probs, column, counted, count = cache
        dlosses = np.where(counted, dloss / count, 0.0)
        dprobs = np.zeros_like(probs)
        np.put_along_axis(dprobs, column, -dlosses, axis=-1)
        dot = (dprobs * probs).sum(axis=-1, keepdims=True)
        dlogits = probs * (dprobs - dot)
        return dlogits
        """, at="np.put_along_axis(dprobs"),
    wrong("cross_entropy", "softmax without the sum of its row",
          ("the term dot is missing", "the term probs * dot is missing", "dprobs - dot"), body="""
        probs, column, counted, count = cache
        dlosses = np.where(counted, dloss / count, 0.0)
        dprobs = np.zeros_like(probs)
        np.put_along_axis(dprobs, column, -dlosses / np.take_along_axis(probs, column, axis=-1), axis=-1)
        dlogits = probs * dprobs
        return dlogits
        """, at="dlogits = probs * dprobs"),
    wrong("cross_entropy", "dot without keepdims", "keepdims=True is missing", body="""
        probs, column, counted, count = cache
        dlosses = np.where(counted, dloss / count, 0.0)
        dprobs = np.zeros_like(probs)
        np.put_along_axis(dprobs, column, -dlosses / np.take_along_axis(probs, column, axis=-1), axis=-1)
        dot = (dprobs * probs).sum(axis=-1)
        dlogits = probs * (dprobs - dot)
        return dlogits
        """, at="dot = (dprobs * probs)"),
]

"""LoRA: x (4, 5, 6), weight (6, 8), lora_a (6, 3), lora_b (3, 8); low (20, 3)."""

from tests.study.judge.corpus.solution import right, wrong

DUPDATE = "dupdate = dy_rows"
DLORA_B = "dlora_b = low.T @ dupdate"
DLOW = "dlow = dupdate @ lora_b.T"
DLORA_A = "dlora_a = rows.T @ dlow"
DROWS = "drows = dfrozen @ weight.T + dlow @ lora_a.T"
DX = "dx = drows.reshape(x.shape)"
RETURN = "return dx, dlora_a, dlora_b"

SOLUTIONS = [
    right("lora", "einsum", body='''
        import numpy as np
        x, W, A, B, _ = cache
        dA = np.einsum("btc,btv,rv->cr", x, dy, B)
        dB = np.einsum("btc,cr,btv->rv", x, A, dy)
        dx = np.einsum("btv,cv->btc", dy, W + A @ B)
        return dx, dA, dB
        '''),
    right("lora", "by the gradient of the merged weight", body="""
        x, weight, lora_a, lora_b, low = cache
        rows, dy_rows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        dmerged = rows.T @ dy_rows
        dx = dy @ (weight + lora_a @ lora_b).T
        return dx, dmerged @ lora_b.T, lora_a.T @ dmerged
        """),
    right("lora", "two linear layers", body="""
        from npgpt.layers import linear_backward
        x, weight, lora_a, lora_b, low = cache
        low = low.reshape(*x.shape[:-1], -1)
        dx_frozen, _, _ = linear_backward(dy, (x, weight, False))
        dlow, dlora_b, _ = linear_backward(dy, (low, lora_b, False))
        dx_update, dlora_a, _ = linear_backward(dlow, (x, lora_a, False))
        return dx_frozen + dx_update, dlora_a, dlora_b
        """),
    right("lora", "a loop over the rows", body="""
        import numpy as np
        x, weight, lora_a, lora_b, low = cache
        dx, dlora_a, dlora_b = np.empty_like(x), np.zeros_like(lora_a), np.zeros_like(lora_b)
        for b in range(x.shape[0]):
            for t in range(x.shape[1]):
                dlow = lora_b @ dy[b, t]
                dlora_b += np.outer(x[b, t] @ lora_a, dy[b, t])
                dlora_a += np.outer(x[b, t], dlow)
                dx[b, t] = weight @ dy[b, t] + lora_a @ dlow
        return dx, dlora_a, dlora_b
        """),
    right("lora", "a loop over the rank", body="""
        import numpy as np
        x, weight, lora_a, lora_b, low = cache
        dx = dy @ weight.T
        dlora_a, dlora_b = np.empty_like(lora_a), np.empty_like(lora_b)
        for k in range(len(lora_b)):
            channel = dy @ lora_b[k]
            dlora_a[:, k] = np.tensordot(channel, x, 2)
            dlora_b[k] = np.tensordot(x @ lora_a[:, k], dy, 2)
            dx = dx + channel[..., None] * lora_a[:, k]
        return dx, dlora_a, dlora_b
        """),
    right("lora", "one gradient for both branches, drows in two lines",
          ("dfrozen = dy_rows", "dboth = dy_rows"), (DUPDATE, ""), (DLORA_B, "dlora_b = low.T @ dboth"),
          (DLOW, "dlow = dboth @ lora_b.T"), (DROWS, "drows = dboth @ weight.T\n    drows += dlow @ lora_a.T")),
    right("lora", "low computed again", (DLORA_B, "dlora_b = (rows @ lora_a).T @ dupdate")),
    right("lora", "the other order of the factors, transposed back", (DLORA_B, "dlora_b = (dupdate.T @ low).T"),
          (DLOW, "dlow = (lora_b @ dupdate.T).T"), (DLORA_A, "dlora_a = (dlow.T @ rows).T")),

    wrong("lora", "lora_b not transposed", ("8 is not 3", "lora_b should be transposed"),
          (DLOW, "dlow = dupdate @ lora_b")),
    wrong("lora", "low not transposed", ("3 is not 20", "low should be transposed"),
          (DLORA_B, "dlora_b = low @ dupdate")),
    wrong("lora", "rows not transposed", ("6 is not 20", "rows should be transposed"),
          (DLORA_A, "dlora_a = rows @ dlow")),
    wrong("lora", "weight not transposed", ("8 is not 6", "weight should be transposed"),
          (DROWS, "drows = dfrozen @ weight + dlow @ lora_a.T")),
    wrong("lora", "lora_a not transposed", ("3 is not 6", "lora_a should be transposed"),
          (DROWS, "drows = dfrozen @ weight.T + dlow @ lora_a")),
    wrong("lora", "dlora_b transposed", ("it is transposed", "the factors are in the wrong order"),
          (DLORA_B, "dlora_b = dupdate.T @ low")),
    wrong("lora", "dlora_a transposed", ("it is transposed", "the factors are in the wrong order"),
          (DLORA_A, "dlora_a = dlow.T @ rows")),
    wrong("lora", "A for B", ("8 is not 3", "uses lora_a instead of lora_b", "8 is not 6"),
          (DLOW, "dlow = dupdate @ lora_a.T")),
    wrong("lora", "B for A", ("uses lora_b instead of lora_a", "8 is not 3", "3 is not 8"),
          (DROWS, "drows = dfrozen @ weight.T + dlow @ lora_b.T")),
    wrong("lora", "A and B unpacked the wrong way round", "lora_b and lora_a are swapped",
          ("x, weight, lora_a, lora_b, low = cache", "x, weight, lora_b, lora_a, low = cache")),
    wrong("lora", "A and B returned the wrong way round", "the results are returned in another order",
          (RETURN, "return dx, dlora_b, dlora_a")),
    wrong("lora", "dx returned last", "the results are returned in another order",
          (RETURN, "return dlora_a, dlora_b, dx")),
    wrong("lora", "the frozen weight's gradient returned too", "returned 4 results, not 3 (dx, dlora_a, dlora_b)",
          (RETURN, "return dx, rows.T @ dfrozen, dlora_a, dlora_b"), at=None),
    wrong("lora", "None for the frozen ones", "returned 5 results, not 3 (dx, dlora_a, dlora_b)",
          (RETURN, "return dx, None, None, dlora_a, dlora_b"), at=None),
    wrong("lora", "no gradient for x", ("dx is None", "dx is a NoneType"), (RETURN, "return None, dlora_a, dlora_b"),
          at=None),
    wrong("lora", "dx through the frozen weight only", "the term dlow @ lora_a.T is missing",
          (DROWS, "drows = dfrozen @ weight.T")),
    wrong("lora", "dx through A only", "the term dfrozen @ weight.T is missing", (DROWS, "drows = dlow @ lora_a.T")),
    wrong("lora", "the branches subtracted", "the term dlow @ lora_a.T has the wrong sign",
          (DROWS, "drows = dfrozen @ weight.T - dlow @ lora_a.T")),
    wrong("lora", "half of the gradient for each term", ("0.5", "factor 1/2", "2.0"),
          (DUPDATE, "dupdate = 0.5 * dy_rows")),
    wrong("lora", "scaled by 1 / r", ("divided by", "which does not belong there"),
          (DLOW, "dlow = dupdate @ lora_b.T / lora_b.shape[0]")),
    wrong("lora", "scaled by alpha = 2", ("2.0 does not belong there", "2.0 should not", "the factor 2.0"),
          (DUPDATE, "dupdate = 2.0 * dy_rows")),
    wrong("lora", "dlora_b averaged over the rows",
          ("divided by len(rows), which does not belong there", "divided by N"),
          (DLORA_B, "dlora_b = low.T @ dupdate / len(rows)")),
    wrong("lora", "dlora_a averaged over the rows",
          ("divided by len(rows), which does not belong there", "divided by N"),
          (DLORA_A, "dlora_a = rows.T @ dlow / len(rows)")),
    wrong("lora", "low forgotten in dlora_b", ("uses rows instead of low", "its shape is (6, 8), not (3, 8)"),
          (DLORA_B, "dlora_b = rows.T @ dupdate")),
    wrong("lora", "dlora_a of the frozen weight's shape",
          ("uses dupdate instead of dlow", "its shape is (6, 8), not (6, 3)"),
          (DLORA_A, "dlora_a = rows.T @ dupdate")),
    wrong("lora", "low in place of rows", ("uses low instead of rows", "its shape is (3, 3), not (6, 3)"),
          (DLORA_A, "dlora_a = low.T @ dlow")),
    wrong("lora", "dlow unmade for dx", ("8 is not 3", "uses dupdate instead of dlow"),
          (DROWS, "drows = dfrozen @ weight.T + dupdate @ lora_a.T")),
    wrong("lora", "the batch not summed in dlora_a", "the sum over B is missing",
          (DLORA_A, "dlora_a = x.swapaxes(-1, -2) @ dlow.reshape(*x.shape[:-1], -1)")),
    wrong("lora", "a loop that overwrites dlora_b", ("only the last", "the sum"), body="""
        import numpy as np
        x, weight, lora_a, lora_b, low = cache
        d = dy @ lora_b.T
        dx = dy @ weight.T + d @ lora_a.T
        dlora_a = np.einsum("btc,btr->cr", x, d)
        dlora_b = np.zeros_like(lora_b)
        for low_row, dy_row in zip(low, dy.reshape(-1, dy.shape[-1])):
            dlora_b = np.outer(low_row, dy_row)
        return dx, dlora_a, dlora_b
        """, at="dlora_b = np.outer(low_row, dy_row)"),
    wrong("lora", "dx not reshaped", "the numbers are right, it needs a reshape", (DX, "dx = drows  "),
          at="dx = drows"),
    wrong("lora", "dy scaled in place", "changes dy, which belongs to the caller",
          (DUPDATE, "dupdate = dy_rows\n    dupdate *= 0.5"), at="dupdate *= 0.5"),
    wrong("lora", "dfrozen gets the other branch in place", ("changes dy, which belongs to the caller",),
          (DROWS, "dfrozen += low @ lora_b\n    drows = dfrozen @ weight.T + dlow @ lora_a.T"),
          at="dfrozen += low @ lora_b"),
    wrong("lora", "the merged weight not transposed", ("8 is not 6", "should be transposed"),
          (DROWS, "drows = dy_rows @ (weight + lora_a @ lora_b)")),
    wrong("lora", "the gradient of B = 0, as at the start of training", ("lora_b", "dlow"),
          (DLOW, "dlow = 0.0 * dupdate @ lora_b.T")),
    wrong("lora", "two mistakes: no branch through A, dlora_a a mean", ("divided by len(rows)", "divided by N"),
          (DLORA_A, "dlora_a = rows.T @ dlow / len(rows)"), (DROWS, "drows = dfrozen @ weight.T")),
]

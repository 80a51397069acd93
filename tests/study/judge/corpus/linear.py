"""Linear layer and language-model head. linear: x (4, 5, 6), weight (6, 8); head: weight (8, 6)."""

from tests.study.judge.corpus.solution import right, wrong

DBIAS = "dbias = dy_rows.sum(axis=0) if has_bias else None"
DWEIGHT = "dweight = rows.T @ dy_rows"
DROWS = "drows = dy_rows @ weight.T"
DX = "dx = drows.reshape(x.shape)"
HEAD_DBIAS = "dbias = dlogit_rows.sum(axis=0) if has_bias else None"
HEAD_DWEIGHT = "dweight = dlogit_rows.T @ rows"
HEAD_DROWS = "drows = dlogit_rows @ weight"
RETURN = "return dx, dweight, dbias"

SOLUTIONS = [
    right("linear", "einsum", body='''
        import numpy as np
        x, weight, has_bias = cache
        dx = np.einsum("btv,cv->btc", dy, weight)
        dweight = np.einsum("btc,btv->cv", x, dy)
        dbias = np.einsum("btv->v", dy) if has_bias else None
        return dx, dweight, dbias
        '''),
    right("linear", "other names, no rows for dx", body="""
        inputs, w, biased = cache
        grad_w = inputs.reshape(-1, w.shape[0]).T @ dy.reshape(-1, w.shape[1])
        grad_b = None
        if biased:
            grad_b = dy.sum(axis=(0, 1))
        return dy @ w.T, grad_w, grad_b
        """),
    right("linear", "a loop over the rows", body="""
        import numpy as np
        x, weight, has_bias = cache
        rows = x.reshape(-1, x.shape[-1])
        dy_rows = dy.reshape(-1, dy.shape[-1])
        drows = np.zeros_like(rows)
        dweight = np.zeros_like(weight)
        dbias = np.zeros_like(dy_rows[0])
        for n in range(len(rows)):
            drows[n] = weight @ dy_rows[n]
            dweight += np.outer(rows[n], dy_rows[n])
            dbias += dy_rows[n]
        dx = drows.reshape(x.shape)
        return dx, dweight, dbias if has_bias else None
        """),
    right("linear", "the other order of the factors, transposed back",
          (DWEIGHT, "dweight = (dy_rows.T @ rows).T"), (DROWS, "drows = (weight @ dy_rows.T).T")),
    right("linear", "Jacobians of one row", body="""
        import numpy as np
        x, weight, has_bias = cache
        n_in, n_out = weight.shape
        dx = np.empty_like(x)
        dweight = np.zeros_like(weight)
        dbias = np.zeros_like(dy[0, 0])
        for b in range(x.shape[0]):
            for t in range(x.shape[1]):
                jacobian_x = weight.T
                jacobian_weight = np.zeros((n_out, n_in, n_out), dtype=x.dtype)
                for j in range(n_out):
                    jacobian_weight[j, :, j] = x[b, t]
                dx[b, t] = dy[b, t] @ jacobian_x
                dweight += np.tensordot(dy[b, t], jacobian_weight, axes=1)
                dbias += dy[b, t]
        return dx, dweight, (dbias if has_bias else None)
        """),
    right("linear", "np.dot, and the results in another order of lines", body="""
        import numpy as np
        x, weight, has_bias = cache
        C, V = weight.shape
        dx = np.dot(dy, weight.T)
        dweight = np.dot(x.reshape(-1, C).T, dy.reshape(-1, V))
        dbias = None if not has_bias else np.sum(dy.reshape(-1, V), axis=0)
        return (dx, dweight, dbias)
        """),
    right("linear", "ones in float64 add up the bias", body="""
        import numpy as np
        x, weight, has_bias = cache
        rows = x.reshape(-1, x.shape[-1])
        dy_rows = dy.reshape(-1, dy.shape[-1])
        dbias = np.ones(len(dy_rows)) @ dy_rows if has_bias else None
        dweight = rows.T @ dy_rows
        dx = (dy_rows @ weight.T).reshape(x.shape)
        return dx, dweight, dbias
        """, note="dbias is float64 for float32 inputs"),
    right("linear", "a sum of batch entries", (DWEIGHT, "dweight = (x.swapaxes(-1, -2) @ dy).sum(axis=0)")),

    wrong("linear", "weight not transposed",
          ("dy_rows (20, 8) @ weight (6, 8): 8 is not 6; transpose weight?", "weight should be transposed"),
          (DROWS, "drows = dy_rows @ weight")),
    wrong("linear", "rows not transposed",
          ("rows (20, 6) @ dy_rows (20, 8): 6 is not 20; transpose rows?", "rows should be transposed"),
          (DWEIGHT, "dweight = rows @ dy_rows")),
    wrong("linear", "dweight transposed", ("it is transposed", "the factors are in the wrong order"),
          (DWEIGHT, "dweight = dy_rows.T @ rows")),
    wrong("linear", "the wrong factor of dweight transposed",
          ("8 is not 6", "dy_rows should not be transposed", "rows should be transposed"),
          (DWEIGHT, "dweight = dy_rows @ rows.T")),
    wrong("linear", "factors of drows swapped", ("6 is not 20", "the factors are in the wrong order"),
          (DROWS, "drows = weight.T @ dy_rows")),
    wrong("linear", "dbias summed over the batch only", "the sum over T is missing",
          (DBIAS, DBIAS.replace("dy_rows", "dy"))),
    wrong("linear", "dbias summed over time only", "the sum over B is missing",
          (DBIAS, "dbias = dy.sum(axis=1) if has_bias else None")),
    wrong("linear", "dbias not summed", "over B and T", (DBIAS, "dbias = dy if has_bias else None")),
    wrong("linear", "dbias summed to a number", "it was summed over V too",
          (DBIAS, "dbias = dy_rows.sum() if has_bias else None")),
    wrong("linear", "dbias with keepdims", "extra axis of length 1",
          (DBIAS, "dbias = dy_rows.sum(axis=0, keepdims=True) if has_bias else None")),
    wrong("linear", "dbias is a mean", "a mean instead of a sum",
          (DBIAS, "dbias = dy_rows.mean(axis=0) if has_bias else None")),
    wrong("linear", "dbias summed over the columns", "axis 1 instead of axis 0",
          (DBIAS, "dbias = dy_rows.sum(axis=1) if has_bias else None")),
    wrong("linear", "dbias without asking has_bias", "without a bias: dbias must be None",
          (DBIAS, "dbias = dy_rows.sum(axis=0)")),
    wrong("linear", "dbias of zeros if there is no bias", "dbias must be None",
          (DBIAS, "dbias = dy_rows.sum(axis=0) if has_bias else 0.0 * dy_rows.sum(axis=0)")),
    wrong("linear", "has_bias the wrong way round", ("dbias is None", "dbias is a NoneType"),
          (DBIAS, "dbias = dy_rows.sum(axis=0) if not has_bias else None")),
    wrong("linear", "dx not reshaped", "the numbers are right, it needs a reshape", (DX, "dx = drows  "),
          at="dx = drows"),
    wrong("linear", "dx reshaped like dy", "cannot reshape", (DX, "dx = drows.reshape(dy.shape)")),
    wrong("linear", "rows of dy as long as those of x", "cannot reshape",
          ("dy_rows = dy.reshape(-1, dy.shape[-1])", "dy_rows = dy.reshape(-1, x.shape[-1])")),
    wrong("linear", "dweight and dbias returned in the wrong order", "the results are returned in another order",
          (RETURN, "return dx, dbias, dweight")),
    wrong("linear", "dx returned last", "the results are returned in another order",
          (RETURN, "return dweight, dbias, dx")),
    wrong("linear", "dbias not returned", "returned 2 results, not 3 (dx, dweight, dbias)",
          (RETURN, "return dx, dweight"), at=None),
    wrong("linear", "nothing returned", ("not 3 (dx, dweight, dbias)", "returned None"), ("    " + RETURN, ""),
          at=None),
    wrong("linear", "a list returned for dbias", "dbias is a list, not an array of floating numbers",
          (DBIAS, "dbias = list(dy_rows.sum(axis=0)) if has_bias else None"), at=("dbias = list(", RETURN)),
    wrong("linear", "the sign of dx", "its sign is wrong", (DROWS, "drows = -dy_rows @ weight.T")),
    wrong("linear", "dy_rows is a view, divided in place", "changes dy, which belongs to the caller",
          ("# (N, n_out)\n    # y_rows",
          "# (N, n_out)\n    dy_rows /= len(rows)\n    # y_rows"), at="dy_rows /= len(rows)"),
    wrong("linear", "a misspelt name", "NameError: name 'dy_row' is not defined",
          (DWEIGHT, "dweight = rows.T @ dy_row  ")),
    wrong("linear", "x.T of three axes", ("4 is not 20", "x (4, 5, 6)"), (DWEIGHT, "dweight = x.T @ dy_rows")),
    wrong("linear", "dweight of every batch entry", "the sum over B is missing",
          (DWEIGHT, "dweight = x.swapaxes(-1, -2) @ dy")),
    wrong("linear", "dweight averaged over the rows", "divided by N (20), which does not belong there",
          (DWEIGHT, "dweight = rows.T @ dy_rows / len(rows)")),
    wrong("linear", "no gradient for x", ("dx is None", "dx is a NoneType"), (RETURN, "return None, dweight, dbias"),
          at=None),
    wrong("linear", "* for @", "could not be broadcast", (DWEIGHT, "dweight = rows.T * dy_rows")),
    wrong("linear", "a loop that overwrites", ("only the last gradient was kept", "only the last row"), body="""
        import numpy as np
        x, weight, has_bias = cache
        rows = x.reshape(-1, x.shape[-1])
        dy_rows = dy.reshape(-1, dy.shape[-1])
        dweight = np.zeros_like(weight)
        for row, dy_row in zip(rows, dy_rows):
            dweight = np.outer(row, dy_row)
        dx = dy @ weight.T
        dbias = dy_rows.sum(axis=0) if has_bias else None
        return dx, dweight, dbias
        """, at="dweight = np.outer(row, dy_row)"),
    wrong("linear", "a letter too early in einsum", "ValueError", body="""
        import numpy as np
        x, weight, has_bias = cache
        dx = np.einsum("btv,vc->btc", dy, weight)
        dweight = np.einsum("btc,btv->cv", x, dy)
        dbias = dy.sum(axis=(0, 1)) if has_bias else None
        return dx, dweight, dbias
        """, at='np.einsum("btv,vc->btc", dy, weight)'),
    wrong("linear", "an output of einsum the wrong way round", "it is transposed", body="""
        import numpy as np
        x, weight, has_bias = cache
        dx = np.einsum("btv,cv->btc", dy, weight)
        dweight = np.einsum("btc,btv->vc", x, dy)
        dbias = dy.sum(axis=(0, 1)) if has_bias else None
        return dx, dweight, dbias
        """, at="dweight = np.einsum"),

    right("head", "einsum", body="""
        import numpy as np
        x, E, has_bias = cache
        dE = np.einsum("btv,btc->vc", dlogits, x)
        dbias = dlogits.sum(axis=(0, 1)) if has_bias else None
        return np.einsum("btv,vc->btc", dlogits, E), dE, dbias
        """),
    right("head", "matmuls of three axes", (HEAD_DROWS + "      ", "dx = dlogits @ weight"),
          ("    dx = drows.reshape(x.shape)                             # (..., C)\n", "")),
    right("head", "tensordot", body="""
        import numpy as np
        x, weight, has_bias = cache
        dweight = np.tensordot(dlogits, x, axes=((0, 1), (0, 1)))
        dx = np.tensordot(dlogits, weight, axes=1)
        dbias = None
        if has_bias:
            dbias = dlogits.sum(axis=1).sum(axis=0)
        return dx, dweight, dbias
        """),
    right("head", "a loop over the vocabulary", body="""
        import numpy as np
        x, weight, has_bias = cache
        dx = np.zeros_like(x)
        dweight = np.empty_like(weight)
        dbias = np.empty_like(weight[:, 0])
        for v in range(len(weight)):
            d = dlogits[..., v]
            dx += d[..., None] * weight[v]
            dweight[v] = (d[..., None] * x).sum(axis=(0, 1))
            dbias[v] = d.sum()
        return dx, dweight, dbias if has_bias else None
        """),

    wrong("head", "weight transposed as in linear", ("weight should not be transposed", "8 is not 6"),
          (HEAD_DROWS + "      ", "drows = dlogit_rows @ weight.T")),
    wrong("head", "dweight as in linear", ("it is transposed", "the factors are in the wrong order"),
          (HEAD_DWEIGHT, "dweight = rows.T @ dlogit_rows")),
    wrong("head", "dlogit_rows not transposed",
          ("dlogit_rows (20, 8) @ rows (20, 6): 8 is not 20; transpose dlogit_rows?",
          "dlogit_rows should be transposed"),
          (HEAD_DWEIGHT, "dweight = dlogit_rows @ rows")),
    wrong("head", "dbias summed over the batch only", "the sum over T is missing",
          (HEAD_DBIAS, "dbias = dlogits.sum(axis=0) if has_bias else None")),
    wrong("head", "dbias summed over the vocabulary", "axis -1 instead of axis 0",
          (HEAD_DBIAS, "dbias = dlogit_rows.sum(axis=-1) if has_bias else None")),
    wrong("head", "dbias without asking has_bias", "dbias must be None",
          (HEAD_DBIAS, "dbias = dlogit_rows.sum(axis=0)")),
    wrong("head", "dbias is a mean over time",
          ("a mean instead of a sum", "divided by T (5), which does not belong there"),
          (HEAD_DBIAS, "dbias = dlogits.mean(axis=1).sum(axis=0) if has_bias else None")),
    wrong("head", "dx not reshaped", "the numbers are right, it needs a reshape",
          ("dx = drows.reshape(x.shape)", "dx = drows"),
          at="dx = drows"),
    wrong("head", "dx and dweight swapped", "the results are returned in another order",
          (RETURN, "return dweight, dx, dbias")),
    wrong("head", "no bias returned, as GPT-2 has none", "returned 2 results, not 3 (dx, dweight, dbias)",
          (RETURN, "return dx, dweight"), at=None),
    wrong("head", "the batch not summed in dweight", "the sum over B is missing",
          (HEAD_DWEIGHT, "dweight = dlogits.swapaxes(-1, -2) @ x")),
    wrong("head", "dlogits divided in place", "changes dlogits, which belongs to the caller",
          ("    # logit_rows = logit_rows + bias",
          "    dlogits /= x.shape[0] * x.shape[1]\n    # logit_rows = logit_rows + bias"),
          at="dlogits /= "),
    wrong("head", "two mistakes: dweight transposed, dbias a mean", ("a mean instead of a sum",),
          (HEAD_DBIAS, "dbias = dlogit_rows.mean(axis=0) if has_bias else None"),
          (HEAD_DWEIGHT, "dweight = rows.T @ dlogit_rows")),
    wrong("head", "x in place of rows", ("20 is not 5", "x (4, 5, 6)", "uses x instead of rows"),
          (HEAD_DWEIGHT, "dweight = dlogit_rows.T @ x")),
]

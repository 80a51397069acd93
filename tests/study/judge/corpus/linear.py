"""Linear layer and language-model head. linear: x (4, 5, 6), weight (6, 8); head: weight (8, 6)."""

from tests.study.judge.corpus.solution import right, wrong

LINEAR = [
    right("einsum", body="""
        import numpy as np
        x, weight, has_bias = cache
        dx = np.einsum("btv,cv->btc", dy, weight)
        dweight = np.einsum("btc,btv->cv", x, dy)
        dbias = np.einsum("btv->v", dy) if has_bias else None
        return dx, dweight, dbias
        """),
    right("other names, no rows for dx", body="""
        inputs, w, biased = cache
        grad_w = inputs.reshape(-1, w.shape[0]).T @ dy.reshape(-1, w.shape[1])
        grad_b = None
        if biased:
            grad_b = dy.sum(axis=(0, 1))
        return dy @ w.T, grad_w, grad_b
        """),
    right("a loop", body="""
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
    right("the other order of the factors, transposed back", "dweight = (dy_rows.T @ rows).T",
          "drows = (weight @ dy_rows.T).T"),
    right("a sum of batch entries", "dweight = (x.swapaxes(-1, -2) @ dy).sum(axis=0)"),
    wrong("weight should be transposed", "drows = dy_rows @ weight"),
    wrong("its axes are in another order", "dweight = dy_rows.T @ rows"),
    wrong("8 is not 6", "dweight = dy_rows @ rows.T"),
    wrong("the sum over T is missing", "dbias = dy.sum(axis=0) if has_bias else None"),
    wrong("over B and T", "dbias = dy if has_bias else None"),
    wrong("it was summed over V too", "dbias = dy_rows.sum() if has_bias else None"),
    wrong("extra axis of length 1", "dbias = dy_rows.sum(axis=0, keepdims=True) if has_bias else None"),
    wrong("a mean instead of a sum", "dbias = dy_rows.mean(axis=0) if has_bias else None"),
    wrong("dbias must be None", "dbias = dy_rows.sum(axis=0)"),
    wrong("dbias is None", "dbias = dy_rows.sum(axis=0) if not has_bias else None"),
    wrong("the numbers are right, it needs a reshape", "dx = drows"),
    wrong("cannot reshape", "dx = drows.reshape(dy.shape)"),
    wrong("the results are returned in another order", "return dx, dbias, dweight"),
    wrong("returned 2 results, not 3 (dx, dweight, dbias)", "return dx, dweight"),
    wrong("not 3 (dx, dweight, dbias)", ("    return dx, dweight, dbias", "")),
    wrong("dbias is a list, not an array of floating numbers",
          "dbias = list(dy_rows.sum(axis=0)) if has_bias else None"),
    wrong("its sign is wrong", "drows = -dy_rows @ weight.T"),
    wrong("changes dy, which belongs to the caller", ("    drows =", "    dy_rows /= len(rows)\n    drows =")),
    wrong("NameError: name 'dy_row' is not defined", "dweight = rows.T @ dy_row"),
    wrong("divided by len(rows), which does not belong there", "dweight = rows.T @ dy_rows / len(rows)"),
    wrong("dx is None", "return None, dweight, dbias"),
    wrong("`rows.T * dy_rows` is elementwise, a matmul belongs there", "dweight = rows.T * dy_rows"),
    wrong("= instead of +=", ("dweight += np.outer(rows[n], dy_rows[n])", "dweight = np.outer(rows[n], dy_rows[n])"),
          of="a loop"),
    wrong("ValueError", ("btv,cv->btc", "btv,vc->btc"), of="einsum"),
    wrong("computed in float32", "drows = (dy_rows @ weight.T).astype(np.float32)"),
    wrong("has changed: make a new array in each call",
          "drows = np.matmul(dy_rows, weight.T, out=linear_backward.__dict__.setdefault(x.shape, np.empty_like(rows)))",
          at=None, key=""),
    wrong("its shape is", "dx = drows.reshape(x.shape).squeeze()", key="dx"),
    wrong("dbias",
          ("dbias = dy_rows.sum(axis=0) if has_bias else None", "if has_bias:\n        dbias = dy_rows.sum(axis=0)"),
          at="return dx, dweight, dbias", key=""),
]

HEAD = [
    right("matmuls of three axes", ("drows = dlogit_rows @ weight      ", "dx = dlogits @ weight"),
          ("    dx = drows.reshape(x.shape)                             # (..., C)\n", "")),
    wrong("weight should not be transposed", "drows = dlogit_rows @ weight.T"),
    wrong("axis -1 instead of axis 0", "dbias = dlogit_rows.sum(axis=-1) if has_bias else None"),
    wrong("it is right only at index 4 of axis 1",
          ("dx = drows.reshape(x.shape)", "dx = np.zeros_like(x)\n    dx[:, -1] = dlogits[:, -1] @ weight"),
          at="dx[:, -1] = ", key=""),
]

SOLUTIONS = {"linear": LINEAR, "head": HEAD}

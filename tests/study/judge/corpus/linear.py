"""Linear layer and language-model head. linear: x (4, 5, 6), weight (6, 8); head: weight (8, 6)."""

SOLUTIONS = r"""
layer linear
right | einsum
    import numpy as np
    x, weight, has_bias = cache
    dx = np.einsum("btv,cv->btc", dy, weight)
    dweight = np.einsum("btc,btv->cv", x, dy)
    dbias = np.einsum("btv->v", dy) if has_bias else None
    return dx, dweight, dbias
right | other names, no rows for dx
    inputs, w, biased = cache
    grad_w = inputs.reshape(-1, w.shape[0]).T @ dy.reshape(-1, w.shape[1])
    grad_b = None
    if biased:
        grad_b = dy.sum(axis=(0, 1))
    return dy @ w.T, grad_w, grad_b
right | a loop
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
right | dweight = (dy_rows.T @ rows).T @@ drows = (weight @ dy_rows.T).T \
  | the other order of the factors, transposed back
right | dweight = (x.swapaxes(-1, -2) @ dy).sum(axis=0) | a sum of batch entries
wrong | drows = dy_rows @ weight
wrong | dweight = dy_rows.T @ rows
wrong | dweight = dy_rows @ rows.T
wrong | dbias = dy.sum(axis=0) if has_bias else None
wrong | dbias = dy if has_bias else None
wrong | dbias = dy_rows.sum() if has_bias else None
wrong | dbias = dy_rows.sum(axis=0, keepdims=True) if has_bias else None
wrong | dbias = dy_rows.mean(axis=0) if has_bias else None
wrong | dbias = dy_rows.sum(axis=0)
wrong | dbias = dy_rows.sum(axis=0) if not has_bias else None
wrong | dx = drows
wrong | dx = drows.reshape(dy.shape)
wrong | return dx, dbias, dweight
wrong | return dx, dweight
wrong |     return dx, dweight, dbias =>
wrong | dbias = list(dy_rows.sum(axis=0)) if has_bias else None
wrong | drows = -dy_rows @ weight.T
wrong |     drows = =>     dy_rows /= len(rows)\n    drows =
wrong | dweight = rows.T @ dy_row
wrong | dweight = rows.T @ dy_rows / len(rows)
wrong | return None, dweight, dbias
wrong | dweight = rows.T * dy_rows
wrong | dweight += np.outer(rows[n], dy_rows[n]) => dweight = np.outer(rows[n], dy_rows[n]) \
  | of a loop
wrong | btv,cv->btc => btv,vc->btc | of einsum
wrong | drows = (dy_rows @ weight.T).astype(np.float32)
wrong | drows = np.matmul(dy_rows, weight.T, out=linear_backward.__dict__.setdefault(x.shape, \
  np.empty_like(rows))) | at nowhere
wrong | dx = drows.reshape(x.shape).squeeze()
wrong | dbias = dy_rows.sum(axis=0) if has_bias else None \
  => if has_bias:\n        dbias = dy_rows.sum(axis=0) | at return dx, dweight, dbias
layer head
right | drows = dlogit_rows @ weight       => dx = dlogits @ weight \
  @@     dx = drows.reshape(x.shape)                             # (..., C)\n \
  =>  | matmuls of three axes
wrong | drows = dlogit_rows @ weight.T
wrong | dx = drows.reshape(x.shape) \
  => dx = np.zeros_like(x)\n    dx[:, -1] = dlogits[:, -1] @ weight | at dx[:, -1] =
"""

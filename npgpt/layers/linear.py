"""Linear layers: `x @ weight + bias`, and the language-model head `x @ weight.T`."""

import numpy as np

from npgpt.engine.sums import column_sum


def linear_forward(x, weight, bias=None):
    """Multiply by a matrix, add a vector: y = x W + b.

    x (..., n_in), weight (n_in, n_out), bias (n_out,) or None -> y (..., n_out), cache. One floating dtype throughout.

    The layout (in, out) is that of OpenAI's GPT-2 checkpoints (their "Conv1D"); torch.nn.Linear stores its transpose.
    The cache is x and weight, because the gradient of either factor of a product is made of the other one; of the bias
    only its presence is remembered.
    """
    rows = x.reshape(-1, x.shape[-1])               # (N, n_in): one large GEMM, not one for each batch entry
    y_rows = rows @ weight                          # (N, n_out)
    if bias is not None:
        y_rows += bias                              # in place, for speed: the product is nobody else's
    y = y_rows.reshape(*x.shape[:-1], -1)           # (..., n_out)
    return y, (x, weight, bias is not None)


def linear_backward(dy, cache, dweight=None):
    """Undo `linear_forward`: dy (..., n_out) -> dx (..., n_in), dweight (n_in, n_out), dbias (n_out,) or None.

    dweight: for speed, the array to write the weight's gradient to; a new one is made where none is given.

    With y_nj = sum_i x_ni W_ij + b_j:

        dx_ni = sum_j dy_nj W_ij     ->  dy @ W.T
        dW_ij = sum_n x_ni dy_nj     ->  x.T @ dy
        db_j  = sum_n dy_nj              (the bias was added to every row, so its gradient is the sum over the rows)

    A way to remember the transposes: only one order of the factors gives the shape of the thing being differentiated.
    """
    x, weight, has_bias = cache
    rows = x.reshape(-1, x.shape[-1])               # (N, n_in)
    # y = y_rows.reshape(*x.shape[:-1], -1)
    dy_rows = dy.reshape(-1, dy.shape[-1])          # (N, n_out)
    # y_rows = rows @ weight + bias
    dbias = column_sum(dy_rows) if has_bias else None           # (n_out,)
    dweight = np.matmul(rows.T, dy_rows, out=dweight)           # (n_in, n_out)
    drows = dy_rows @ weight.T                                  # (N, n_in)
    # rows = x.reshape(-1, x.shape[-1])
    dx = drows.reshape(x.shape)                     # (..., n_in)
    return dx, dweight, dbias


def head_forward(x, weight):
    """The language-model head: one score for each token of the vocabulary, logits = x E^T.

    x (..., C), weight (V, C) -> logits (..., V), cache.

    The weight has the layout of the token embedding, because in GPT-2 it *is* the token embedding (tied weights): a
    token's logit is the dot product of the final state with that token's vector (Press & Wolf 2017, arXiv:1608.05859).
    The cache is x and weight, as in `linear_forward`.
    """
    rows = x.reshape(-1, x.shape[-1])               # (N, C)
    logit_rows = rows @ weight.T                    # (N, V)
    logits = logit_rows.reshape(*x.shape[:-1], -1)  # (..., V)
    return logits, (x, weight)


def head_backward(dlogits, cache, dweight=None):
    """Undo `head_forward`: dlogits (..., V) -> dx (..., C), dweight (V, C), written to `dweight` where that is given.

    With logits_nv = sum_c x_nc E_vc:  dE_vc = sum_n dlogits_nv x_nc  and  dx_nc = sum_v dlogits_nv E_vc.
    When the head is tied, this dweight is only one of two contributions to the embedding's gradient.
    """
    x, weight = cache
    rows = x.reshape(-1, x.shape[-1])                         # (N, C)
    # logits = logit_rows.reshape(*x.shape[:-1], -1)
    dlogit_rows = dlogits.reshape(-1, dlogits.shape[-1])      # (N, V)
    # logit_rows = rows @ weight.T
    dweight = np.matmul(dlogit_rows.T, rows, out=dweight)     # (V, C)
    drows = dlogit_rows @ weight                              # (N, C)
    # rows = x.reshape(-1, x.shape[-1])
    dx = drows.reshape(x.shape)                               # (..., C)
    return dx, dweight

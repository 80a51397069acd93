"""Linear layers: `x @ weight + bias`, and the language-model head `x @ weight.T`."""


def linear_forward(x, weight, bias=None):
    """Compute y = x W + b.

    Parameters
    ----------
    x : array (..., n_in), floating
    weight : array (n_in, n_out), of x's dtype
        W, in the layout of OpenAI's GPT-2 checkpoints ("Conv1D"); torch.nn.Linear stores W^T.
    bias : array (n_out,), or None

    Returns
    -------
    y : array (..., n_out)
    cache : tuple
        x and weight, because the gradient of either factor of a matmul needs the other one. The
        backward does not need the bias, only whether there is one.
    """
    rows = x.reshape(-1, x.shape[-1])               # (N, n_in): one large matmul
    y_rows = rows @ weight                          # (N, n_out)
    if bias is not None:
        y_rows = y_rows + bias                      # (N, n_out)
    y = y_rows.reshape(*x.shape[:-1], -1)           # (..., n_out)
    return y, (x, weight, bias is not None)


def linear_backward(dy, cache):
    """Undo `linear_forward`.

    Parameters
    ----------
    dy : array (..., n_out)
    cache : tuple, from `linear_forward`

    Returns
    -------
    dx : array (..., n_in)
    dweight : array (n_in, n_out)
    dbias : array (n_out,), or None

    Notes
    -----
    With y_nj = sum_i x_ni W_ij + b_j, where W is the weight and b the bias:

        dx_ni = sum_j dy_nj W_ij     ->  dy @ W.T
        dW_ij = sum_n x_ni dy_nj     ->  x.T @ dy
        db_j  = sum_n dy_nj              (the bias was added to every row)

    To remember the transposes: only one order of the factors gives the shape of what is
    differentiated.
    """
    x, weight, has_bias = cache
    rows = x.reshape(-1, x.shape[-1])               # (N, n_in)
    # y = y_rows.reshape(*x.shape[:-1], -1)
    dy_rows = dy.reshape(-1, dy.shape[-1])          # (N, n_out)
    # y_rows = y_rows + bias
    dbias = dy_rows.sum(axis=0) if has_bias else None       # (n_out,)
    # y_rows = rows @ weight
    dweight = rows.T @ dy_rows                      # (n_in, n_out)
    drows = dy_rows @ weight.T                      # (N, n_in)
    # rows = x.reshape(-1, x.shape[-1])
    dx = drows.reshape(x.shape)                     # (..., n_in)
    return dx, dweight, dbias


def head_forward(x, weight):
    """Compute one score for each token of the vocabulary: logits = x E^T, the language-model head.

    Parameters
    ----------
    x : array (..., C), floating
    weight : array (V, C), of x's dtype
        E. It has the layout of the token embedding, because in GPT-2 it *is* the token embedding
        (tied weights): the logit of a token is the dot product of x and the token's vector.

    Returns
    -------
    logits : array (..., V)
    cache : tuple

    References
    ----------
    Press & Wolf 2017, arXiv:1608.05859.
    """
    rows = x.reshape(-1, x.shape[-1])               # (N, C)
    logit_rows = rows @ weight.T                    # (N, V)
    logits = logit_rows.reshape(*x.shape[:-1], -1)  # (..., V)
    return logits, (x, weight)


def head_backward(dlogits, cache):
    """Undo `head_forward`.

    Parameters
    ----------
    dlogits : array (..., V)
    cache : tuple, from `head_forward`

    Returns
    -------
    dx : array (..., C)
    dweight : array (V, C)
        If the head is tied, this is one of two contributions to the embedding's gradient.

    Notes
    -----
    With logits_nv = sum_c x_nc E_vc:

        dx_nc = sum_v dlogits_nv E_vc,   dE_vc = sum_n dlogits_nv x_nc
    """
    x, weight = cache
    rows = x.reshape(-1, x.shape[-1])                       # (N, C)
    # logits = logit_rows.reshape(*x.shape[:-1], -1)
    dlogit_rows = dlogits.reshape(-1, dlogits.shape[-1])    # (N, V)
    # logit_rows = rows @ weight.T
    dweight = dlogit_rows.T @ rows                          # (V, C)
    drows = dlogit_rows @ weight                            # (N, C)
    # rows = x.reshape(-1, x.shape[-1])
    dx = drows.reshape(x.shape)                             # (..., C)
    return dx, dweight

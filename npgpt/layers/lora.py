"""LoRA: a frozen linear layer, plus a small trained one that learns a correction."""


def lora_forward(x, weight, bias, lora_a, lora_b):
    """Compute y = x W + b + (x A) B.

    Parameters
    ----------
    x : array (..., n_in), floating
    weight : array (n_in, n_out), frozen
    bias : array (n_out,), frozen, or None
    lora_a : array (n_in, r), trained
    lora_b : array (r, n_out), trained
        It starts with zeros, so that training starts from the frozen layer.

    Returns
    -------
    y : array (..., n_out)
    cache : tuple
        x A as well, which has only r channels.

    Notes
    -----
    The rank r is small, so A and B have few values: r (n_in + n_out) instead of n_in n_out. The
    paper multiplies A B by alpha / r; alpha = r here. After training W + A B is an ordinary weight.

    References
    ----------
    Hu et al. 2021, arXiv:2106.09685.
    """
    rows = x.reshape(-1, x.shape[-1])               # (N, n_in)
    frozen = rows @ weight                          # (N, n_out)
    if bias is not None:
        frozen = frozen + bias                      # (N, n_out)
    low = rows @ lora_a                             # (N, r)
    update = low @ lora_b                           # (N, n_out)
    y_rows = frozen + update                        # (N, n_out)
    y = y_rows.reshape(*x.shape[:-1], -1)           # (..., n_out)
    return y, (x, weight, lora_a, lora_b, low)


def lora_backward(dy, cache):
    """Undo `lora_forward`.

    Parameters
    ----------
    dy : array (..., n_out)
    cache : tuple, from `lora_forward`

    Returns
    -------
    dx : array (..., n_in)
    dlora_a : array (n_in, r)
    dlora_b : array (r, n_out)

    Notes
    -----
    A and B are two linear layers, one after the other. The frozen W and b pass the gradient on and
    get none: that saves the matmul of dW, a third of a linear layer's work.
    """
    x, weight, lora_a, lora_b, low = cache
    rows = x.reshape(-1, x.shape[-1])               # (N, n_in)
    # y = y_rows.reshape(*x.shape[:-1], -1)
    dy_rows = dy.reshape(-1, dy.shape[-1])          # (N, n_out)
    # y_rows = frozen + update: both terms get the whole gradient
    dfrozen = dy_rows                               # (N, n_out)
    dupdate = dy_rows                               # (N, n_out)
    # update = low @ lora_b
    dlora_b = low.T @ dupdate                       # (r, n_out)
    dlow = dupdate @ lora_b.T                       # (N, r)
    # low = rows @ lora_a
    dlora_a = rows.T @ dlow                         # (n_in, r)
    # frozen = rows @ weight: rows is used twice
    drows = dfrozen @ weight.T + dlow @ lora_a.T    # (N, n_in)
    # rows = x.reshape(-1, x.shape[-1])
    dx = drows.reshape(x.shape)                     # (..., n_in)
    return dx, dlora_a, dlora_b

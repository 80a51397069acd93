"""Attention: each position takes a weighted average of the values at positions it may see."""

import numpy as np


def causal_mask(mask, x):
    """Hide later positions: return 0, and -inf above the diagonal, plus the mask if there is one.

    Parameters
    ----------
    mask : array (T, T) or (B, 1 or H, T, T), or None
    x : array (B, T, C)
        It gives T and the dtype.

    Returns
    -------
    array (T, T), or of the mask's shape. It is a constant, so it has no backward.
    """
    T = x.shape[1]
    future = np.triu(np.full_like(x, -np.inf, shape=(T, T)), k=1)       # (T, T)
    return future if mask is None else mask + future


def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
    """Compute mix = softmax(q k^T scale + mask) v for each batch entry and head.

    Parameters
    ----------
    q : array (B, H, T, D), queries
    k, v : arrays (B, H, S, D), keys and values
        S = T in training.
    scale : float
    mask : array (T, S) or (B, 1 or H, T, S), or None
        0 where a query may see a key, -inf where not. Each query must see at least one key: else
        its largest score is -inf, and -inf - -inf is NaN (`check_mask` in npgpt/model/batch.py lets
        a query that sees none see itself).
    dropout_mask : array (B, H, T, S), or None
        Zeros and 1 / (1 - p).

    Returns
    -------
    mix : array (B, H, T, D)
    cache : tuple
        The arguments but the mask, and att, which is large: S values for each position and head.
        Recomputing it would cost one of the forward's two matmuls, and the softmax.

    Notes
    -----
    The largest score of each row is subtracted: the softmax does not change, and exp cannot
    overflow.

    References
    ----------
    Vaswani et al. 2017, arXiv:1706.03762.
    """
    scores = q @ k.swapaxes(-1, -2)                                     # (B, H, T, S)
    scaled = scores * scale                                             # (B, H, T, S)
    masked = scaled if mask is None else scaled + mask                  # (B, H, T, S)
    largest = masked.max(axis=-1, keepdims=True)                        # (B, H, T, 1)
    exps = np.exp(masked - largest)                                     # (B, H, T, S)
    total = exps.sum(axis=-1, keepdims=True)                            # (B, H, T, 1)
    att = exps / total                                                  # (B, H, T, S) sums to 1
    kept = att if dropout_mask is None else att * dropout_mask          # (B, H, T, S)
    mix = kept @ v                                                      # (B, H, T, D)
    return mix, (q, k, v, scale, att, dropout_mask)


def attention_backward(dmix, cache):
    """Undo `attention_forward`.

    Parameters
    ----------
    dmix : array (B, H, T, D)
    cache : tuple, from `attention_forward`

    Returns
    -------
    dq : array (B, H, T, D)
    dk, dv : arrays (B, H, S, D)

    Notes
    -----
    Fused: dtotal, dexps and dlargest are skipped. Line by line, in one row of the softmax:

        dot = sum(datt att)                             below
        dtotal = -sum(datt exps) / total^2              att = exps / total
               = -dot / total
        dexps = datt / total + dtotal                   used twice: att, and total = sum(exps)
              = (datt - dot) / total
        dlargest = -sum(dexps exps)                     exps = exp(masked - largest)
                 = -sum(att (datt - dot))               because att = exps / total
                 = -(dot - dot sum(att)) = 0            because sum(att) = 1
        dmasked = exps dexps                            the derivative of exp is exp
                = att (datt - dot)

    Where the mask was -inf, att is 0, and so is dmasked: nothing needs to be hidden again.
    """
    q, k, v, scale, att, dropout_mask = cache
    # mix = kept @ v
    kept = att if dropout_mask is None else att * dropout_mask          # (B, H, T, S)
    dkept = dmix @ v.swapaxes(-1, -2)                                   # (B, H, T, S)
    dv = kept.swapaxes(-1, -2) @ dmix                                   # (B, H, S, D)
    # kept = att if dropout_mask is None else att * dropout_mask
    datt = dkept if dropout_mask is None else dkept * dropout_mask      # (B, H, T, S)
    # largest = masked.max(axis=-1, keepdims=True)
    # exps = np.exp(masked - largest)
    # total = exps.sum(axis=-1, keepdims=True)
    # att = exps / total, these four lines in one step
    dot = (datt * att).sum(axis=-1, keepdims=True)                      # (B, H, T, 1)
    dmasked = att * (datt - dot)                                        # (B, H, T, S)
    # masked = scaled if mask is None else scaled + mask
    dscaled = dmasked                                                   # (B, H, T, S)
    # scaled = scores * scale
    dscores = dscaled * scale                                           # (B, H, T, S)
    # scores = q @ k.swapaxes(-1, -2)
    dq = dscores @ k                                                    # (B, H, T, D)
    dk = dscores.swapaxes(-1, -2) @ q                                   # (B, H, S, D)
    return dq, dk, dv

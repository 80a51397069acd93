"""Embedding: the vector of a token plus the vector of its position."""

import numpy as np


def embedding_forward(idx, wte, wpe):
    """Compute x = wte[idx] + wpe[0, ..., T - 1]: row t of wpe is the vector of position t.

    Parameters
    ----------
    idx : integers (B, T), in [0, V)
    wte : array (V, C)
        The token embedding.
    wpe : array (block_size, C)
        The position embedding.

    Returns
    -------
    x : array (B, T, C)
    cache : tuple
        idx, which says which rows were read, and the lengths of the two tables, for the gradients'
        shapes.
    """
    T = idx.shape[1]
    token = wte[idx]            # (B, T, C)
    position = wpe[:T]          # (T, C)
    x = token + position        # (B, T, C): every batch entry gets the same position vectors
    return x, (idx, len(wte), len(wpe))


def embedding_backward(dx, cache):
    """Undo `embedding_forward`.

    Parameters
    ----------
    dx : array (B, T, C)
    cache : tuple, from `embedding_forward`

    Returns
    -------
    dwte : array (V, C)
    dwpe : array (block_size, C)

    Notes
    -----
    A row that was read n times gets the sum of n gradients: row v of dwte is the sum of dx over all
    b and t with idx[b, t] = v, and row t of dwpe the sum over b. `dwte[idx] += dx` would be wrong:
    for each place of a repeated token NumPy reads the old row, and the last write wins. np.add.at
    adds them all.
    """
    idx, vocab_size, block_size = cache
    B, T, C = dx.shape
    # x = token + position
    dtoken = dx                                                     # (B, T, C)
    dposition = dx.sum(axis=0)                                      # (T, C) broadcast over B
    # position = wpe[:T]
    dwpe = np.zeros((block_size, C), dtype=dx.dtype, like=dx)       # (block_size, C)
    dwpe[:T] = dposition
    # token = wte[idx]
    dwte = np.zeros((vocab_size, C), dtype=dx.dtype, like=dx)       # (V, C)
    np.add.at(dwte, idx, dtoken)
    return dwte, dwpe

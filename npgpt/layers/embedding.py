"""Embedding: a token's vector plus its position's vector."""

import numpy as np

from npgpt.engine.scatter import add_rows_by_index


def embedding_forward(idx, wte, wpe, start=0):
    """x = wte[idx] + wpe[position].

    idx (B, T) integers, wte (V, C) token embedding, wpe (block_size, C) position embedding, start the position of the
    first column (0, but in generation) -> x (B, T, C), cache.
    The cache is idx and the two table lengths: the gradient only needs to know which rows were read.
    """
    T = idx.shape[1]
    token = wte[idx]                 # (B, T, C)
    position = wpe[start:start + T]  # (T, C)
    x = token + position             # (B, T, C): every batch entry gets the same positions
    return x, (idx, len(wte), len(wpe))


def embedding_backward(dx, cache, dwte=None):
    """Undo `embedding_forward`: dx (B, T, C) -> dwte (V, C), dwpe (block_size, C).

    dwte: for speed, an array to add the tokens' gradient to; where none is given it is added to zeros.

    A row that was read n times gets the sum of n gradients. `dwte[idx] += dx` would be wrong: NumPy reads, adds and
    writes back once for each index, so of a repeated token only the last gradient would survive.
    """
    idx, vocab_size, block_size = cache
    B, T, C = dx.shape
    # x = token + position
    dtoken = dx                                                     # (B, T, C)
    dposition = dx.sum(axis=0)                                      # (T, C): position was broadcast over the batch
    # position = wpe[start:start + T], and start is 0 in training
    dwpe = np.zeros((block_size, C), dtype=dx.dtype, like=dx)       # (block_size, C): later positions were not read
    dwpe[:T] = dposition
    # token = wte[idx]
    if dwte is None:
        dwte = np.zeros((vocab_size, C), dtype=dx.dtype, like=dx)   # (V, C): most tokens were not read
    add_rows_by_index(dwte, idx.reshape(B * T), dtoken.reshape(B * T, C))
    return dwte, dwpe

"""The embedding's gradient without np.add.at: on a CPU it is four times slower than a matmul or a sort, and on a GPU
it adds in any order."""

import numpy as np

ONE_HOT_LIMIT = 512     # up to this vocabulary a matmul with a one-hot matrix is faster than sorting


class TokenRows:
    """A gradient (V, C), zero except in the rows of some tokens. `rows + dense` adds them to dense, in place."""

    def __init__(self, tokens, rows):
        self.tokens, self.rows = tokens, rows

    def __add__(self, dense):
        dense[self.tokens] += self.rows
        return dense


def fast_embedding_backward(dx, cache, tied):
    """Compute `embedding_backward`, in a fixed order of summation.

    tied: dwte may be a `TokenRows`, because it is added to the head's gradient; adding two dense matrices is slow.
    """
    idx, vocab_size, block_size = cache
    B, T, C = dx.shape
    index, rows = idx.reshape(B * T), dx.reshape(B * T, C)
    dwpe = np.zeros((block_size, C), dtype=dx.dtype)
    dwpe[:T] = dx.sum(axis=0)
    if vocab_size <= ONE_HOT_LIMIT:
        one_hot = (np.arange(vocab_size)[:, None] == index).astype(dx.dtype)    # (V, B T)
        return one_hot @ rows, dwpe
    order = np.argsort(index, kind="stable")                        # (B T,) equal tokens become neighbours
    in_order = index[order]                                         # (B T,)
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))          # where each run of equal tokens begins
    sums = TokenRows(in_order[starts], np.add.reduceat(rows[order], starts, axis=0))
    return sums if tied else sums + np.zeros((vocab_size, C), dtype=dx.dtype), dwpe


def sorted_embedding_backward(dx, cache):
    """Compute `embedding_backward` on a GPU, in a fixed order of summation.

    The rows are sorted by token. After the pass for n, each holds the sum of the rows of its token among the 2 n from
    it on, so that in the end the first row of a token has all. Every shape is known before: nothing waits for the GPU.
    """
    idx, vocab_size, block_size = cache
    B, T, C = dx.shape
    dwpe = np.zeros((block_size, C), dtype=dx.dtype, like=dx)
    dwpe[:T] = dx.sum(axis=0)
    index = idx.reshape(B * T)
    order = np.argsort(index)                                       # (B T,) equal tokens become neighbours
    tokens, sums = index[order], dx.reshape(B * T, C)[order]        # (B T,), (B T, C)
    n = 1
    while n < B * T:
        same = tokens[n:] == tokens[:-n]
        sums[:-n] += np.where(same[:, None], sums[n:], 0.0)
        n *= 2
    every = np.arange(vocab_size, like=idx)
    first = np.minimum(np.searchsorted(tokens, every), B * T - 1)   # (V,) where the rows of each token begin, if any
    return np.where((tokens[first] == every)[:, None], sums[first], 0.0), dwpe

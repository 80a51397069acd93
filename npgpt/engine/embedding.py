"""The embedding's gradient without np.add.at.

That is four times slower than a matmul or a sort on a CPU, and adds in any order on a GPU.
"""

import numpy as np

from npgpt.engine.ops import table
from npgpt.model.variants import NOTHING, model_backward

ONE_HOT_LIMIT = 128  # up to this vocabulary a matmul with a one-hot matrix is the faster way


def fast_embedding_backward(dx, cache, dwte=None):
    """Compute `embedding_backward`, in a fixed order of summation.

    dwte: for a vocabulary above the limit, an array (V, C) to which the gradient is added in place.
    """
    idx, vocab_size, block_size = cache
    B, T, C = dx.shape
    index, rows = idx.reshape(B * T), dx.reshape(B * T, C)
    dwpe = np.zeros((block_size, C), dtype=dx.dtype)
    dwpe[:T] = dx.sum(axis=0)
    if vocab_size <= ONE_HOT_LIMIT:
        one_hot = (np.arange(vocab_size)[:, None] == index).astype(dx.dtype)  # (V, B T)
        return one_hot @ rows, dwpe
    order = np.argsort(index, kind="stable")  # (B T,) equal tokens become neighbours
    in_order = index[order]  # (B T,)
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))  # where each run of equal tokens begins
    dwte = np.zeros((vocab_size, C), dtype=dx.dtype) if dwte is None else dwte
    dwte[in_order[starts]] += np.add.reduceat(rows[order], starts, axis=0)
    return dwte, dwpe


def tied_backward(dlogits, cache, ops):
    """Compute `model_backward` of a tied head, for a vocabulary above the limit.

    Adding two dense matrices is slow. So the tokens' rows are added to the head's gradient.
    """
    dwte_head = []

    def head_backward(dlogits, cache):
        dx, dweight = ops.head_backward(dlogits, cache)
        dwte_head.append(dweight)
        return dx, NOTHING

    def embedding_backward(dx, cache):
        return fast_embedding_backward(dx, cache, *dwte_head)

    own = table(ops, head_backward=head_backward, embedding_backward=embedding_backward)
    return model_backward(dlogits, cache, own)


def sorted_embedding_backward(dx, cache):
    """Compute `embedding_backward` on a GPU, in a fixed order of summation.

    The rows are sorted by token. After the pass for n, each holds the sum of the rows of its token
    among the 2 n from it on, so that in the end the first row of a token has all. Every shape is
    known before: nothing waits for the GPU.
    """
    idx, vocab_size, block_size = cache
    B, T, C = dx.shape
    dwpe = np.zeros((block_size, C), dtype=dx.dtype, like=dx)
    dwpe[:T] = dx.sum(axis=0)
    index = idx.reshape(B * T)
    order = np.argsort(index)  # (B T,) equal tokens become neighbours
    tokens, sums = index[order], dx.reshape(B * T, C)[order]  # (B T,), (B T, C)
    n = 1
    while n < B * T:
        same = tokens[n:] == tokens[:-n]
        sums[:-n] += np.where(same[:, None], sums[n:], 0.0)
        n *= 2
    every = np.arange(vocab_size, like=idx)
    # (V,) where the rows of each token begin, if any
    first = np.minimum(np.searchsorted(tokens, every), B * T - 1)
    return np.where((tokens[first] == every)[:, None], sums[first], 0.0), dwpe

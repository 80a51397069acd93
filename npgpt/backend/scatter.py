"""Scatter-add: sums of rows that share an index."""

import numpy as np

ONE_HOT_LIMIT = 512     # above so many indices, the product with a one-hot matrix costs more than sorting


def sum_rows_by_index(rows, index, n_index):
    """out[i] = the sum of all rows whose index is i.

    rows (N, C), index (N,) integers in [0, n_index) -> out (n_index, C), the dtype of rows. The order of summation is
    fixed, so that the same input gives the same bits. (np.add.at does the same and is 4 times slower.)
    """
    if n_index <= ONE_HOT_LIMIT:
        one_hot = (np.arange(n_index)[:, None] == index).astype(rows.dtype)     # (n_index, N)
        return one_hot @ rows
    order = np.argsort(index, kind="stable")                        # (N,) equal indices become neighbours
    in_order = index[order]                                         # (N,)
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))          # where each run of equal indices begins
    out = np.zeros((n_index, rows.shape[1]), dtype=rows.dtype)
    out[in_order[starts]] = np.add.reduceat(rows[order], starts, axis=0)
    return out

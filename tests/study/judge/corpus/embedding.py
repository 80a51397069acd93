"""Embedding and dropout. dx (4, 5, 6), dwte (8, 6), dwpe (10, 6), idx (4, 5)."""

SOLUTIONS = r"""
layer embedding
right | a one-hot matmul
    idx, vocab_size, block_size = cache
    B, T, C = dx.shape
    onehot = (idx.reshape(-1, 1) == np.arange(vocab_size)).astype(dx.dtype)
    dwte = onehot.T @ dx.reshape(-1, C)
    dwpe = np.pad(dx.sum(axis=0), ((0, block_size - T), (0, 0)))
    return dwte, dwpe
right | loops
    idx, vocab_size, block_size = cache
    B, T, C = dx.shape
    dwte = np.zeros((vocab_size, C), dtype=dx.dtype)
    dwpe = np.zeros((block_size, C), dtype=dx.dtype)
    for b in range(B):
        for t in range(T):
            dwte[idx[b, t]] += dx[b, t]
            dwpe[t] += dx[b, t]
    return dwte, dwpe
right | dwpe[:T] = dposition => np.add.at(dwpe, np.broadcast_to(np.arange(T), (B, T)), dx) | \
  np.add.at for both tables
right | dwte = np.zeros((vocab_size, C)) | zeros of float64
wrong | np.add.at(dwte, idx, dtoken) => dwte[idx] += dtoken
wrong | np.add.at(dwte, idx, dtoken) \
  => for b, t in np.ndindex(idx.shape):\n        dwte[idx[b, t]] = dx[b, t] \
  | at dwte[idx[b, t]] = dx[b, t]
wrong |     np.add.at(dwte, idx, dtoken)\n =>
wrong | np.add.at(dwte, idx, dposition)
wrong | np.add.at(dwte, idx.T, dtoken)
wrong | dposition = dx[0]
wrong | dposition = dx
wrong | dposition = dx.sum(axis=1)
wrong | dposition = dx.sum(axis=0) \
  => dposition = dx[0]\n    for b in range(1, B):\n        dposition += dx[b] \
  | at dposition += dx[b]
wrong | dwpe = np.zeros((T, C), dtype=dx.dtype, like=dx)
wrong | dwpe[:T] = dposition => dwpe[:] = dposition
wrong | dwpe[:T] = dposition => dwpe[T:] = dposition
wrong | dwte = np.zeros((block_size, C), dtype=dx.dtype, like=dx)
wrong | return dwpe, dwte
wrong | np.add.at(dwte, idx, 1.0)
wrong | dwte = dx[:] @@     np.add.at(dwte, idx, dtoken)\n =>
wrong | dwte = np.zeros((idx.max() + 1, C), dtype=dx.dtype) | at nowhere
wrong | dwpe[:T] = dposition => np.add.at(dwpe, idx, dx)
layer dropout
right | an if
    if mask is None:
        return dy
    return mask * dy
right | zeros and a scale
    dx = dy.copy()
    if mask is not None:
        dx[mask == 0] = 0
        dx *= mask.max()
    return dx
right | dx = dy * (1.0 if mask is None else mask) | a mask of one
wrong | dx = dy
wrong | dx = dy * mask
wrong | dx = dy if mask is None else dy * (mask > 0)
wrong | dx = dy if mask is None else dy / mask
wrong | dx = dy if mask is None else dy * mask * mask
wrong | dx = dy if mask is None else dy * mask \
  => dx = dy\n    if mask is not None:\n        dx *= mask | at dx *= mask
wrong | mask * dy => mask + dy | of an if
wrong | dx = dy * mask if mask is None else dy
"""

"""Embedding and dropout. dx (4, 5, 6), dwte (8, 6), dwpe (10, 6), idx (4, 5)."""

from tests.study.judge.corpus.solution import right, wrong

DTOKEN = "dtoken = dx"
DPOSITION = "dposition = dx.sum(axis=0)"
ZEROS_WPE = "dwpe = np.zeros((block_size, C), dtype=dx.dtype, like=dx)"
DWPE = "dwpe[:T] = dposition"
ZEROS_WTE = "dwte = np.zeros((vocab_size, C), dtype=dx.dtype, like=dx)"
ADD = "np.add.at(dwte, idx, dtoken)"
RETURN = "return dwte, dwpe"
DROPOUT = "dx = dy if mask is None else dy * mask"

SOLUTIONS = [
    right("embedding", "a one-hot matmul", body="""
        idx, vocab_size, block_size = cache
        B, T, C = dx.shape
        onehot = (idx.reshape(-1, 1) == np.arange(vocab_size)).astype(dx.dtype)
        dwte = onehot.T @ dx.reshape(-1, C)
        dwpe = np.pad(dx.sum(axis=0), ((0, block_size - T), (0, 0)))
        return dwte, dwpe
        """),
    right("embedding", "loops", body="""
        idx, vocab_size, block_size = cache
        B, T, C = dx.shape
        dwte = np.zeros((vocab_size, C), dtype=dx.dtype)
        dwpe = np.zeros((block_size, C), dtype=dx.dtype)
        for b in range(B):
            for t in range(T):
                dwte[idx[b, t]] += dx[b, t]
                dwpe[t] += dx[b, t]
        return dwte, dwpe
        """),
    right("embedding", "np.add.at for both tables",
          (DWPE, "np.add.at(dwpe, np.broadcast_to(np.arange(T), (B, T)), dx)")),
    right("embedding", "a loop over the vocabulary", body="""
        idx, vocab_size, block_size = cache
        B, T, C = dx.shape
        dwte = np.stack([dx[idx == token].sum(axis=0) for token in range(vocab_size)])
        dwpe = np.concatenate([dx.sum(axis=0), np.zeros((block_size - T, C), dtype=dx.dtype)])
        return dwte, dwpe
        """),
    right("embedding", "zeros of float64", (ZEROS_WTE, "dwte = np.zeros((vocab_size, C))"),
          note="dwte is float64 for float32 inputs"),

    wrong("embedding", "+= with repeated tokens", "only the last gradient was kept", (ADD, "dwte[idx] += dtoken")),
    wrong("embedding", "= with repeated tokens", "only the last gradient was kept", (ADD, "dwte[idx] = dx")),
    wrong("embedding", "a loop that assigns", "only the last gradient was kept",
          (ADD, "for b, t in np.ndindex(idx.shape):\n        dwte[idx[b, t]] = dx[b, t]"),
          at="dwte[idx[b, t]] = dx[b, t]"),
    wrong("embedding", "the tokens' gradients not added", "it is all zeros", ("    " + ADD + "\n", ""),
          at=("dwte = np.zeros", RETURN)),
    wrong("embedding", "dposition for dtoken", "uses dposition instead of dtoken",
          (ADD, "np.add.at(dwte, idx, dposition)")),
    wrong("embedding", "idx transposed", ("could not be broadcast", "idx should not be transposed", "shape mismatch"),
          (ADD, "np.add.at(dwte, idx.T, dtoken)")),
    wrong("embedding", "only the first batch entry", "the sum over B is missing", (DPOSITION, "dposition = dx[0]")),
    wrong("embedding", "dposition not summed", "the sum over B is missing", (DPOSITION, "dposition = dx  "),
          at="dposition = dx"),
    wrong("embedding", "dposition summed over time", "axis 1 instead of axis 0",
          (DPOSITION, "dposition = dx.sum(axis=1)")),
    wrong("embedding", "dposition is a mean", "a mean instead of a sum", (DPOSITION, "dposition = dx.mean(axis=0)")),
    wrong("embedding", "dposition summed in place", "changes dx, which belongs to the caller",
          (DPOSITION, "dposition = dx[0]\n    for b in range(1, B):\n        dposition += dx[b]"),
          at="dposition += dx[b]"),
    wrong("embedding", "dwpe only as long as the text", "its shape is (5, 6), not (10, 6)",
          (ZEROS_WPE, ZEROS_WPE.replace("block_size", "T"))),
    wrong("embedding", "all rows of dwpe set", "could not broadcast", (DWPE, "dwpe[:] = dposition")),
    wrong("embedding", "the last rows of dwpe set", ("dwpe[:T]", "[:T]"),
          (DWPE, "dwpe[T:] = dposition")),
    wrong("embedding", "the lengths swapped",
          ("uses block_size instead of vocab_size", "its shape is (10, 6), not (8, 6)"),
          (ZEROS_WTE, ZEROS_WTE.replace("vocab_size", "block_size"))),
    wrong("embedding", "results swapped", "the results are returned in another order", (RETURN, "return dwpe, dwte")),
    wrong("embedding", "a gradient for idx", "returned 3 results, not 2 (dwte, dwpe)",
          (RETURN, "return None, dwte, dwpe"), at=None),
    wrong("embedding", "dwte of counts",
          ("the factor dtoken is missing", "uses 1.0 instead of dtoken", "1.0 instead of dtoken"),
          (ADD, "np.add.at(dwte, idx, 1.0)")),
    wrong("embedding", "no table, the rows that were read", "its shape is (4, 5, 6), not (8, 6)",
          (ZEROS_WTE, "dwte = dx[:]"),
          ("    " + ADD + "\n", "")),

    right("dropout", "an if", body="""
        if mask is None:
            return dy
        return mask * dy
        """),
    right("dropout", "zeros and a scale", body="""
        dx = dy.copy()
        if mask is not None:
            dx[mask == 0] = 0
            dx *= mask.max()
        return dx
        """),
    right("dropout", "a mask of one", (DROPOUT, "dx = dy * (1.0 if mask is None else mask)")),
    wrong("dropout", "the mask ignored", "the factor mask is missing", (DROPOUT, "dx = dy")),
    wrong("dropout", "no branch without a mask", "without a mask: ", (DROPOUT, "dx = dy * mask")),
    wrong("dropout", "not scaled up",
          ("uses mask > 0 instead of mask", "in place of mask", "0.7 times what it should be", "1 / (1 - p)"),
          (DROPOUT, "dx = dy if mask is None else dy * (mask > 0)")),
    wrong("dropout", "divided by the mask", ("divided by mask instead of multiplied", "NaN or infinity"),
          (DROPOUT, "dx = dy if mask is None else dy / mask")),
    wrong("dropout", "the mask twice", "the factor mask does not belong there",
          (DROPOUT, "dx = dy if mask is None else dy * mask * mask")),
    wrong("dropout", "dy changed in place", "changes dy, which belongs to the caller",
          (DROPOUT, "dx = dy\n    if mask is not None:\n        dx *= mask"), at="dx *= mask"),
    wrong("dropout", "the condition the wrong way round", ("the factor mask is missing", "the condition"),
          (DROPOUT, "dx = dy * mask if mask is None else dy")),
]

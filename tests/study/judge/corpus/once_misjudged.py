"""Solutions that were once accepted, misnamed, unnamed, or given hints about another line."""

from tests.study.judge.corpus.solution import wrong

LINEAR = [
    wrong("a buffer that is returned in each call", "has changed: make a new array in each call", ("drows = dy_rows @ "
          "weight.T", "drows = np.matmul(dy_rows, weight.T, out=linear_backward.__dict__.setdefault(x.shape, "
          "np.empty_like(rows)))"), at=None, key=""),
    wrong("squeeze", "its shape is",
          ("dx = drows.reshape(x.shape)", "dx = drows.reshape(x.shape).squeeze()"), key="dx"),
    wrong("dbias bound in one branch only", "dbias", ("dbias = dy_rows.sum(axis=0) if has_bias else None",
          "if has_bias:\n        dbias = dy_rows.sum(axis=0)"), at="return dx, dweight, dbias", key=""),
]

HEAD = [
    wrong("only the last position's gradient", "it is right only at index 4 of axis 1", ("dx = drows.reshape(x.shape)",
          "dx = np.zeros_like(x)\n    dx[:, -1] = dlogits[:, -1] @ weight"), at="dx[:, -1] = ", key=""),
]

GELU_TANH = [
    wrong("the derivative of the exact form", "the derivative of the other GELU", at="return dy", body="""
        x, tanh = cache
        inner = SQRT_2_OVER_PI * (x + 0.044715 * x**3)
        density = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
        return dy * (0.5 * (1.0 + np.tanh(inner)) + x * density)
        """),
    wrong("2 / 3 too many", "the factor 2.0 / 3.0 does not belong there",
          "dx_inside = dinner * (SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * (x * x))) * 2.0 / 3.0"),
]

GELU_EXACT = [
    wrong("the root of 2, times pi", "brackets are missing: np.exp(-0.5 * (x * x)) / np.sqrt(2.0 * np.pi)",
          "density = np.exp(-0.5 * (x * x)) / np.sqrt(2.0) * np.pi"),
    wrong("the derivative of the tanh form", "the derivative of the other GELU", at="return dy", body="""
        x, phi = cache
        inner = SQRT_2_OVER_PI * (x + 0.044715 * x**3)
        tanh = np.tanh(inner)
        slope = SQRT_2_OVER_PI * (1.0 + 0.134145 * x * x)
        return dy * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh**2) * slope)
        """),
]

LAYERNORM = [
    wrong("long way: -1/2 forgotten", "the factor -0.5 is missing", ("dvar = drstd * -0.5 * rstd**3",
          "dvar = drstd * rstd**3"), of="the long way", key=""),
    wrong("both means over the batch", "axis 0 instead of axis -1", at="dx = rstd", body="""
        xhat, rstd, weight, has_bias = cache
        dbias = dy.sum(axis=(0, 1)) if has_bias else None
        dweight = (dy * xhat).sum(axis=(0, 1))
        g = dy * weight
        dx = rstd * (g - g.mean(axis=0, keepdims=True) - xhat * (g * xhat).mean(axis=0, keepdims=True))
        return dx, dweight, dbias
        """),
    wrong("the projection divided by the length of xhat", "uses along instead of mean_dxhat_xhat",
          at="dx = rstd", body="""
        xhat, rstd, weight, has_bias = cache
        dbias = dy.sum(axis=(0, 1)) if has_bias else None
        dweight = (dy * xhat).sum(axis=(0, 1))
        g = dy * weight
        along = (g * xhat).sum(axis=-1, keepdims=True) / (xhat * xhat).sum(axis=-1, keepdims=True)
        dx = rstd * (g - g.mean(axis=-1, keepdims=True) - xhat * along)
        return dx, dweight, dbias
        """),
    wrong("a difference in the fifth digit", "0.99", ("dx = rstd * (dxhat", "dx = 0.99999 * rstd * (dxhat")),
]

ATTENTION = [
    wrong("the scale written anew", "uses 1 / np.sqrt(q.shape[-1]) instead of scale",
          "dscores = dscaled / np.sqrt(q.shape[-1])"),
    wrong("kept in the softmax's backward", "uses kept instead of att", ("dot = (datt * att)", "dot = (datt * kept)"),
          "dmasked = kept * (datt - dot)", at="dmasked = kept"),
    wrong("dv from att", "uses att instead of kept", ("    kept = att if dropout_mask is None else att * dropout_mask"
          "          # (B, H, T, S)\n", ""), "dv = att.swapaxes(-1, -2) @ dmix"),
]

EMBEDDING = [
    wrong("a row for each token up to the last that was read", "its shape is",
          "dwte = np.zeros((idx.max() + 1, C), dtype=dx.dtype)", at=None),
    wrong("dwpe by the tokens' ids", "dwpe", ("dwpe[:T] = dposition", "np.add.at(dwpe, idx, dx)"), key="dwpe[:T]"),
]

DIFFERENCE = [
    wrong("a step of its own", "uses 1e-13 instead of h", ("    up = ", "    h = 1e-13\n    up = "), at="h = 1e-13"),
]

CHAIN = [
    wrong("degrees", "np.degrees does not belong there", "du = dv * np.cos(np.degrees(u))"),
]

CROSS_ENTROPY = [
    wrong("only the target's logit", "only the target's logit gets a gradient", at="np.zeros_like", body="""
        probs, column, counted, count = cache
        dlosses = np.where(counted, dloss / count, 0.0)
        dlogits = np.zeros_like(probs)
        at_target = np.take_along_axis(probs, column, axis=-1)
        np.put_along_axis(dlogits, column, dlosses * (at_target - 1.0), axis=-1)
        return dlogits
        """),
]

LORA = [
    wrong("the frozen path forgotten", "the term dfrozen @ weight.T is missing", "drows = dlow @ lora_a.T",
          key="drows"),
    wrong("the frozen path forgotten, in one line", "the term dfrozen @ weight.T is missing",
          at="dx = ", key="drows", body="""
        x, weight, lora_a, lora_b, low = cache
        rows = x.reshape(-1, x.shape[-1])
        dy_rows = dy.reshape(-1, dy.shape[-1])
        dlow = dy_rows @ lora_b.T
        dx = (dlow @ lora_a.T).reshape(x.shape)
        return dx, rows.T @ dlow, low.T @ dy_rows
        """),
]

MLP = [
    wrong("always the tanh form, by its name", "always the tanh form",
          "dhidden = ops.gelu_tanh_backward(dactive, gelu)"),
]

BLOCK = [
    wrong("both residual connections forgotten", "the term dx_out is missing", "dx_mid = dx_mid_normed",
          "dx = dx_normed"),
    wrong("the branches side by side", "uses dx_out instead of dx_mid", "ddropped_1 = dx_out"),
]

GPT = [
    wrong("the caches popped", "changes", ("dx, dp[\"h\"][i] = block_backward(dx, blocks[i], ops)",
          "dx, dp[\"h\"][i] = block_backward(dx, blocks.pop(), ops)"), at="blocks.pop()", key=""),
    wrong("the caches reversed in place", "changes", ("    for i in reversed(range(config.n_layer)):",
          "    blocks.reverse()\n    for i in range(config.n_layer):"), at="blocks.reverse()", key=""),
    wrong("the blocks numbered from the end", "h.", ('dp["h"][i] = block_backward(dx, blocks[i], ops)',
          'dp["h"][config.n_layer - 1 - i] = block_backward(dx, blocks[i], ops)'), key=""),
    wrong("a weight added to the embedding's in any case", "dwte", ("    if config.tie_word_embeddings:\n"
          "        dwte = dwte + dhead_weight          # the matrix is used twice: by the embedding and by the head\n"
          "    else:\n", "    dwte = dwte + dhead_weight\n    if not config.tie_word_embeddings:\n"),
          at="dwte = dwte + dhead_weight"),
    wrong("ln_e not asked for", "cannot unpack non-iterable NoneType", ("    if ln_e is not None:\n"
          "        dx, dln_e_weight, dln_e_bias = ops.layernorm_backward(dx, ln_e)\n" "        ",
          "    dx, dln_e_weight, dln_e_bias = ops.layernorm_backward(dx, ln_e)\n    "),
          at="dx, dln_e_weight, dln_e_bias = ops.layernorm_backward(dx, ln_e)", key=""),
]

SOLUTIONS = {"linear": LINEAR, "head": HEAD, "gelu_tanh": GELU_TANH, "gelu_exact": GELU_EXACT, "layernorm": LAYERNORM,
             "attention": ATTENTION, "embedding": EMBEDDING, "difference": DIFFERENCE, "chain": CHAIN,
             "cross_entropy": CROSS_ENTROPY, "lora": LORA, "mlp": MLP, "block": BLOCK, "gpt": GPT}

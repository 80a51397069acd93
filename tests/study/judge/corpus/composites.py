"""MLP, self-attention, transformer block, and the whole model. x (4, 5, 6), F = 9."""

from tests.study.judge.corpus.solution import right, wrong

GELU = 'gelu_backward = ops.gelu_tanh_backward if config.activation == "gelu_tanh" else ops.gelu_exact_backward'
DHIDDEN = "dhidden = gelu_backward(dactive, gelu)"
DC_FC = "dx, dc_fc_weight, dc_fc_bias = ops.linear_backward(dhidden, c_fc)"
DC_PROJ = "dactive, dc_proj_weight, dc_proj_bias = ops.linear_backward(dy, c_proj)"

DMERGED = "dmerged, dc_proj_weight, dc_proj_bias = ops.linear_backward(dy, c_proj)"
DMIX = "dmix = dmerged.reshape(B, T, H, D).transpose(0, 2, 1, 3)"
DQKV_PARTS = "dq, dk, dv = ops.attention_backward(dmix, attention)"
DHEADS = "dheads = np.stack([d.transpose(0, 2, 1, 3) for d in (dq, dk, dv)], axis=2)"
DQKV = "dqkv = dheads.reshape(B, T, 3 * H * D)"

DMLP_OUT = "dmlp_out = ops.dropout_backward(ddropped_2, drop_2)"
DNORM_2 = "dnorm_2, dp_mlp = mlp_backward(dmlp_out, mlp, ops)"
DX_MID_NORMED = "dx_mid_normed, dln_2_weight, dln_2_bias = ops.layernorm_backward(dnorm_2, ln_2)"
DX_MID = "dx_mid = dx_out + dx_mid_normed"
DATTENDED = "dattended = ops.dropout_backward(ddropped_1, drop_1)"
DNORM_1 = "dnorm_1, dp_attn = self_attention_backward(dattended, attn, ops)"
DX_NORMED = "dx_normed, dln_1_weight, dln_1_bias = ops.layernorm_backward(dnorm_1, ln_1)"
DX = "dx = dx_mid + dx_normed"
LN_1 = '"ln_1": {"weight": dln_1_weight, "bias": dln_1_bias}'
LN_2 = '"ln_2": {"weight": dln_2_weight, "bias": dln_2_bias}'

REVERSED = "for i in reversed(range(config.n_layer)):"
BLOCK = 'dx, dp["h"][i] = block_backward(dx, blocks[i], ops)'
DROP = "dx = ops.dropout_backward(dx, drop)"
TIED = "dwte = dwte + dhead_weight"
LN_F_CALL = "dx, dln_f_weight, dln_f_bias = ops.layernorm_backward(dx, ln_f)"
LN_F = 'dp["ln_f"] = {"weight": dln_f_weight, "bias": dln_f_bias}'
LM_HEAD = 'dp["lm_head"] = {"bias": dhead_bias}'
TABLES = '{"weight": dwte}, {"weight": dwpe}'
EMBEDDING = "dwte, dwpe = ops.embedding_backward(dx, embedding)"

SOLUTIONS = [
    right("mlp", "a tree made in steps", body="""
        c_fc, gelu, c_proj, config = cache
        dp = {"c_fc": {}, "c_proj": {}}
        d, dp["c_proj"]["weight"], dp["c_proj"]["bias"] = ops.linear_backward(dy, c_proj)
        if config.activation == "gelu_tanh":
            d = ops.gelu_tanh_backward(d, gelu)
        else:
            d = ops.gelu_exact_backward(d, gelu)
        dx, dp["c_fc"]["weight"], dp["c_fc"]["bias"] = ops.linear_backward(d, c_fc)
        return dx, dp
        """),
    right("mlp", "the linear layers written out", body="""
        (x, W_fc, has_fc_bias), gelu, (active, W_proj, has_proj_bias), config = cache
        B, T, C = x.shape
        F = W_fc.shape[1]
        dactive = dy @ W_proj.T
        undo_gelu = {"gelu_tanh": ops.gelu_tanh_backward}.get(config.activation, ops.gelu_exact_backward)
        dhidden = undo_gelu(dactive, gelu)
        dx = dhidden @ W_fc.T
        dp = {"c_proj": {"weight": active.reshape(-1, F).T @ dy.reshape(-1, C),
                         "bias": dy.sum(axis=(0, 1)) if has_proj_bias else None},
              "c_fc": {"weight": x.reshape(-1, C).T @ dhidden.reshape(-1, F),
                       "bias": dhidden.sum(axis=(0, 1)) if has_fc_bias else None}}
        return dx, dp
        """),
    wrong("mlp", "GELU forgotten", ("gelu_backward", "uses dactive instead of dhidden"),
          (DHIDDEN, "dhidden = dactive")),
    wrong("mlp", "dy through GELU", ("uses dy instead of dactive", "could not be broadcast"),
          (DHIDDEN, "dhidden = gelu_backward(dy, gelu)")),
    wrong("mlp", "a layer that ops lacks", "AttributeError: module 'npgpt.layers' has no attribute 'gelu_backward'",
          (DHIDDEN, "dhidden = ops.gelu_backward(dactive, gelu)")),
    wrong("mlp", "the forward's gelu called", ("ops.gelu_tanh_forward", "gelu_forward"),
          (DHIDDEN, "dhidden, _ = ops.gelu_tanh_forward(dactive)")),
    wrong("mlp", "the linear layers' caches swapped", ("uses c_fc instead of c_proj", "6 is not 9"),
          (DC_PROJ, DC_PROJ.replace("(dy, c_proj)", "(dy, c_fc)")), (DC_FC,
          DC_FC.replace("(dhidden, c_fc)", "(dhidden, c_proj)"))),
    wrong("mlp", "always the tanh form", "with gelu and without biases: ",
          (GELU, "gelu_backward = ops.gelu_tanh_backward"),
          at=("gelu_backward = ops.gelu_tanh_backward", DHIDDEN)),
    wrong("mlp", "always the exact form", ("gelu_exact", "gelu_tanh"),
          (GELU, "gelu_backward = ops.gelu_exact_backward"),
          at=("gelu_backward = ops.gelu_exact_backward", DHIDDEN)),
    wrong("mlp", "the weights in each other's slots", "the gradient of another variable",
          ('"c_fc": {"weight": dc_fc_weight', '"c_fc": {"weight": dc_proj_weight'),
          ('"c_proj": {"weight": dc_proj_weight', '"c_proj": {"weight": dc_fc_weight'),
          at='"c_fc": {"weight": dc_proj_weight'),
    wrong("mlp", "a bias missing in the tree", "c_proj.bias is missing in dp",
          ('{"weight": dc_proj_weight, "bias": dc_proj_bias}', '{"weight": dc_proj_weight}'), at=None),
    wrong("mlp", "a key misspelt", ("dp has c_fc.wieght, which is no parameter", "c_fc.weight is missing in dp"),
          ('"c_fc": {"weight"', '"c_fc": {"wieght"'), at=None),
    wrong("mlp", "dx not returned", "returned 1 result, not 2 (dx, dp)", ("return dx, {", "return {"), at=None),
    wrong("mlp", "dp before dx", "the results are returned in another order", body="""
        c_fc, gelu, c_proj, config = cache
        gelu_backward = ops.gelu_tanh_backward if config.activation == "gelu_tanh" else ops.gelu_exact_backward
        dactive, dc_proj_weight, dc_proj_bias = ops.linear_backward(dy, c_proj)
        dhidden = gelu_backward(dactive, gelu)
        dx, dc_fc_weight, dc_fc_bias = ops.linear_backward(dhidden, c_fc)
        dp = {"c_fc": {"weight": dc_fc_weight, "bias": dc_fc_bias},
              "c_proj": {"weight": dc_proj_weight, "bias": dc_proj_bias}}
        return dp, dx
        """, at="return dp, dx"),
    wrong("mlp", "weight and bias unpacked in the wrong order", ("another order", "the gradient of another variable"),
          (DC_FC, DC_FC.replace("dc_fc_weight, dc_fc_bias", "dc_fc_bias, dc_fc_weight"))),
    wrong("mlp", "dc_proj_weight averaged", "divided by N (20), which does not belong there",
          ('"c_proj": {"weight": dc_proj_weight', '"c_proj": {"weight": dc_proj_weight / (dy.shape[0] * dy.shape[1])')),

    right("self_attention", "swapaxes, and slices filled", body="""
        c_attn, attention, c_proj, (B, H, T, D) = cache
        dp = {}
        dmerged, dw, db = ops.linear_backward(dy, c_proj)
        dp["c_proj"] = {"weight": dw, "bias": db}
        dmix = dmerged.reshape(B, T, H, D).swapaxes(1, 2)
        parts = ops.attention_backward(dmix, attention)
        dheads = np.empty((B, T, 3, H, D), dtype=dy.dtype)
        for i, part in enumerate(parts):
            dheads[:, :, i] = part.swapaxes(1, 2)
        dx, dw, db = ops.linear_backward(dheads.reshape(B, T, -1), c_attn)
        dp["c_attn"] = {"weight": dw, "bias": db}
        return dx, dp
        """),
    right("self_attention", "the three parts side by side",
          (DHEADS, "parts = [np.moveaxis(d, 1, 2).reshape(B, T, H * D) for d in (dq, dk, dv)]"),
          (DQKV, "dqkv = np.concatenate(parts, axis=-1)")),
    right("self_attention", "stacked first, transposed then",
          (DHEADS, "dheads = np.stack((dq, dk, dv)).transpose(1, 3, 0, 2, 4)")),
    wrong("self_attention", "heads reshaped without a transpose", ("in another order", "transpose(0, 2, 1, 3)"),
          (DMIX, "dmix = dmerged.reshape(B, H, T, D)")),
    wrong("self_attention", "heads not transposed back",
          ("could not be broadcast", "transpose", "its shape is (4, 5, 2, 3), not (4, 2, 5, 3)"),
          (DMIX, "dmix = dmerged.reshape(B, T, H, D)")),
    wrong("self_attention", "H and D swapped", ("in another order", "reshape(B, T, H, D)"),
          (DMIX, "dmix = dmerged.reshape(B, T, D, H).transpose(0, 3, 1, 2)")),
    wrong("self_attention", "q, k, v not transposed before the stack", ("its shape is", "transpose"),
          (DHEADS, "dheads = np.stack([dq, dk, dv], axis=2)")),
    wrong("self_attention", "stacked on the wrong axis",
          ("axis 0 instead of axis 2", "its shape is (3, 4, 5, 2, 3), not (4, 5, 3, 2, 3)"),
          (DHEADS, DHEADS.replace("axis=2", "axis=0"))),
    wrong("self_attention", "stacked inside the heads",
          ("axis 3 instead of axis 2", "its shape is (4, 5, 2, 3, 3), not (4, 5, 3, 2, 3)"),
          (DHEADS, DHEADS.replace("axis=2", "axis=3"))),
    wrong("self_attention", "stacked in the order k, q, v",
          ("uses dk instead of dq", "in another order", "dq, dk, dv"),
          (DHEADS, DHEADS.replace("(dq, dk, dv)", "(dk, dq, dv)"))),
    wrong("self_attention", "unpacked in the order q, v, k",
          ("it is dv, the gradient of another variable", "in another order", "dq, dk, dv"),
          (DQKV_PARTS, "dq, dv, dk = ops.attention_backward(dmix, attention)")),
    wrong("self_attention", "dqkv as wide as x", "cannot reshape", (DQKV, "dqkv = dheads.reshape(B, T, H * D)")),
    wrong("self_attention", "dy taken for dmerged", "uses dy instead of dmerged",
          (DMIX, DMIX.replace("dmerged.", "dy."))),
    wrong("self_attention", "the projection's cache for c_attn", ("uses c_proj instead of c_attn", "18 is not 6"),
          ("ops.linear_backward(dqkv, c_attn)", "ops.linear_backward(dqkv, c_proj)")),
    wrong("self_attention", "biases in each other's slots", "the gradient of another variable",
          ('"weight": dc_attn_weight, "bias": dc_attn_bias', '"weight": dc_attn_weight, "bias": dc_proj_bias'),
          ('"weight": dc_proj_weight, "bias": dc_proj_bias', '"weight": dc_proj_weight, "bias": dc_attn_bias'),
          at='"weight": dc_attn_weight, "bias": dc_proj_bias'),
    wrong("self_attention", "c_proj missing in the tree",
          ("c_proj.weight is missing in dp", "c_proj.bias is missing in dp"),
          ('dc_attn_bias},\n                "c_proj": {"weight": dc_proj_weight, "bias": dc_proj_bias}}',
          "dc_attn_bias}}"), at=None),

    right("block", "gradients of the stream added in place, in a copy", body="""
        ln_1, attn, drop_1, ln_2, mlp, drop_2 = cache
        dp = {"ln_1": {}, "ln_2": {}}
        dx = dx_out.copy()
        d, dp["mlp"] = mlp_backward(ops.dropout_backward(dx, drop_2), mlp, ops)
        d, dp["ln_2"]["weight"], dp["ln_2"]["bias"] = ops.layernorm_backward(d, ln_2)
        dx += d
        d, dp["attn"] = self_attention_backward(ops.dropout_backward(dx, drop_1), attn, ops)
        d, dp["ln_1"]["weight"], dp["ln_1"]["bias"] = ops.layernorm_backward(d, ln_1)
        dx += d
        return dx, dp
        """),
    right("block", "added to arrays of its own",
          (DX_MID + "  ", "dx_mid_normed += dx_out\n    dx_mid = dx_mid_normed  "),
          (DX + "  ", "dx_normed += dx_mid\n    dx = dx_normed  ")),
    right("block", "the masks multiplied", (DMLP_OUT, "dmlp_out = dx_out if drop_2 is None else dx_out * drop_2"),
          (DATTENDED, "dattended = dx_mid if drop_1 is None else dx_mid * drop_1")),
    wrong("block", "the last dropout skipped", ("the factor drop_2 is missing", "dropout_backward"),
          (DMLP_OUT, "dmlp_out = ddropped_2")),
    wrong("block", "the first dropout skipped", ("the factor drop_1 is missing", "dropout_backward"),
          (DATTENDED, "dattended = dx_mid")),
    wrong("block", "the wrong dropout's cache", "uses drop_1 instead of drop_2",
          (DMLP_OUT, DMLP_OUT.replace("drop_2)", "drop_1)"))),
    wrong("block", "the wrong dropout's cache, after attention", "uses drop_2 instead of drop_1",
          (DATTENDED, DATTENDED.replace("drop_1)", "drop_2)"))),
    wrong("block", "the mask multiplied without asking for None", "without a mask, dropout and biases: ",
          (DMLP_OUT, "dmlp_out = ddropped_2 * drop_2")),
    wrong("block", "the wrong LayerNorm's cache", "uses ln_1 instead of ln_2",
          (DX_MID_NORMED, DX_MID_NORMED.replace("ln_2)", "ln_1)"))),
    wrong("block", "ln_2 for ln_1", "uses ln_2 instead of ln_1", (DX_NORMED, DX_NORMED.replace("ln_1)", "ln_2)"))),
    wrong("block", "the residual stream forgotten in x_mid", "the term dx_out is missing",
          (DX_MID, "dx_mid = dx_mid_normed")),
    wrong("block", "the MLP's branch forgotten in x_mid", "the term dx_mid_normed is missing",
          (DX_MID, "dx_mid = dx_out"), at="dx_mid = dx_out"),
    wrong("block", "the residual stream forgotten in x", "the term dx_mid is missing", (DX, "dx = dx_normed")),
    wrong("block", "dx_out for dx_mid", "uses dx_out instead of dx_mid", (DX, "dx = dx_out + dx_normed")),
    wrong("block", "the stream counted twice", ("the term dx_out does not belong there",),
          (DX, "dx = dx_out + dx_mid + dx_normed")),
    wrong("block", "the branch doubled", ("2 times what it should be", "2.0 does not belong there", "2.0 instead of"),
          (DX_MID, "dx_mid = dx_out + 2.0 * dx_mid_normed")),
    wrong("block", "dx_mid is dx_out, changed in place", "changes dx_out, which belongs to the caller",
          (DX_MID, "dx_mid = dx_out\n    dx_mid += dx_mid_normed"), at="dx_mid += dx_mid_normed"),
    wrong("block", "attention gets dx_out", "uses dx_out instead of dx_mid",
          ("ddropped_1 = dx_mid", "ddropped_1 = dx_out")),
    wrong("block", "attention before the MLP", ("in the reverse order", "uses dx_out instead of dx_mid"), body="""
        ln_1, attn, drop_1, ln_2, mlp, drop_2 = cache
        dattended = ops.dropout_backward(dx_out, drop_1)
        dnorm_1, dp_attn = self_attention_backward(dattended, attn, ops)
        dx_normed, dln_1_weight, dln_1_bias = ops.layernorm_backward(dnorm_1, ln_1)
        dx_mid = dx_out + dx_normed
        dmlp_out = ops.dropout_backward(dx_mid, drop_2)
        dnorm_2, dp_mlp = mlp_backward(dmlp_out, mlp, ops)
        dx_mid_normed, dln_2_weight, dln_2_bias = ops.layernorm_backward(dnorm_2, ln_2)
        dx = dx_mid + dx_mid_normed
        return dx, {"ln_1": {"weight": dln_1_weight, "bias": dln_1_bias}, "attn": dp_attn,
                    "ln_2": {"weight": dln_2_weight, "bias": dln_2_bias}, "mlp": dp_mlp}
        """, at="dattended = ops.dropout_backward(dx_out, drop_1)"),
    wrong("block", "LayerNorm's backward skipped", ("layernorm_backward", "uses dnorm_2 instead of dx_mid_normed"),
          (DX_MID, "dx_mid = dx_out + dnorm_2")),
    wrong("block", "the LayerNorms in each other's slots", "the gradient of another variable",
          (LN_1, LN_1.replace("dln_1", "dln_2")), (LN_2, LN_2.replace("dln_2", "dln_1"))),
    wrong("block", "the MLP missing in the tree",
          ("mlp.c_fc.weight is missing in dp", "is missing in dp"), (', "mlp": dp_mlp}', "}"), at=None),
    wrong("block", "the second LayerNorm overwrites the first", ("ln_1.weight is missing in dp", "is missing in dp"),
          ('"ln_1": {"weight": dln_1_weight', '"ln_2": {"weight": dln_1_weight'), at=None),

    right("gpt", "blocks popped from the end", body="""
        embedding, ln_e, drop, blocks, ln_f, head, config = cache
        dx, dE, db = ops.head_backward(dlogits, head)
        dp = {"lm_head": {"bias": db}, "h": {}}
        if ln_f is not None:
            dx, w, b = ops.layernorm_backward(dx, ln_f)
            dp["ln_f"] = {"weight": w, "bias": b}
        for i, block in reversed(list(enumerate(blocks))):
            dx, dp["h"][i] = block_backward(dx, block, ops)
        dx = ops.dropout_backward(dx, drop)
        if ln_e is not None:
            dx, w, b = ops.layernorm_backward(dx, ln_e)
            dp["ln_e"] = {"weight": w, "bias": b}
        dwte, dwpe = ops.embedding_backward(dx, embedding)
        if config.tie_word_embeddings:
            dwte += dE
        else:
            dp["lm_head"]["weight"] = dE
        return {**dp, "wte": {"weight": dwte}, "wpe": {"weight": dwpe}}
        """),
    right("gpt", "a while loop, and the embedding added to the head",
          (REVERSED, "i = config.n_layer\n    while i > 0:\n        i -= 1"),
          (TIED, "dwte = dhead_weight + dwte")),
    wrong("gpt", "the blocks in forward order", ("reversed", "in reverse order"),
          (REVERSED, "for i in range(config.n_layer):"),
          at=("    for i in range(config.n_layer):", BLOCK)),
    wrong("gpt", "the head's part of a tied weight forgotten", "the term dhead_weight is missing",
          (TIED, "dwte = dwte"), at="dwte = dwte"),
    wrong("gpt", "the head's part overwrites the embedding's", "the term dwte is missing",
          (TIED, "dwte = dhead_weight")),
    wrong("gpt", "the tied weight not asked for", ("lm_head.weight is missing in dp", "lm_head.weight"),
          ("    if config.tie_word_embeddings:\n        dwte = dwte + dhead_weight          "
           "# the matrix is used twice: by the embedding and by the head\n"
           '    else:\n        dp["lm_head"]["weight"] = dhead_weight\n', "    dwte = dwte + dhead_weight\n"), at=None),
    wrong("gpt", "a weight for a tied head", "dp has lm_head.weight, which is no parameter",
          (LM_HEAD, LM_HEAD.replace("{", '{"weight": dhead_weight, ')), at=None),
    wrong("gpt", "the head's bias forgotten", "lm_head.bias is missing in dp",
          (LM_HEAD, 'dp["lm_head"] = {}'), at=None),
    wrong("gpt", "dropout after the embedding skipped", ("the factor drop is missing", "dropout_backward"),
          ("    " + DROP + "\n", ""),
          at=("ops.layernorm_backward(dx, ln_e)", EMBEDDING)),
    wrong("gpt", "the final LayerNorm not asked for",
          "with an untied head, without biases, dropout and extra LayerNorms: ",
          (f"    if ln_f is not None:\n        {LN_F_CALL}\n        ", f"    {LN_F_CALL}\n    "), at=LN_F_CALL),
    wrong("gpt", "dx of the final LayerNorm thrown away", ("layernorm_backward", "thrown away"),
          (LN_F_CALL, LN_F_CALL.replace("dx, dln", "_, dln"))),
    wrong("gpt", "dx of the blocks thrown away", ("block_backward", "thrown away"),
          (BLOCK, BLOCK.replace("dx, dp", "_, dp", 1))),
    wrong("gpt", "always the first block's cache", ("blocks[0] in place of blocks[i]", "0 instead of i"),
          (BLOCK, BLOCK.replace("blocks[i]", "blocks[0]"))),
    wrong("gpt", "the blocks' gradients in a list",
          ("dp has h, which is no parameter", "is missing in dp", "is a list"),
          ('dp = {"h": {}}', 'dp = {"h": []}'),
          (BLOCK, 'dx, dp_block = block_backward(dx, blocks[i], ops)\n        dp["h"].insert(0, dp_block)'), at=None),
    wrong("gpt", "each block overwrites the one before", ("h.0.", "is missing in dp"),
          (BLOCK, BLOCK.replace('dp["h"][i]', 'dp["h"]')), at=None),
    wrong("gpt", "the LayerNorms' caches swapped", "uses ln_e instead of ln_f",
          (LN_F_CALL, LN_F_CALL.replace("(dx, ln_f)", "(dx, ln_e)"))),
    wrong("gpt", "the LayerNorms in each other's slots", "the gradient of another variable",
          (LN_F, LN_F.replace('dp["ln_f"]', 'dp["ln_e"]')),
          ('dp["ln_e"] = {"weight": dln_e', 'dp["ln_f"] = {"weight": dln_e')),
    wrong("gpt", "wpe and wte swapped", ("the gradient of another variable", "in another order"),
          (TABLES, '{"weight": dwpe}, {"weight": dwte}')),
    wrong("gpt", "dropout before the embedding's LayerNorm",
          ("uses drop in place of", "another order of calls", "in the reverse order", "the factor drop"),
          ("    " + DROP + "\n", ""), (EMBEDDING, f"{DROP}\n    {EMBEDDING}"),
          at=("ops.layernorm_backward(dx, ln_e)", DROP)),
    wrong("gpt", "wpe without its dictionary", ("wpe.weight is missing in dp", "dp has wpe, which is no parameter"),
          (TABLES, '{"weight": dwte}, dwpe'), at=None),
]

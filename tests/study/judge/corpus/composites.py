"""MLP, self-attention, transformer block, and the whole model. x (4, 5, 6), F = 9."""

from tests.study.judge.corpus.solution import UNKNOWN, right, wrong

MLP = [
    right("a tree made in steps", body="""
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
    wrong("it is still dactive, the gradient of another variable", "dhidden = dactive"),
    wrong("uses dy instead of dactive", "dhidden = gelu_backward(dy, gelu)"),
    wrong("AttributeError: module 'npgpt.layers' has no attribute 'gelu_backward'",
          "dhidden = ops.gelu_backward(dactive, gelu)"),
    wrong(UNKNOWN, ("dhidden = gelu_backward(dactive, gelu)", "dhidden, _ = ops.gelu_tanh_forward(dactive)")),
    wrong("c_fc and c_proj are swapped", "dactive, dc_proj_weight, dc_proj_bias = ops.linear_backward(dy, c_fc)",
          "dx, dc_fc_weight, dc_fc_bias = ops.linear_backward(dhidden, c_proj)",
          at="c_fc, gelu, c_proj, config = cache"),
    wrong("always the tanh form", "gelu_backward = ops.gelu_tanh_backward", at=None),
    wrong("dc_proj_weight and dc_fc_weight are swapped",
          ('"c_fc": {"weight": dc_fc_weight', '"c_fc": {"weight": dc_proj_weight'),
          ('"c_proj": {"weight": dc_proj_weight', '"c_proj": {"weight": dc_fc_weight')),
    wrong("c_proj.bias is missing in dp",
          ('{"weight": dc_proj_weight, "bias": dc_proj_bias}', '{"weight": dc_proj_weight}')),
    wrong("c_fc.weight is missing in dp", ('"c_fc": {"weight"', '"c_fc": {"wieght"')),
    wrong("mlp_backward returned a dict, not 2 (dx, dp)", ("return dx, {", "return {")),
    wrong("the results are returned in another order", "return dp, dx", of="a tree made in steps"),
    wrong("divided by dy.shape[0] * dy.shape[1], which does not belong there",
          ('"c_proj": {"weight": dc_proj_weight', '"c_proj": {"weight": dc_proj_weight / (dy.shape[0] * dy.shape[1])')),
]

SELF_ATTENTION = [
    right("swapaxes, and slices filled", body="""
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
    right("the three parts side by side", ("dheads = np.stack([d.transpose(0, 2, 1, 3) for d in (dq, dk, dv)], axis=2)",
          "parts = [np.moveaxis(d, 1, 2).reshape(B, T, H * D) for d in (dq, dk, dv)]"),
          "dqkv = np.concatenate(parts, axis=-1)"),
    right("stacked first, transposed then", "dheads = np.stack((dq, dk, dv)).transpose(1, 3, 0, 2, 4)"),
    wrong("the heads come out in the wrong order", "dmix = dmerged.reshape(B, H, T, D)"),
    wrong("its shape is (4, 5, 2, 3), not (4, 2, 5, 3)", "dmix = dmerged.reshape(B, T, H, D)"),
    wrong("in another order", "dmix = dmerged.reshape(B, T, D, H).transpose(0, 3, 1, 2)"),
    wrong("its shape is", "dheads = np.stack([dq, dk, dv], axis=2)"),
    wrong("dq and dk are swapped", "dheads = np.stack([d.transpose(0, 2, 1, 3) for d in (dk, dq, dv)], axis=2)"),
    wrong("dv and dk are swapped", ("dq, dk, dv = ops.attention_backward(dmix, attention)",
          "dq, dv, dk = ops.attention_backward(dmix, attention)")),
    wrong("cannot reshape", "dqkv = dheads.reshape(B, T, H * D)"),
    wrong("uses dy instead of dmerged", "dmix = dy.reshape(B, T, H, D).transpose(0, 2, 1, 3)"),
]

BLOCK = [
    right("added to arrays of its own", ("dx_mid = dx_out + dx_mid_normed  ",
          "dx_mid_normed += dx_out\n    dx_mid = dx_mid_normed  "), ("dx = dx_mid + dx_normed  ",
          "dx_normed += dx_mid\n    dx = dx_normed  ")),
    right("the masks multiplied", "dmlp_out = dx_out if drop_2 is None else dx_out * drop_2",
          "dattended = dx_mid if drop_1 is None else dx_mid * drop_1"),
    wrong("it is still ddropped_2, the gradient of another variable", "dmlp_out = ddropped_2"),
    wrong("it is still dx_mid, the gradient of another variable", "dattended = dx_mid"),
    wrong("uses drop_1 instead of drop_2", "dmlp_out = ops.dropout_backward(ddropped_2, drop_1)"),
    wrong("the term dx_out is missing", "dx_mid = dx_mid_normed"),
    wrong("uses dx_out instead of dx_mid", "dx = dx_out + dx_normed"),
    wrong("the term dx_out does not belong there", "dx = dx_out + dx_mid + dx_normed"),
    wrong("2.0 does not belong there", "dx_mid = dx_out + 2.0 * dx_mid_normed"),
    wrong("changes dx_out, which belongs to the caller",
          ("dx_mid = dx_out + dx_mid_normed", "dx_mid = dx_out\n    dx_mid += dx_mid_normed"),
          at="dx_mid += dx_mid_normed"),
    wrong("uses dnorm_2 instead of dx_mid_normed", "dx_mid = dx_out + dnorm_2"),
    wrong("{'weight': dln_2_weight, 'bias': dln_2_bias} and {'weight': dln_1_weight, 'bias': dln_1_bias} are swapped",
          ('"ln_1": {"weight": dln_1_weight, "bias": dln_1_bias}',
          '"ln_1": {"weight": dln_2_weight, "bias": dln_2_bias}'),
          ('"ln_2": {"weight": dln_2_weight, "bias": dln_2_bias}',
          '"ln_2": {"weight": dln_1_weight, "bias": dln_1_bias}')),
    wrong("mlp.c_fc.weight is missing in dp", (', "mlp": dp_mlp}', "}"), at=None),
    wrong("ln_1.weight is missing in dp", ('"ln_1": {"weight": dln_1_weight', '"ln_2": {"weight": dln_1_weight')),
    wrong("the term dx_out is missing", "dx_mid = dx_mid_normed", "dx = dx_normed"),
    wrong("uses dx_out instead of dx_mid", "ddropped_1 = dx_out"),
]

GPT = [
    right("blocks popped from the end", body="""
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
    right("a while loop, and the embedding added to the head", ("for i in reversed(range(config.n_layer)):",
          "i = config.n_layer\n    while i > 0:\n        i -= 1"), "dwte = dhead_weight + dwte"),
    wrong("reversed", ("for i in reversed(range(config.n_layer)):", "for i in range(config.n_layer):")),
    wrong("it is still dwte, the gradient of another variable", "dwte = dwte"),
    wrong("= instead of +=: it overwrites what was there before", "dwte = dhead_weight"),
    wrong("lm_head.weight is missing in dp", ("    if config.tie_word_embeddings:\n"
          "        dwte = dwte + dhead_weight          # the matrix is used twice: by the embedding and by the head\n"
          "    else:\n" '        dp["lm_head"]["weight"] = dhead_weight\n' "", "    dwte = dwte + dhead_weight\n"),
          at=None),
    wrong("dp has lm_head.weight, which is no parameter",
          'dp["lm_head"] = {"weight": dhead_weight, "bias": dhead_bias}'),
    wrong("the call of ops.dropout_backward is missing", ("    dx = ops.dropout_backward(dx, drop)\n", "")),
    wrong("block_backward", ('dx, dp["h"][i] = block_backward(dx, blocks[i], ops)',
          '_, dp["h"][i] = block_backward(dx, blocks[i], ops)')),
    wrong("0 instead of i", 'dx, dp["h"][i] = block_backward(dx, blocks[0], ops)'),
    wrong("is missing in dp", 'dp = {"h": []}', ('dx, dp["h"][i] = block_backward(dx, blocks[i], ops)',
          'dx, dp_block = block_backward(dx, blocks[i], ops)\n        dp["h"].insert(0, dp_block)'), at=None),
    wrong("uses ln_e instead of ln_f", "dx, dln_f_weight, dln_f_bias = ops.layernorm_backward(dx, ln_e)"),
    wrong("the gradient of another variable", ('dp["ln_f"] = {"weight": dln_f_weight, "bias": dln_f_bias}',
          'dp["ln_e"] = {"weight": dln_f_weight, "bias": dln_f_bias}'),
          ('dp["ln_e"] = {"weight": dln_e', 'dp["ln_f"] = {"weight": dln_e')),
    wrong("dp['wte'] and dp['wpe'] are swapped", 'dp["wte"], dp["wpe"] = {"weight": dwpe}, {"weight": dwte}'),
    wrong("changes", 'dx, dp["h"][i] = block_backward(dx, blocks.pop(), ops)', key=""),
    wrong("changes", ("    for i in reversed(range(config.n_layer)):",
          "    blocks.reverse()\n    for i in range(config.n_layer):"), key=""),
    wrong("h.", ('dp["h"][i] = block_backward(dx, blocks[i], ops)',
          'dp["h"][config.n_layer - 1 - i] = block_backward(dx, blocks[i], ops)'), key=""),
    wrong("dwte", ("    if config.tie_word_embeddings:\n"
          "        dwte = dwte + dhead_weight          # the matrix is used twice: by the embedding and by the head\n"
          "    else:\n", "    dwte = dwte + dhead_weight\n    if not config.tie_word_embeddings:\n"),
          at="dwte = dwte + dhead_weight"),
    wrong("cannot unpack non-iterable NoneType", ("    if ln_e is not None:\n"
          "        dx, dln_e_weight, dln_e_bias = ops.layernorm_backward(dx, ln_e)\n" "        ",
          "    dx, dln_e_weight, dln_e_bias = ops.layernorm_backward(dx, ln_e)\n    "),
          at="dx, dln_e_weight, dln_e_bias = ops.layernorm_backward(dx, ln_e)", key=""),
]

SOLUTIONS = {"mlp": MLP, "self_attention": SELF_ATTENTION, "block": BLOCK, "gpt": GPT}

"""MLP, self-attention, transformer block, and the whole model. x (4, 5, 6), F = 9."""

SOLUTIONS = r"""
layer mlp
right | a tree made in steps
    c_fc, gelu, c_proj, config = cache
    dp = {"c_fc": {}, "c_proj": {}}
    d, dp["c_proj"]["weight"], dp["c_proj"]["bias"] = ops.linear_backward(dy, c_proj)
    if config.activation == "gelu_tanh":
        d = ops.gelu_tanh_backward(d, gelu)
    else:
        d = ops.gelu_exact_backward(d, gelu)
    dx, dp["c_fc"]["weight"], dp["c_fc"]["bias"] = ops.linear_backward(d, c_fc)
    return dx, dp
wrong | dhidden = dactive
wrong | dhidden = gelu_backward(dy, gelu)
wrong | dhidden = ops.gelu_backward(dactive, gelu)
wrong | dhidden = gelu_backward(dactive, gelu) => dhidden, _ = ops.gelu_tanh_forward(dactive)
wrong | dactive, dc_proj_weight, dc_proj_bias = ops.linear_backward(dy, c_fc) \
  @@ dx, dc_fc_weight, dc_fc_bias = ops.linear_backward(dhidden, c_proj)
wrong | gelu_backward = ops.gelu_tanh_backward | at nowhere
wrong | "c_fc": {"weight": dc_fc_weight => "c_fc": {"weight": dc_proj_weight \
  @@ "c_proj": {"weight": dc_proj_weight => "c_proj": {"weight": dc_fc_weight
wrong | {"weight": dc_proj_weight, "bias": dc_proj_bias} => {"weight": dc_proj_weight} \
  | at return dx, {"c_fc"
wrong | "c_fc": {"weight" => "c_fc": {"wieght"
wrong | return dx, { => return {
wrong | return dp, dx | of a tree made in steps
wrong | "c_proj": {"weight": dc_proj_weight \
  => "c_proj": {"weight": dc_proj_weight / (dy.shape[0] * dy.shape[1]) \
  | at return dx, {"c_fc"
layer self_attention
right | swapaxes, and slices filled
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
right | dheads = np.stack([d.transpose(0, 2, 1, 3) for d in (dq, dk, dv)], axis=2) \
  => parts = [np.moveaxis(d, 1, 2).reshape(B, T, H * D) for d in (dq, dk, dv)] \
  @@ dqkv = np.concatenate(parts, axis=-1) | the three parts side by side
right | dheads = np.stack((dq, dk, dv)).transpose(1, 3, 0, 2, 4) | stacked first, transposed then
wrong | dmix = dmerged.reshape(B, H, T, D)
wrong | dmix = dmerged.reshape(B, T, H, D)
wrong | dmix = dmerged.reshape(B, T, D, H).transpose(0, 3, 1, 2)
wrong | dheads = np.stack([dq, dk, dv], axis=2)
wrong | dheads = np.stack([d.transpose(0, 2, 1, 3) for d in (dk, dq, dv)], axis=2)
wrong | dq, dk, dv = ops.attention_backward(dmix, attention) \
  => dq, dv, dk = ops.attention_backward(dmix, attention)
wrong | dqkv = dheads.reshape(B, T, H * D)
wrong | dmix = dy.reshape(B, T, H, D).transpose(0, 2, 1, 3)
layer block
right | dx_mid = dx_out + dx_mid_normed   => dx_mid_normed += dx_out\n    dx_mid = \
  dx_mid_normed   @@ dx = dx_mid + dx_normed   => dx_normed += dx_mid\n    dx = dx_normed   | \
  added to arrays of its own
right | dmlp_out = dx_out if drop_2 is None else dx_out * drop_2 \
  @@ dattended = dx_mid if drop_1 is None else dx_mid * drop_1 | the masks multiplied
wrong | dmlp_out = ddropped_2
wrong | dattended = dx_mid
wrong | dmlp_out = ops.dropout_backward(ddropped_2, drop_1)
wrong | dx_mid = dx_mid_normed
wrong | dx = dx_out + dx_normed
wrong | dx = dx_out + dx_mid + dx_normed
wrong | dx_mid = dx_out + 2.0 * dx_mid_normed
wrong | dx_mid = dx_out + dx_mid_normed => dx_mid = dx_out\n    dx_mid += dx_mid_normed \
  | at dx_mid += dx_mid_normed
wrong | dx_mid = dx_out + dnorm_2
wrong | "ln_1": {"weight": dln_1_weight, "bias": dln_1_bias} \
  => "ln_1": {"weight": dln_2_weight, "bias": dln_2_bias} \
  @@ "ln_2": {"weight": dln_2_weight, "bias": dln_2_bias} \
  => "ln_2": {"weight": dln_1_weight, "bias": dln_1_bias}
wrong | , "mlp": dp_mlp} => } | at nowhere
wrong | "ln_1": {"weight": dln_1_weight => "ln_2": {"weight": dln_1_weight
wrong | dx_mid = dx_mid_normed @@ dx = dx_normed
wrong | ddropped_1 = dx_out
layer gpt
right | blocks popped from the end
    embedding, drop, blocks, ln_f, head, config = cache
    dx, dE = ops.head_backward(dlogits, head)
    dp = {"h": {}}
    dx, w, b = ops.layernorm_backward(dx, ln_f)
    dp["ln_f"] = {"weight": w, "bias": b}
    for i, block in reversed(list(enumerate(blocks))):
        dx, dp["h"][i] = block_backward(dx, block, ops)
    dx = ops.dropout_backward(dx, drop)
    dwte, dwpe = ops.embedding_backward(dx, embedding)
    dwte += dE
    return {**dp, "wte": {"weight": dwte}, "wpe": {"weight": dwpe}}
right | for i in reversed(range(config.n_layer)): \
  => i = config.n_layer\n    while i > 0:\n        i -= 1 @@ dwte = dwte_embedding + dwte_head \
  | a while loop, and the head added to the embedding
wrong | for i in reversed(range(config.n_layer)): => for i in range(config.n_layer):
wrong | dwte = dwte_embedding
wrong | dwte = dwte_head
wrong |     dx = ops.dropout_backward(dx, drop)\n =>
wrong | dx, dh[i] = block_backward(dx, blocks[i], ops) \
  => _, dh[i] = block_backward(dx, blocks[i], ops)
wrong | dx, dh[i] = block_backward(dx, blocks[0], ops)
wrong | block_backward, dh = config.block.backward, [] \
  @@ dx, dh[i] = block_backward(dx, blocks[i], ops) \
  => dx, dp_block = block_backward(dx, blocks[i], ops)\n        dh.insert(0, dp_block) | at nowhere
wrong | "ln_f": {"weight": dln_f_weight, "bias": dln_f_bias} \
  => "ln_f": {"weight": dln_f_bias, "bias": dln_f_weight} \
  | at return {
wrong | "wte": {"weight": dwte}, "wpe": {"weight": dwpe} \
  => "wte": {"weight": dwpe}, "wpe": {"weight": dwte}
wrong | dx, dh[i] = block_backward(dx, blocks.pop(), ops)
wrong |     for i in reversed(range(config.n_layer)): \
  =>     blocks.reverse()\n    for i in range(config.n_layer):
wrong | dh[i] = block_backward(dx, blocks[i], ops) \
  => dh[config.n_layer - 1 - i] = block_backward(dx, blocks[i], ops)
"""

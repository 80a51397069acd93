"""GPT-2, built from the layers. Each backward mirrors its forward, line by line, in reverse.

Parameters are trees, nested by the names of GPT-2's checkpoints: `p["attn"]["c_attn"]["weight"]`.
A backward returns its gradients in a tree of the same names. `ops` is the table of layers:
`npgpt.layers` itself, or an engine's, which replaces some of them. Shapes are as in
npgpt/layers/__init__.py; F is the MLP's width.
"""

import numpy as np


def mlp_forward(x, p, config, ops):
    """Compute GELU(x W_fc + b_fc) W_proj + b_proj: widen to F, activate, narrow again.

    Parameters
    ----------
    x : array (..., C)
    p : dict, the MLP's parameters
    config : GPTConfig
        Its activation is "gelu_tanh" or "gelu".
    ops : the table of layers

    Returns
    -------
    y : array (..., C)
    cache : tuple
    """
    is_tanh = config.activation == "gelu_tanh"
    gelu_forward = ops.gelu_tanh_forward if is_tanh else ops.gelu_exact_forward
    hidden, c_fc = ops.linear_forward(x, **p["c_fc"])                           # (..., F)
    active, gelu = gelu_forward(hidden)                                         # (..., F)
    y, c_proj = ops.linear_forward(active, **p["c_proj"])                       # (..., C)
    return y, (c_fc, gelu, c_proj, config)


def mlp_backward(dy, cache, ops):
    """Undo `mlp_forward`.

    Parameters
    ----------
    dy : array (..., C)
    cache : tuple, from `mlp_forward`
    ops : the table of layers

    Returns
    -------
    dx : array (..., C)
    dp : dict, the gradients of p
    """
    c_fc, gelu, c_proj, config = cache
    is_tanh = config.activation == "gelu_tanh"
    gelu_backward = ops.gelu_tanh_backward if is_tanh else ops.gelu_exact_backward
    # y, c_proj = ops.linear_forward(active, **p["c_proj"])
    dactive, dc_proj_weight, dc_proj_bias = ops.linear_backward(dy, c_proj)     # (..., F)
    # active, gelu = gelu_forward(hidden)
    dhidden = gelu_backward(dactive, gelu)                                      # (..., F)
    # hidden, c_fc = ops.linear_forward(x, **p["c_fc"])
    dx, dc_fc_weight, dc_fc_bias = ops.linear_backward(dhidden, c_fc)           # (..., C)
    return dx, {"c_fc": {"weight": dc_fc_weight, "bias": dc_fc_bias},
                "c_proj": {"weight": dc_proj_weight, "bias": dc_proj_bias}}


def self_attention_forward(x, p, config, layer, mask, dropout_mask, ops):
    """Compute self-attention: one linear layer makes q, k and v of H heads, another mixes them.

    Parameters
    ----------
    x : array (B, T, C)
    p : dict, the layer's parameters
    config : GPTConfig
    layer : int, the block's number, from 0
    mask : array (T, T) or (B, 1 or H, T, T), or None
        0 where a position sees another, -inf where not.
    dropout_mask : array (B, H, T, T), or None
        It drops attention weights.
    ops : the table of layers

    Returns
    -------
    y : array (B, T, C)
    cache : tuple

    Notes
    -----
    The scores are divided by sqrt(D), because the dot product of two vectors of D random values of
    variance 1 has variance D.
    """
    B, T, _ = x.shape
    qkv, c_attn = ops.linear_forward(x, **p["c_attn"])                          # (B, T, 3 C)
    heads = qkv.reshape(B, T, 3, config.n_head, -1)                             # (B, T, 3, H, D)
    q, k, v = heads.transpose(2, 0, 3, 1, 4)                                    # (B, H, T, D) each
    scale = config.attention_scale(layer, head_size=q.shape[-1])
    mix, attention = ops.attention_forward(q, k, v, scale, mask, dropout_mask)  # (B, H, T, D)
    merged = mix.transpose(0, 2, 1, 3).reshape(B, T, -1)                        # (B, T, C)
    y, c_proj = ops.linear_forward(merged, **p["c_proj"])                       # (B, T, C)
    return y, (c_attn, attention, c_proj, mix.shape)


def self_attention_backward(dy, cache, ops):
    """Undo `self_attention_forward`.

    Parameters
    ----------
    dy : array (B, T, C)
    cache : tuple, from `self_attention_forward`
    ops : the table of layers

    Returns
    -------
    dx : array (B, T, C)
    dp : dict, the gradients of p
    """
    c_attn, attention, c_proj, (B, H, T, D) = cache
    # y, c_proj = ops.linear_forward(merged, **p["c_proj"])
    dmerged, dc_proj_weight, dc_proj_bias = ops.linear_backward(dy, c_proj)     # (B, T, C)
    # merged = mix.transpose(0, 2, 1, 3).reshape(B, T, -1)
    dmix = dmerged.reshape(B, T, H, D).transpose(0, 2, 1, 3)                    # (B, H, T, D)
    # mix, attention = ops.attention_forward(q, k, v, scale, mask, dropout_mask)
    dq, dk, dv = ops.attention_backward(dmix, attention)                        # (B, H, T, D) each
    # q, k, v = heads.transpose(2, 0, 3, 1, 4)
    dheads = np.stack([d.transpose(0, 2, 1, 3) for d in (dq, dk, dv)], axis=2)  # (B, T, 3, H, D)
    # heads = qkv.reshape(B, T, 3, config.n_head, -1)
    dqkv = dheads.reshape(B, T, 3 * H * D)                                      # (B, T, 3 C)
    # qkv, c_attn = ops.linear_forward(x, **p["c_attn"])
    dx, dc_attn_weight, dc_attn_bias = ops.linear_backward(dqkv, c_attn)        # (B, T, C)
    return dx, {"c_attn": {"weight": dc_attn_weight, "bias": dc_attn_bias},
                "c_proj": {"weight": dc_proj_weight, "bias": dc_proj_bias}}


def block_parameters(config):
    """Return the parameters of GPT-2's block, in the checkpoints' order; see `Block`.

    Parameters
    ----------
    config : GPTConfig

    Returns
    -------
    dict
        Name -> (shape, init). Linear weights are (in, out).
    """
    C, F = config.n_embd, config.mlp_width
    bias, qkv_bias, mlp_bias = config.bias, config.resolved("qkv_bias"), config.resolved("mlp_bias")
    table = {
        "ln_1.weight": ((C,), 1.0),
        "ln_1.bias": bias and ((C,), 0.0),
        "attn.c_attn.weight": ((C, 3 * C), "linear"),
        "attn.c_attn.bias": qkv_bias and ((3 * C,), "bias"),
        "attn.c_proj.weight": ((C, C), "residual"),
        "attn.c_proj.bias": bias and ((C,), "bias"),
        "ln_2.weight": ((C,), 1.0),
        "ln_2.bias": bias and ((C,), 0.0),
        "mlp.c_fc.weight": ((C, F), "linear"),
        "mlp.c_fc.bias": mlp_bias and ((F,), "bias"),
        "mlp.c_proj.weight": ((F, C), "residual"),
        "mlp.c_proj.bias": mlp_bias and ((C,), "bias"),
    }
    return {name: found for name, found in table.items() if found}


def block_forward(x, p, config, layer, mask, dropout_masks, ops):
    """Compute one transformer block.

    Without dropout it is

        x = x + attention(norm_1(x))
        x = x + mlp(norm_2(x))

    The two additions are the residual stream: each layer adds to it.

    Parameters
    ----------
    x : array (B, T, C)
    p : dict, the block's parameters
    config : GPTConfig
    layer : int, the block's number, from 0
    mask : array (T, T) or (B, 1 or H, T, T), or None
        As in `self_attention_forward`.
    dropout_masks : BlockMasks
    ops : the table of layers

    Returns
    -------
    x_out : array (B, T, C)
    cache : tuple
    """
    eps = config.layer_norm_epsilon
    norm_1, ln_1 = ops.layernorm_forward(x, **p["ln_1"], eps=eps)               # (B, T, C)
    attended, attn = self_attention_forward(                                    # (B, T, C)
        norm_1, p["attn"], config, layer, mask, dropout_masks.att, ops)
    dropped_1, drop_1 = ops.dropout_forward(attended, dropout_masks.attn)       # (B, T, C)
    x_mid = x + dropped_1                                                       # (B, T, C)
    norm_2, ln_2 = ops.layernorm_forward(x_mid, **p["ln_2"], eps=eps)           # (B, T, C)
    mlp_out, mlp = mlp_forward(norm_2, p["mlp"], config, ops)                   # (B, T, C)
    dropped_2, drop_2 = ops.dropout_forward(mlp_out, dropout_masks.mlp)         # (B, T, C)
    x_out = x_mid + dropped_2                                                   # (B, T, C)
    return x_out, (ln_1, attn, drop_1, ln_2, mlp, drop_2)


def block_backward(dx_out, cache, ops):
    """Undo `block_forward`.

    Parameters
    ----------
    dx_out : array (B, T, C)
    cache : tuple, from `block_forward`
    ops : the table of layers

    Returns
    -------
    dx : array (B, T, C)
    dp : dict, the gradients of p
    """
    ln_1, attn, drop_1, ln_2, mlp, drop_2 = cache
    # x_out = x_mid + dropped_2: both terms get the whole gradient
    ddropped_2 = dx_out
    # dropped_2, drop_2 = ops.dropout_forward(mlp_out, dropout_masks.mlp)
    dmlp_out = ops.dropout_backward(ddropped_2, drop_2)
    # mlp_out, mlp = mlp_forward(norm_2, p["mlp"], config, ops)
    dnorm_2, dp_mlp = mlp_backward(dmlp_out, mlp, ops)
    # norm_2, ln_2 = ops.layernorm_forward(x_mid, **p["ln_2"], eps=eps)
    dx_mid_normed, dln_2_weight, dln_2_bias = ops.layernorm_backward(dnorm_2, ln_2)
    dx_mid = dx_out + dx_mid_normed         # x_mid is used twice: by the MLP and by x_out
    # x_mid = x + dropped_1
    ddropped_1 = dx_mid
    # dropped_1, drop_1 = ops.dropout_forward(attended, dropout_masks.attn)
    dattended = ops.dropout_backward(ddropped_1, drop_1)
    # attended, attn = self_attention_forward(
    #     norm_1, p["attn"], config, layer, mask, dropout_masks.att, ops)
    dnorm_1, dp_attn = self_attention_backward(dattended, attn, ops)
    # norm_1, ln_1 = ops.layernorm_forward(x, **p["ln_1"], eps=eps)
    dx_normed, dln_1_weight, dln_1_bias = ops.layernorm_backward(dnorm_1, ln_1)
    dx = dx_mid + dx_normed                 # x is used twice as well
    return dx, {"ln_1": {"weight": dln_1_weight, "bias": dln_1_bias}, "attn": dp_attn,
                "ln_2": {"weight": dln_2_weight, "bias": dln_2_bias}, "mlp": dp_mlp}


def gpt_forward(idx, p, config, dropout_masks, ops, mask=None):
    """Compute the logits of GPT-2: embedding, dropout, the blocks, a last LayerNorm, and the head.

    Parameters
    ----------
    idx : integers (B, T), in [0, V)
    p : dict, all parameters
    config : GPTConfig
    dropout_masks : Masks
    ops : the table of layers
    mask : array (T, T) or (B, 1 or H, T, T), or None
        Added to the attention scores: 0 where a position sees another, -inf where not.

    Returns
    -------
    logits : array (B, T, V)
    cache : tuple

    Notes
    -----
    The head is tied: its matrix is the token embedding. What other models do otherwise is in
    variants.py.
    """
    block_forward, blocks = config.block.forward, []  # or a user's
    x, embedding = ops.embedding_forward(idx, p["wte"]["weight"], p["wpe"]["weight"])  # (B, T, C)
    x, drop = ops.dropout_forward(x, dropout_masks.embd)                               # (B, T, C)
    mask = ops.causal_mask(mask, x)
    for i in range(config.n_layer):
        masks = dropout_masks.blocks[i]
        x, block = block_forward(x, p["h"][i], config, i, mask, masks, ops)            # (B, T, C)
        blocks.append(block)
    x, ln_f = ops.layernorm_forward(x, **p["ln_f"], eps=config.layer_norm_epsilon)     # (B, T, C)
    logits, head = ops.head_forward(x, p["wte"]["weight"])                             # (B, T, V)
    return logits, (embedding, drop, blocks, ln_f, head, config)


def gpt_backward(dlogits, cache, ops):
    """Undo `gpt_forward`.

    Parameters
    ----------
    dlogits : array (B, T, V)
    cache : tuple, from `gpt_forward`
    ops : the table of layers

    Returns
    -------
    dp : dict, the gradient of every parameter
    """
    embedding, drop, blocks, ln_f, head, config = cache
    block_backward, dh = config.block.backward, {}  # or a user's
    # logits, head = ops.head_forward(x, p["wte"]["weight"])
    dx, dwte_head = ops.head_backward(dlogits, head)
    # x, ln_f = ops.layernorm_forward(x, **p["ln_f"], eps=config.layer_norm_epsilon)
    dx, dln_f_weight, dln_f_bias = ops.layernorm_backward(dx, ln_f)
    # for i in range(config.n_layer):
    #     masks = dropout_masks.blocks[i]
    #     x, block = block_forward(x, p["h"][i], config, i, mask, masks, ops)
    for i in reversed(range(config.n_layer)):
        dx, dh[i] = block_backward(dx, blocks[i], ops)
    # x, drop = ops.dropout_forward(x, dropout_masks.embd)
    dx = ops.dropout_backward(dx, drop)
    # x, embedding = ops.embedding_forward(idx, p["wte"]["weight"], p["wpe"]["weight"])
    dwte_embedding, dwpe = ops.embedding_backward(dx, embedding)
    dwte = dwte_head + dwte_embedding       # wte is used twice: by the head and by the embedding
    return {"wte": {"weight": dwte}, "wpe": {"weight": dwpe}, "h": dh,
            "ln_f": {"weight": dln_f_weight, "bias": dln_f_bias}}

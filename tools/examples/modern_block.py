"""A block of today's models: RMSNorm, rotary positions and SwiGLU, without biases.

    npgpt gradcheck tools/examples/modern_block.py    # each gradient, line by line
    npgpt train --block tools/examples/modern_block.py --positions none --out-dir modern
    npgpt sample modern --block tools/examples/modern_block.py

The three functions at the end are the block; in Python it is `GPT(config,
block="modern_block.py")`. The linear layers and attention are those of GPT-2, from the table `ops`,
in which each engine has its own. Only attention has dropout. Rotary positions replace GPT-2's
learned ones, so the model is made with positions="none".
"""

import numpy as np

# for npgpt gradcheck: the shapes of the arguments
LESSON = {
    "x": "B T C",
    "weight": "C",
    "heads": "B H T 2D",
    "cos": "T D: constant",
    "sin": "T D: constant",
    "gate": "B T F",
    "up": "B T F",
}


def rmsnorm_forward(x, weight, eps=1e-5):
    """Scale each vector to a root mean square of 1, then each channel: y = x / sqrt(mean(x^2) +
    eps) * weight.

    x (B, T, C), weight (C,) -> y (B, T, C), cache. (Zhang & Sennrich 2019, arXiv:1910.07467.)
    """
    squares = x * x
    mean = squares.mean(axis=-1, keepdims=True)  # (B, T, 1)
    rstd = 1.0 / np.sqrt(mean + eps)  # (B, T, 1)
    xhat = x * rstd  # (B, T, C)
    y = xhat * weight  # (B, T, C)
    return y, (xhat, rstd, weight)


def rmsnorm_backward(dy, cache):
    """Undo `rmsnorm_forward`: dy (B, T, C) -> dx (B, T, C), dweight (C,).

    Fused: dsquares, dmean and drstd are skipped. Through xhat = x rstd, with drstd/dx = -rstd^3 x /
    C:

        dx = rstd dxhat - rstd^3 x sum(dxhat x) / C = rstd (dxhat - xhat mean(dxhat xhat))
    """
    xhat, rstd, weight = cache
    # y = xhat * weight
    dweight = (dy * xhat).sum(axis=(0, 1))  # (C,)
    dxhat = dy * weight  # (B, T, C)
    # squares = x * x
    # mean = squares.mean(axis=-1, keepdims=True)
    # rstd = 1.0 / np.sqrt(mean + eps)
    # xhat = x * rstd, these four lines in one step
    mean_dxhat_xhat = (dxhat * xhat).mean(axis=-1, keepdims=True)
    dx = rstd * (dxhat - xhat * mean_dxhat_xhat)  # (B, T, C)
    return dx, dweight


def rotary_forward(heads, cos, sin):
    """Rotate each pair of channels (i, D + i) by an angle that grows with the position.

    heads (B, H, T, 2D), cos and sin (T, D) of the angles -> y (B, H, T, 2D), cache. The product
    of a rotated query and a rotated key then depends only on the distance of their positions.
    (Su et al. 2021, arXiv:2104.09864.)
    """
    first, second = np.split(heads, 2, axis=-1)  # 2 x (B, H, T, D)
    y_first = first * cos - second * sin
    y_second = second * cos + first * sin
    y = np.concatenate([y_first, y_second], axis=-1)  # (B, H, T, 2D)
    return y, (cos, sin)


def rotary_backward(dy, cache):
    """Undo `rotary_forward`, by a rotation back: dy (B, H, T, 2D) -> dheads (B, H, T, 2D)."""
    cos, sin = cache
    # y = np.concatenate([y_first, y_second], axis=-1)
    dy_first, dy_second = np.split(dy, 2, axis=-1)  # 2 x (B, H, T, D)
    # y_second = second * cos + first * sin
    # y_first = first * cos - second * sin
    dfirst = dy_first * cos + dy_second * sin  # (B, H, T, D)
    dsecond = dy_second * cos - dy_first * sin  # (B, H, T, D)
    # first, second = np.split(heads, 2, axis=-1)
    dheads = np.concatenate([dfirst, dsecond], axis=-1)  # (B, H, T, 2D)
    return dheads


def swiglu_forward(gate, up):
    """Compute y = gate sigmoid(gate) up, all (B, T, F) -> y, cache. (Shazeer 2020,
    arXiv:2002.05202.)
    """
    sigmoid = 1.0 / (1.0 + np.exp(-gate))  # (B, T, F)
    silu = gate * sigmoid  # (B, T, F)
    y = silu * up  # (B, T, F)
    return y, (gate, up, sigmoid, silu)


def swiglu_backward(dy, cache):
    """Undo `swiglu_forward`: dy (B, T, F) -> dgate and dup (B, T, F)."""
    gate, up, sigmoid, silu = cache
    # y = silu * up
    dsilu = dy * up  # (B, T, F)
    dup = dy * silu  # (B, T, F)
    # silu = gate * sigmoid
    dsigmoid = dsilu * gate  # (B, T, F)
    # sigmoid = 1.0 / (1.0 + np.exp(-gate))
    dgate = dsilu * sigmoid + dsigmoid * (
        sigmoid * (1.0 - sigmoid)
    )  # (B, T, F): gate is used twice
    return dgate, dup


def parameters(config):
    """Return name -> (shape, init). F is two thirds of GPT-2's width, so that three matrices have
    the size of two.
    """
    C, F = config.n_embd, 8 * round(config.mlp_width / 12)
    return {
        "norm_1.weight": ((C,), 1.0),
        "c_attn.weight": ((C, 3 * C), "linear"),
        "c_proj.weight": ((C, C), "residual"),
        "norm_2.weight": ((C,), 1.0),
        "c_gate.weight": ((C, F), "linear"),
        "c_up.weight": ((C, F), "linear"),
        "c_down.weight": ((F, C), "residual"),
    }


def rotation(positions, D, x):
    """Return cos and sin of position / 10000^(i / D), i < D: (1 or B, T) -> (1 or B, 1, T, D)."""
    angles = positions[:, None, :, None] * 10000.0 ** (np.arange(D, like=x) / -D)
    return np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)


def forward(x, p, config, layer, mask, dropout_masks, ops, positions):
    """Compute x + attention(rmsnorm(x)), then x_mid + swiglu(rmsnorm(x_mid)).

    x (B, T, C) -> x_out (B, T, C), cache.
    positions (1 or B, T): those of the tokens, which are not 0 to T - 1 when a text is continued.
    """
    B, T, C = x.shape
    cos, sin = rotation(positions, config.head_size // 2, x)
    normed_1, norm_1 = rmsnorm_forward(x, **p["norm_1"])  # (B, T, C)
    qkv, c_attn = ops.linear_forward(normed_1, **p["c_attn"])  # (B, T, 3 C)
    q, k, v = qkv.reshape(B, T, 3, config.n_head, -1).transpose(2, 0, 3, 1, 4)  # 3 x (B, H, T, D)
    q_rot, rotary_q = rotary_forward(q, cos, sin)  # (B, H, T, D)
    k_rot, rotary_k = rotary_forward(k, cos, sin)  # (B, H, T, D)
    mix, attention = ops.attention_forward(
        q_rot, k_rot, v, config.attention_scale(layer), mask, dropout_masks.att
    )
    merged = mix.transpose(0, 2, 1, 3).reshape(B, T, C)  # (B, T, C) heads side by side
    attended, c_proj = ops.linear_forward(merged, **p["c_proj"])  # (B, T, C)
    x_mid = x + attended  # (B, T, C)
    normed_2, norm_2 = rmsnorm_forward(x_mid, **p["norm_2"])  # (B, T, C)
    gate, c_gate = ops.linear_forward(normed_2, **p["c_gate"])  # (B, T, F)
    up, c_up = ops.linear_forward(normed_2, **p["c_up"])  # (B, T, F)
    hidden, swiglu = swiglu_forward(gate, up)  # (B, T, F)
    mlp_out, c_down = ops.linear_forward(hidden, **p["c_down"])  # (B, T, C)
    x_out = x_mid + mlp_out  # (B, T, C)
    return x_out, (
        norm_1,
        c_attn,
        rotary_q,
        rotary_k,
        attention,
        c_proj,
        norm_2,
        c_gate,
        c_up,
        swiglu,
        c_down,
        config.n_head,
    )


def backward(dx_out, cache, ops):
    """Undo `forward`: dx_out (B, T, C) -> dx (B, T, C), dp."""
    (
        norm_1,
        c_attn,
        rotary_q,
        rotary_k,
        attention,
        c_proj,
        norm_2,
        c_gate,
        c_up,
        swiglu,
        c_down,
        H,
    ) = cache
    B, T, C = dx_out.shape
    dhidden, dc_down, _ = ops.linear_backward(dx_out, c_down)
    dgate, dup = swiglu_backward(dhidden, swiglu)
    dnormed_up, dc_up, _ = ops.linear_backward(dup, c_up)
    dnormed_gate, dc_gate, _ = ops.linear_backward(dgate, c_gate)
    dnormed_2 = dnormed_up + dnormed_gate  # normed_2 is used twice
    dx_mid_normed, dnorm_2 = rmsnorm_backward(dnormed_2, norm_2)
    dx_mid = dx_out + dx_mid_normed
    dmerged, dc_proj, _ = ops.linear_backward(dx_mid, c_proj)
    dmix = dmerged.reshape(B, T, H, -1).transpose(0, 2, 1, 3)
    dq_rot, dk_rot, dv = ops.attention_backward(dmix, attention)
    dk = rotary_backward(dk_rot, rotary_k)
    dq = rotary_backward(dq_rot, rotary_q)
    dqkv = np.stack([d.transpose(0, 2, 1, 3) for d in (dq, dk, dv)], axis=2).reshape(B, T, 3 * C)
    dnormed_1, dc_attn, _ = ops.linear_backward(dqkv, c_attn)
    dx_normed, dnorm_1 = rmsnorm_backward(dnormed_1, norm_1)
    dx = dx_mid + dx_normed
    weights = {
        "norm_1": dnorm_1,
        "c_attn": dc_attn,
        "c_proj": dc_proj,
        "norm_2": dnorm_2,
        "c_gate": dc_gate,
        "c_up": dc_up,
        "c_down": dc_down,
    }
    return dx, {name: {"weight": each} for name, each in weights.items()}

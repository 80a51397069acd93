"""LoRA as a block: GPT-2's, with a trained update of c_attn and both c_proj (Hu et al. 2021).

    npgpt train --init-from gpt2 --preset finetune --block tools/examples/lora_block.py \\
        --freeze "*.weight,*.bias" --learning-rate 2e-4 --corpus my.txt --out-dir tuned
    python tools/peft_adapter.py merge tuned --out-dir merged   # write, read: peft's folders
"""

import numpy as np

from npgpt import GPT
from npgpt.arrays import to_host
from npgpt.model.block import GPT2
from npgpt.model.transformer import block_parameters

RANK, ALPHA = 8, 8  # change them in a copy
SCALE = ALPHA / RANK  # of the update x A B
ADAPTED = "attn.c_attn", "attn.c_proj", "mlp.c_proj"


def parameters(config):
    """Return GPT-2's parameters, and A and B of each adapted layer; training starts from B = 0."""
    found = block_parameters(config)
    for layer in ADAPTED:
        n_in, n_out = found[f"{layer}.weight"][0]
        found[f"{layer}.lora_a"] = (n_in, RANK), "normal"
        found[f"{layer}.lora_b"] = (RANK, n_out), 0.0
    return found


def scaled(p):
    """Return the arguments of `lora_forward`, whose update has no scale: B is multiplied by it."""
    return {"bias": None, **p, "lora_b": SCALE * p["lora_b"]}


def forward(x, p, config, layer, mask, dropout_masks, ops):
    """Compute `block_forward` with `lora_forward` in the adapted layers -> x_out, cache."""
    scale, is_tanh = config.attention_scale(layer), config.activation == "gelu_tanh"
    gelu_forward = ops.gelu_tanh_forward if is_tanh else ops.gelu_exact_forward
    norm_1, ln_1 = ops.layernorm_forward(x, **p["ln_1"], eps=config.layer_norm_epsilon)
    qkv, c_attn = ops.lora_forward(norm_1, **scaled(p["attn"]["c_attn"]))  # (B, T, 3 C)
    q, k, v = qkv.reshape(*x.shape[:2], 3, config.n_head, -1).transpose(2, 0, 3, 1, 4)
    mix, attention = ops.attention_forward(q, k, v, scale, mask, dropout_masks.att)
    joined = mix.transpose(0, 2, 1, 3).reshape(x.shape)  # (B, T, C)
    attended, c_proj = ops.lora_forward(joined, **scaled(p["attn"]["c_proj"]))  # (B, T, C)
    dropped_1, drop_1 = ops.dropout_forward(attended, dropout_masks.attn)  # (B, T, C)
    x_mid = x + dropped_1  # (B, T, C)
    norm_2, ln_2 = ops.layernorm_forward(x_mid, **p["ln_2"], eps=config.layer_norm_epsilon)
    hidden, c_fc = ops.linear_forward(norm_2, **p["mlp"]["c_fc"])  # (B, T, F)
    active, gelu = gelu_forward(hidden)  # (B, T, F)
    mlp_out, mlp = ops.lora_forward(active, **scaled(p["mlp"]["c_proj"]))  # (B, T, C)
    dropped_2, drop_2 = ops.dropout_forward(mlp_out, dropout_masks.mlp)  # (B, T, C)
    x_out = x_mid + dropped_2  # (B, T, C)
    others = p["mlp"]["c_fc"]["weight"], is_tanh, mix.shape
    return x_out, (ln_1, c_attn, attention, c_proj, drop_1, ln_2, gelu, mlp, drop_2, others)


def backward(dx_out, cache, ops):
    """Undo `forward`: dx_out (B, T, C) -> dx (B, T, C), dp without the frozen parameters."""
    ln_1, c_attn, attention, c_proj, drop_1, ln_2, gelu, mlp, drop_2, others = cache
    c_fc_weight, is_tanh, (B, H, T, D) = others
    gelu_backward = ops.gelu_tanh_backward if is_tanh else ops.gelu_exact_backward
    dmlp_out = ops.dropout_backward(dx_out, drop_2)
    dactive, da_mlp, db_mlp = ops.lora_backward(dmlp_out, mlp)
    dhidden = gelu_backward(dactive, gelu)
    dnorm_2 = (dhidden.reshape(B * T, -1) @ c_fc_weight.T).reshape(B, T, -1)  # no dW is computed
    dx_mid_normed, *_ = ops.layernorm_backward(dnorm_2, ln_2)
    dx_mid = dx_out + dx_mid_normed
    dattended = ops.dropout_backward(dx_mid, drop_1)
    djoined, da_proj, db_proj = ops.lora_backward(dattended, c_proj)
    dmix = djoined.reshape(B, T, H, D).transpose(0, 2, 1, 3)
    dq, dk, dv = ops.attention_backward(dmix, attention)
    dheads = np.stack([d.transpose(0, 2, 1, 3) for d in (dq, dk, dv)], axis=2)
    dqkv = dheads.reshape(B, T, 3 * H * D)
    dnorm_1, da_attn, db_attn = ops.lora_backward(dqkv, c_attn)
    dx_normed, *_ = ops.layernorm_backward(dnorm_1, ln_1)
    dx = dx_mid + dx_normed
    dp_attn = {
        "c_attn": {"lora_a": da_attn, "lora_b": SCALE * db_attn},
        "c_proj": {"lora_a": da_proj, "lora_b": SCALE * db_proj},
    }
    return dx, {"attn": dp_attn, "mlp": {"c_proj": {"lora_a": da_mlp, "lora_b": SCALE * db_mlp}}}


def merged(model):
    """Return a GPT-2 on the CPU with the same logits: W + SCALE A B replaces each adapted W."""
    plain = GPT(model.config, None, str(model.params.dtype), block=GPT2)
    p = {name: to_host(array) for name, array in model.params.items()}
    for name in plain.params:
        plain.params[name] = p[name]
        if (layer := name.removesuffix(".weight")).endswith(ADAPTED):
            plain.params[name] += p[f"{layer}.lora_a"] @ (SCALE * p[f"{layer}.lora_b"])
    return plain

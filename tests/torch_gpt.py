"""GPT-2 in torch, with our parameter names, as the oracle of the composite layers and of the whole model.

torch is imported inside the functions: the tests that need no oracle run without it.
"""

import math

import numpy as np
import pytest

from npgpt.model.masks import BlockMasks, dropout_mask
from npgpt.model.parameters import nest


def torch_attention(q, k, v, scale, mask=None, dropout_mask=None):
    """Compute torch's own attention. A query that sees no key gets 0 from it."""
    import torch

    # Applied to unit vectors as values it gives the attention weights, on which dropout acts.
    units = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], -1, -1)
    mask = None if mask is None else torch.tensor(mask)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        att = torch.nn.functional.scaled_dot_product_attention(q, k, units, mask, scale=scale)
    return times(att, dropout_mask) @ v


def torch_self_attention(x, p, config, layer, mask, dropout_mask):
    """Compute self-attention as in nanoGPT; the head size is that of the weights, not of x."""
    B, T, _ = x.shape
    qkv = (x @ p["c_attn"]["weight"] + p["c_attn"].get("bias", 0.0)).chunk(3, dim=-1)
    q, k, v = (each.reshape(B, T, config.n_head, -1).transpose(1, 2) for each in qkv)
    scale = 1.0 / math.sqrt(q.shape[-1]) if config.scale_attn_weights else 1.0
    if config.scale_attn_by_inverse_layer_idx:
        scale /= layer + 1
    mix = torch_attention(q, k, v, scale, mask, dropout_mask)
    return mix.transpose(1, 2).reshape(B, T, -1) @ p["c_proj"]["weight"] + p["c_proj"].get("bias", 0.0)


def torch_mlp(x, p, config):
    import torch

    hidden = x @ p["c_fc"]["weight"] + p["c_fc"].get("bias", 0.0)
    active = torch.nn.functional.gelu(hidden, approximate="tanh" if config.activation == "gelu_tanh" else "none")
    return active @ p["c_proj"]["weight"] + p["c_proj"].get("bias", 0.0)


def torch_block(x, p, config, layer, mask, drop):
    attended = torch_self_attention(norm(x, p["ln_1"], config), p["attn"], config, layer, mask, drop.att)
    x = x + times(attended, drop.attn)
    return x + times(torch_mlp(norm(x, p["ln_2"], config), p["mlp"], config), drop.mlp)


def torch_gpt(parameters, config, idx, rng=None, mask=None, headless=False):
    """Compute logits (B, T, V) for tensors named as ours are; rng draws the dropout masks in our model's order.

    headless: what the head reads instead, (B, T, C).
    """
    import torch

    p, (B, T), C = nest(parameters), idx.shape, config.n_embd
    embd, att, resid = (config.dropout if own is None else own
                        for own in (config.embd_pdrop, config.attn_pdrop, config.resid_pdrop))
    mlp = resid if config.mlp_pdrop is None else config.mlp_pdrop

    def draw(p_drop, *shape):
        return dropout_mask(rng, shape, p_drop, parameters["wte.weight"].detach().numpy().dtype)

    x = p["wte"]["weight"][torch.from_numpy(idx)] + p["wpe"]["weight"][:T]
    if config.embedding_layer_norm:
        x = norm(x, p["ln_e"], config)
    x = times(x, draw(embd, B, T, C))
    if config.causal:
        mask = np.zeros((T, T)) if mask is None else mask
        mask = np.where(np.tri(T, dtype=bool), mask, -np.inf).astype(parameters["wpe.weight"].detach().numpy().dtype)
    for i in range(config.n_layer):
        drop = BlockMasks(draw(att, B, config.n_head, T, T), draw(resid, B, T, C), draw(mlp, B, T, C))
        x = torch_block(x, p["h"][i], config, i, mask, drop)
    if config.final_layer_norm:
        x = norm(x, p["ln_f"], config)
    if headless:
        return x
    return torch.nn.functional.linear(x, **{"weight": p["wte"]["weight"], **p.get("lm_head", {})})


def times(x, mask):
    import torch

    return x if mask is None else x * torch.from_numpy(mask)


def norm(x, p, config):
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], p["weight"], p.get("bias"), config.layer_norm_epsilon)


def torch_parameters(params):
    """Return a dict of leaf tensors with the values of a `Parameters`. Skips the test if there is no torch."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    return {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in params.items()}


def torch_loss(logits, targets):
    """Compute the mean cross-entropy over the targets that are not -1."""
    import torch

    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), torch.from_numpy(targets).flatten().long(),
                                             ignore_index=-1)


def ours_and_torchs(model, idx, targets):
    """Return (logits, loss, grads) of a model, and torch's logits, loss and leaf tensors (.grad); same dropout."""
    logits, loss = model.forward(idx, targets, rng=np.random.default_rng(5))
    tensors = torch_parameters(model.params)
    reference = torch_gpt(tensors, model.config, idx, rng=np.random.default_rng(5))
    reference_loss = torch_loss(reference, targets)
    reference_loss.backward()
    return (logits, loss, model.backward()), (reference, reference_loss, tensors)


def assert_equal(ours, theirs, name=""):
    """Compare an array with a tensor, to 1e-9 of each value, or 1e-11 of the largest."""
    theirs = theirs.detach().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11 * abs(theirs).max(), err_msg=name)


def unit_scale(params, seed=3):
    """Fill a `Parameters` with standard normal values: at the usual 0.02 many mistakes are too small to see."""
    params.flat[:] = np.random.default_rng(seed).standard_normal(params.flat.size)

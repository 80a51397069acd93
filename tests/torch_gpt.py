"""GPT-2 in torch, with our parameter names, as the oracle of the composite layers and of the whole
model.

The elementary layers are the lessons' counterparts in torch. torch is imported inside the
functions: the tests that need no oracle run without it.
"""

import math

import numpy as np
import pytest

from npgpt.model.masks import BlockMasks, Masks, dropout_mask
from npgpt.model.parameters import nest
from npgpt.study.lessons.lesson import map_arrays
from npgpt.study.lessons.table import LAYERS


def by_torch(layer, *arguments):
    """Compute an elementary layer."""
    import torch

    return LAYERS[layer].torch(torch, *arguments)


def torch_self_attention(x, p, config, layer, mask, dropout_mask):
    """Compute self-attention as in nanoGPT; the head size is that of the weights, not of x."""
    B, T, _ = x.shape
    qkv = linear(x, p["c_attn"]).chunk(3, dim=-1)
    q, k, v = (each.reshape(B, T, config.n_head, -1).transpose(1, 2) for each in qkv)
    scale = 1.0 / math.sqrt(q.shape[-1]) if config.scale_attn_weights else 1.0
    if config.scale_attn_by_inverse_layer_idx:
        scale /= layer + 1
    mix = by_torch("attention", q, k, v, scale, mask, dropout_mask)
    return linear(mix.transpose(1, 2).reshape(B, T, -1), p["c_proj"])


def torch_mlp(x, p, config):
    active = by_torch(
        {"gelu": "gelu_exact"}.get(config.activation, config.activation), linear(x, p["c_fc"])
    )
    return linear(active, p["c_proj"])


def torch_block(x, p, config, layer, mask, dropout_masks):
    att, attn, mlp = dropout_masks
    attended = torch_self_attention(norm(x, p["ln_1"], config), p["attn"], config, layer, mask, att)
    x = x + by_torch("dropout", attended, attn)
    return x + by_torch("dropout", torch_mlp(norm(x, p["ln_2"], config), p["mlp"], config), mlp)


def torch_gpt(p, config, idx, dropout_masks=None, mask=None, headless=False):
    """Compute logits (B, T, V) for tensors named as ours are, or nested by their names.

    dropout_masks: a `Masks` of tensors; headless: what the head reads instead, (B, T, C).
    """
    import torch

    p, T = nest(p), idx.shape[1]
    dropout_masks = dropout_masks or Masks(None, [BlockMasks()] * config.n_layer)
    x = p["wte"]["weight"][torch.as_tensor(idx)]
    if config.positions == "learned":
        x = x + p["wpe"]["weight"][:T]
    if config.embedding_layer_norm:
        x = norm(x, p["ln_e"], config)
    x = by_torch("dropout", x, dropout_masks.embd)
    mask = None if mask is None else torch.tensor(np.asarray(mask))
    if config.causal:
        mask = torch.full((T, T), -math.inf, dtype=x.dtype).triu(1) + (
            0.0 if mask is None else mask
        )
    for i in range(config.n_layer):
        x = torch_block(x, p["h"][i], config, i, mask, dropout_masks.blocks[i])
    if config.final_layer_norm:
        x = norm(x, p["ln_f"], config)
    if headless:
        return x
    return torch.nn.functional.linear(x, **{"weight": p["wte"]["weight"], **p.get("lm_head", {})})


torch_model = torch_gpt  # of npgpt/model/variants.py


def linear(x, p):
    return by_torch("linear", x, p["weight"], p.get("bias"))


def norm(x, p, config):
    return by_torch("layernorm", x, p["weight"], p.get("bias"), config.layer_norm_epsilon)


def torch_parameters(params):
    """Return a dict of leaf tensors with the values of a `Parameters`. Skips the test if there is
    no torch.
    """
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    return {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in params.items()}


def torch_loss(logits, targets):
    """Compute the mean cross-entropy over the targets that are not -1."""
    import torch

    return by_torch("cross_entropy", logits, torch.from_numpy(targets).long())


def drawn(config, B, T, dtype, rng):
    """Draw dropout masks in our model's order, as tensors."""
    import torch

    embd, att, resid = (
        config.dropout if own is None else own
        for own in (config.embd_pdrop, config.attn_pdrop, config.resid_pdrop)
    )
    mlp = resid if config.mlp_pdrop is None else config.mlp_pdrop
    shape, scores = (B, T, config.n_embd), (B, config.n_head, T, T)
    masks = Masks(dropout_mask(rng, shape, embd, dtype), [])
    for _ in range(config.n_layer):
        drawn = (scores, att), (shape, resid), (shape, mlp)
        masks.blocks.append(BlockMasks(*(dropout_mask(rng, *each, dtype) for each in drawn)))
    return map_arrays(torch.from_numpy, masks)


def grads_of(tensors):
    """Return the gradients of a dict of tensors; one that has none is zero."""
    return {
        name: np.zeros(each.shape) if each.grad is None else each.grad.numpy()
        for name, each in tensors.items()
    }


def torchs_loss_and_grads(params, config, idx, targets, **options):
    """Return torch's logits, loss and gradients, as arrays."""
    tensors = torch_parameters(params)
    logits = torch_gpt(tensors, config, idx, **options)
    loss = torch_loss(logits, targets)
    loss.backward()
    return logits.detach().numpy(), loss.item(), grads_of(tensors)


def assert_equal(ours, theirs, name=""):
    """Compare an array with a tensor, to 1e-9 of each value, or 1e-11 of the largest."""
    theirs = theirs.detach().numpy()
    np.testing.assert_allclose(
        ours, theirs, rtol=1e-9, atol=1e-11 * abs(theirs).max(), err_msg=name
    )


def unit_scale(params, seed=3):
    """Fill a `Parameters` with standard normal values: at the usual 0.02 many mistakes are too
    small to see.
    """
    params.flat[:] = np.random.default_rng(seed).standard_normal(params.flat.size)

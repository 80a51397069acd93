"""GPT-2 in torch, with our parameter names, as the oracle of the whole model."""

import numpy as np

from npgpt.layers.dropout import dropout_mask
from tests.cases import torch_self_attention


def torch_parameters(params):
    """A dict of leaf tensors with the values of a `Parameters`; one tensor where weights are tied."""
    import torch

    return {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in params.items()}


def torch_gpt(p, config, idx, rng=None):
    """Logits (B, T, V) of the model with parameters p; rng draws the dropout masks in our model's order."""
    import torch
    from torch.nn.functional import gelu, layer_norm

    B, T = idx.shape
    C = config.n_embd

    def dropped(mask, x):
        return x if mask is None else x * torch.from_numpy(mask)

    def norm(name, x):
        return layer_norm(x, (C,), p[f"{name}.weight"], p.get(f"{name}.bias"), config.layer_norm_epsilon)

    def draw(p_drop, *shape):
        return dropout_mask(rng, shape, p_drop, p["wte.weight"].detach().numpy().dtype)

    x = p["wte.weight"][torch.from_numpy(idx)] + p["wpe.weight"][:T]
    if config.embedding_layer_norm:
        x = norm("ln_e", x)
    x = dropped(draw(config.embd_pdrop, B, T, C), x)
    for i in range(config.n_layer):
        h = f"h.{i}."
        mask_att = draw(config.attn_pdrop, B, config.n_head, T, T)
        mask_attn, mask_mlp = (draw(config.resid_pdrop, B, T, C) for _ in range(2))
        scale = 1 / (C / config.n_head)**0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= i + 1
        attended = torch_self_attention(
            torch, norm(h + "ln_1", x), p[h + "attn.c_attn.weight"], p.get(h + "attn.c_attn.bias", 0.0),
            p[h + "attn.c_proj.weight"], p.get(h + "attn.c_proj.bias", 0.0), config.n_head,
            scale, config.causal, mask_att)
        x = x + dropped(mask_attn, attended)
        hidden = norm(h + "ln_2", x) @ p[h + "mlp.c_fc.weight"] + p.get(h + "mlp.c_fc.bias", 0.0)
        active = gelu(hidden, approximate="tanh" if config.activation == "gelu_tanh" else "none")
        thought = active @ p[h + "mlp.c_proj.weight"] + p.get(h + "mlp.c_proj.bias", 0.0)
        x = x + dropped(mask_mlp, thought)
    return norm("ln_f", x) @ p.get("lm_head.weight", p["wte.weight"]).T


def ours_and_torchs(model, idx, targets):
    """((logits, loss, grads) of a model, (logits, loss, leaf tensors with their .grad) of torch), same dropout."""
    logits, loss = model.forward(idx, targets, rng=np.random.default_rng(5))
    tensors = torch_parameters(model.params)
    reference = torch_gpt(tensors, model.config, idx, rng=np.random.default_rng(5))
    reference_loss = torch_loss(reference, targets)
    reference_loss.backward()
    return (logits, loss, model.backward()), (reference, reference_loss, tensors)


def torch_loss(logits, targets):
    """Mean cross-entropy over the targets that are not -1."""
    import torch

    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten().long(),
                                             ignore_index=-1)


def unit_scale(params, seed=3):
    """Fill a `Parameters` with standard normal values: at the usual 0.02 many mistakes are too small to see."""
    params.flat[:] = np.random.default_rng(seed).standard_normal(params.flat.size)

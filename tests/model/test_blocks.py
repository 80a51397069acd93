"""Blocks of one's own, above all tools/examples/modern_block.py: against torch, on every engine, and what is wrong."""

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from tests.cases import CPU_KERNELS, MODERN, SMALL, B, C, T, V
from tests.torch_gpt import assert_equal, torch_loss, torch_parameters, unit_scale

IDX, TARGETS = np.random.default_rng(0).integers(0, V, (2, B, T))
XLA = pytest.param("xla", marks=pytest.mark.slow)


def modern(kernels="reference", dtype="float64", **named):
    config = GPTConfig(**{**SMALL, "n_head": 2, "bias": False})         # an even head size
    return GPT(config, 0, dtype, threads=2, kernels=kernels, block=MODERN, **named)


def torchs(params, idx, targets):
    """Return logits and loss by torch's own functions; positions are turned as complex numbers."""
    import torch

    p, functional = torch_parameters(params), torch.nn.functional
    D = C // 2
    position, part = torch.arange(T).double()[:, None], torch.arange(D // 2).double() / (D // 2)
    angles = position * 10000.0 ** -part                                    # (T, D / 2)
    turns = torch.polar(torch.ones_like(angles), angles)

    def turned(q):
        both = torch.view_as_real(torch.complex(*q.chunk(2, -1)) * turns)
        return both.transpose(-1, -2).flatten(-2)

    x = p["wte.weight"][torch.tensor(idx)] + p["wpe.weight"][:T]
    for i in range(2):
        w = {name.split(".")[2]: p[name] for name in p if name.startswith(f"h.{i}.")}
        qkv = functional.rms_norm(x, (C,), w["norm_1"], 1e-5) @ w["c_attn"]
        q, k, v = qkv.unflatten(2, (3, 2, D)).permute(2, 0, 3, 1, 4)
        mix = functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + mix.transpose(1, 2).flatten(2) @ w["c_proj"]
        normed = functional.rms_norm(x, (C,), w["norm_2"], 1e-5)
        x = x + (functional.silu(normed @ w["c_gate"]) * (normed @ w["c_up"])) @ w["c_down"]
    logits = functional.layer_norm(x, (C,), p["ln_f.weight"]) @ p["wte.weight"].T
    loss = torch_loss(logits, targets)
    loss.backward()
    return logits, loss, p


@pytest.mark.parametrize("kernels", ["reference", *CPU_KERNELS, XLA])
def test_the_modern_block_is_torchs(kernels):
    model = modern(kernels)
    unit_scale(model.params)
    logits, loss, p = torchs(model.params, IDX, TARGETS)
    assert_equal(model.forward(IDX)[0], logits)
    found, grads = model.loss_and_grads(IDX, TARGETS)
    assert found == pytest.approx(loss.item(), rel=1e-12) and grads.keys() == p.keys()
    for name, gradient in grads.items():
        assert_equal(gradient, p[name].grad, name)

"""Parameters of published models: how many there are, and how torch's modules and nanoGPT draw
them.
"""

import math

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.model.parameters import parameter_shapes

torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")

GPT2 = {"vocab_size": 50257, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}
WORDPIECE = {
    **{"vocab_size": 30522, "block_size": 128, "n_layer": 4, "n_head": 4, "n_embd": 64},
    **{"qkv_bias": False, "embedding_layer_norm": True, "final_layer_norm": False},
    **{"tie_word_embeddings": False, "lm_head_bias": True},
}
PUBLISHED = [  # fields, number of parameters
    (GPT2, 124_439_808),
    (WORDPIECE, 4_144_826),  # BERT's tokens, no final layernorm, a head with bias
]


def test_torchs_initial_weights():
    """Bounds, deviation and mean of each parameter as torch's modules draw them."""
    torch.manual_seed(0)
    config = GPTConfig(**{**WORDPIECE, "vocab_size": 500, "qkv_bias": True})
    C, F = config.n_embd, config.mlp_width
    ours = GPT(config, init="torch", threads=1).params
    modules = {
        "wte": torch.nn.Embedding(config.vocab_size, C),
        "wpe": torch.nn.Embedding(config.block_size, C),
        "ln_e": torch.nn.LayerNorm(C),
        "h.2.attn.c_attn": torch.nn.Linear(C, 3 * C),
        "h.2.mlp.c_proj": torch.nn.Linear(F, C),
        "lm_head": torch.nn.Linear(C, config.vocab_size),
    }
    for layer, module in modules.items():
        for kind, theirs in module.state_dict().items():
            found, theirs = ours[f"{layer}.{kind}"], theirs.numpy()
            assert found.size == theirs.size
            near, std = 6 / math.sqrt(found.size), float(theirs.std())
            assert float(found.std()) == pytest.approx(std, rel=near)
            assert float(found.mean()) == pytest.approx(float(theirs.mean()), abs=near * std)
            if isinstance(module, torch.nn.Linear):
                bound = 1 / math.sqrt(module.in_features)
                assert abs(theirs).max() <= bound and 0.9 * bound < abs(found).max() <= bound


def test_the_positions_at_half():
    inits = "gpt2", "half-wpe", "normal"
    drawn = {init: GPT(GPTConfig(), init=init, threads=1).params for init in inits}
    for name, array in drawn["gpt2"].items():
        half = 0.5 if name == "wpe.weight" else 1.0
        np.testing.assert_array_equal(drawn["half-wpe"][name], half * array)
        residual = math.sqrt(2 * 4) if name.endswith("c_proj.weight") else 1  # 4 layers
        np.testing.assert_allclose(drawn["normal"][name], residual * array, rtol=1e-6)


@pytest.mark.parametrize(("fields", "count"), PUBLISHED)
def test_numbers_of_parameters(fields, count):
    assert sum(map(math.prod, parameter_shapes(GPTConfig(**fields)).values())) == count

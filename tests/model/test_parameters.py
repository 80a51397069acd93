"""Parameters of published models: how many there are, and how torch's modules and nanoGPT draw them."""

import math

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.model.parameters import parameter_shapes

torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")

GPT2 = {"vocab_size": 50257, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}
WORDPIECE = {"vocab_size": 30522, "block_size": 128, "n_layer": 4, "n_head": 4, "n_embd": 64, "qkv_bias": False,
             "embedding_layer_norm": True, "final_layer_norm": False, "lm_head_bias": True}
PUBLISHED = {       # name -> fields, number of parameters
    "GPT-2": (GPT2, 124_439_808),
    "nanoGPT's baby GPT": ({"vocab_size": 65, "block_size": 256, "n_layer": 6, "n_head": 6, "n_embd": 384,
                            "bias": False, "activation": "gelu"}, 10_646_784 + 256 * 384),      # and positions
    "BERT's tokens, no final layernorm, a head with bias": ({**WORDPIECE, "tie_word_embeddings": False}, 4_144_826),
}


def test_torchs_initial_weights():
    """Bounds, deviation and mean of each parameter as torch's modules draw them; then the write-up's first loss."""
    torch.manual_seed(0)
    config = GPTConfig(**{**WORDPIECE, "tie_word_embeddings": False, "final_layer_norm": True, "qkv_bias": True})
    C, V, F, T = config.n_embd, config.vocab_size, config.mlp_width, config.block_size
    ours, modules = GPT(config, init="torch", threads=1).params, {
        "wte": torch.nn.Embedding(V, C), "wpe": torch.nn.Embedding(T, C), "ln_e": torch.nn.LayerNorm(C),
        "h.2.ln_1": torch.nn.LayerNorm(C), "h.2.attn.c_attn": torch.nn.Linear(C, 3 * C),
        "h.2.attn.c_proj": torch.nn.Linear(C, C), "h.2.mlp.c_fc": torch.nn.Linear(C, F),
        "h.2.mlp.c_proj": torch.nn.Linear(F, C), "ln_f": torch.nn.LayerNorm(C), "lm_head": torch.nn.Linear(C, V)}
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
    config = GPTConfig(**WORDPIECE, tie_word_embeddings=False)
    idx, targets = np.random.default_rng(0).integers(0, V, (2, 4, T))
    losses = [GPT(config, seed, init="torch").evaluate(idx, targets) for seed in range(3)]
    assert np.mean(losses) == pytest.approx(10.49, abs=0.1)     # of one draw there; GPT-2's weights begin at 10.34


def test_the_positions_at_half():
    drawn = {init: GPT(GPTConfig(), init=init, threads=1).params for init in ("gpt2", "half-wpe", "normal")}
    for name, array in drawn["gpt2"].items():
        np.testing.assert_array_equal(drawn["half-wpe"][name], array / 2 if name == "wpe.weight" else array)
        residual = math.sqrt(2 * 4) if name.endswith("c_proj.weight") else 1        # 4 layers
        np.testing.assert_allclose(drawn["normal"][name], residual * array, rtol=1e-6)


@pytest.mark.parametrize(("fields", "count"), PUBLISHED.values(), ids=PUBLISHED)
def test_numbers_of_parameters(fields, count):
    assert sum(map(math.prod, parameter_shapes(GPTConfig(**fields)).values())) == count

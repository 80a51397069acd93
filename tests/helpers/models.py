"""Small models in float64, one for each option of a config, and a batch for them."""

import numpy as np

from npgpt import GPT, GPTConfig
from tests.torch_gpt import unit_scale

SMALL = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 3, "n_embd": 12}
VARIANTS = {
    "default": {},
    "no biases": {"bias": False},
    "no qkv biases": {"qkv_bias": False},
    "only qkv biases": {"bias": False, "qkv_bias": True},
    "one head": {"n_head": 1},
    "three layers": {"n_layer": 3},
    "encoder": {"causal": False},
    "unscaled scores": {"scale_attn_weights": False},
    "embedding layernorm": {"embedding_layer_norm": True},
    "untied head": {"tie_word_embeddings": False},
    "exact gelu": {"activation": "gelu"},
    "dropout": {"dropout": 0.3},
    "three dropouts": {"embd_pdrop": 0.1, "attn_pdrop": 0.3, "resid_pdrop": 0.5},
    "dropout in the mlp alone": {"mlp_pdrop": 0.4},
    "dropout after attention alone": {"resid_pdrop": 0.4, "mlp_pdrop": 0.0},
    "no biases but the mlp's": {"bias": False, "mlp_bias": True},
    "no final layernorm": {"final_layer_norm": False},
    "bias of the head": {"lm_head_bias": True},
    "bias of an untied head": {
        "lm_head_bias": True,
        "tie_word_embeddings": False,
        "final_layer_norm": False,
    },
    "scores divided by the layer": {"scale_attn_by_inverse_layer_idx": True},
    "narrow mlp": {"n_inner": 7},
    "large eps": {"layer_norm_epsilon": 0.1},
    "large vocabulary": {"vocab_size": 700},
    "all at once": {
        "bias": False,
        "qkv_bias": True,
        "causal": False,
        "scale_attn_weights": False,
        "n_head": 2,
        "embedding_layer_norm": True,
        "tie_word_embeddings": False,
        "activation": "gelu",
        "dropout": 0.2,
    },
}


def batch(config, seed=0, rows=3, time=6):
    rng = np.random.default_rng(seed)
    idx = rng.integers(0, config.vocab_size, (rows, time))
    targets = rng.integers(0, config.vocab_size, (rows, time))
    targets[0, 1] = targets[2, 3] = -1
    return idx, targets


def model_of(variant, **options):
    model = GPT(GPTConfig(**{**SMALL, **variant}), dtype="float64", **options)
    unit_scale(model.params)
    return model

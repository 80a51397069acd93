"""Parameters of published models: how many there are, and how torch's modules and nanoGPT draw them."""

import math

import pytest

from npgpt import GPTConfig
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


@pytest.mark.parametrize(("fields", "count"), PUBLISHED.values(), ids=PUBLISHED)
def test_numbers_of_parameters(fields, count):
    assert sum(map(math.prod, parameter_shapes(GPTConfig(**fields)).values())) == count

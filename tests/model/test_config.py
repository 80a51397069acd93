"""GPTConfig refuses what makes no model, and says which field."""

import pytest

from npgpt import GPTConfig, UserError


@pytest.mark.parametrize(("field", "value"), [
    ("vocab_size", 0), ("block_size", -1), ("n_layer", 0), ("n_head", 0), ("n_embd", 1.5), ("n_layer", "4"),
    ("n_layer", True), ("dropout", 1.0), ("dropout", -0.1), ("dropout", "a"), ("dropout", float("nan")),
    ("layer_norm_epsilon", 0.0), ("layer_norm_epsilon", float("inf")), ("activation", "relu"), ("bias", 1),
    ("qkv_bias", "no"), ("causal", None), ("n_inner", 0), ("attn_pdrop", 1.0), ("eos_token_id", -1), ("n_embd", None),
])
def test_a_field_that_makes_no_sense_is_named(field, value):
    with pytest.raises(UserError, match=field):
        GPTConfig(**{field: value})


def test_heads_divide_the_width():
    with pytest.raises(ValueError, match="n_embd 128 is not divisible by n_head 3"):
        GPTConfig(n_embd=128, n_head=3)


def test_what_is_not_said_follows_what_is():
    config = GPTConfig(n_embd=64, n_head=2, bias=False, dropout=0.2, attn_pdrop=0.0)
    assert (config.qkv_bias, config.n_inner) == (False, 256)
    assert (config.embd_pdrop, config.attn_pdrop, config.resid_pdrop) == (0.2, 0.0, 0.2)
    assert config.attention_scale(3) == pytest.approx(32**-0.5)
    assert GPTConfig(scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True).attention_scale(3) == 0.25

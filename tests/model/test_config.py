"""GPTConfig refuses what makes no model, and says which field."""

import dataclasses

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


def test_dict_round_trip_is_strict():
    config = GPTConfig(n_layer=2, qkv_bias=False)
    fields = dataclasses.asdict(config)
    assert GPTConfig.from_dict(fields) == config
    with pytest.raises(UserError, match="n_layers"):
        GPTConfig.from_dict({**fields, "n_layers": 3})
    with pytest.raises(UserError, match="dropout"):
        GPTConfig.from_dict({name: value for name, value in fields.items() if name != "dropout"})
    with pytest.raises(UserError, match="table"):
        GPTConfig.from_dict([1])

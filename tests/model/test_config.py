"""GPTConfig derives fields that were not given. tests/test_calls.py has the values that are
refused.
"""

import dataclasses
import json

import pytest

from npgpt import GPTConfig, TrainOptions
from npgpt.checkpoints.config_json import config_from_fields, config_to_fields


def round_trip(config):
    """The config as config.json gives it back."""
    return config_from_fields(json.loads(json.dumps(config_to_fields(config))))


@pytest.mark.parametrize("stored", [lambda config: config, round_trip], ids=["made", "read"])
def test_what_is_not_given_follows_what_is_also_after_replace(stored):
    config = stored(GPTConfig(n_embd=64, n_head=2, bias=False, dropout=0.2))
    for each in (config, dataclasses.replace(config, dropout=0.0, n_embd=32, bias=True)):
        assert each.resolved("qkv_bias") == each.resolved("mlp_bias") == each.bias
        for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop", "mlp_pdrop"):
            assert each.resolved(name) == each.dropout
        assert (each.mlp_width, each.head_size) == (4 * each.n_embd, each.n_embd // 2)


@pytest.mark.parametrize("stored", [lambda config: config, round_trip], ids=["made", "read"])
def test_what_is_given_stays(stored):
    given = {"qkv_bias": False, "mlp_bias": False, "embd_pdrop": 0.1, "attn_pdrop": 0.0}
    given |= {"resid_pdrop": 0.5, "mlp_pdrop": 0.4}
    config = dataclasses.replace(
        stored(GPTConfig(**given, n_inner=7, dropout=0.2)), dropout=0.3, n_embd=64
    )
    assert {name: config.resolved(name) for name in given} == given and config.mlp_width == 7


def test_the_scale_of_the_scores():
    config = GPTConfig(n_embd=64, n_head=2)
    assert config.attention_scale(3) == pytest.approx(32**-0.5)
    assert config.attention_scale(3, head_size=9) == pytest.approx(1 / 3)
    config = GPTConfig(scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True)
    assert config.attention_scale(3) == 0.25


@pytest.mark.parametrize("cls", [GPTConfig, TrainOptions])
def test_the_docstring_says_what_each_field_is(cls):
    """pdoc and `help` show it; the flags of the command have the same texts."""
    for field in dataclasses.fields(cls):
        help = field.metadata["help"]
        assert help and cls.__doc__.count(f"default {field.default!r}\n    {help}") == 1

"""GPTConfig derives fields that were not given. tests/test_calls.py has the values that are refused."""

import dataclasses
import json

import pytest

from npgpt import GPTConfig, TrainOptions
from npgpt.checkpoints.config_json import config_from_fields, config_to_fields


def dropouts(config):
    return [config.used(name) for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop", "mlp_pdrop")]


def biases(config):
    return [config.used(name) for name in ("qkv_bias", "mlp_bias")]


def round_trip(config):
    """The config as config.json gives it back."""
    return config_from_fields(json.loads(json.dumps(config_to_fields(config))))


@pytest.mark.parametrize("stored", [lambda config: config, round_trip], ids=["as made", "saved and read"])
def test_what_is_not_given_follows_what_is_also_after_replace(stored):
    config = stored(GPTConfig(n_embd=64, n_head=2, bias=False, dropout=0.2))
    other = dataclasses.replace(config, dropout=0.0, n_embd=32, bias=True)
    for each, bias, p, width in ((config, False, 0.2, 64), (other, True, 0.0, 32)):
        assert biases(each) == [bias] * 2 and dropouts(each) == [p] * 4
        assert (each.mlp_width, each.head_size) == (4 * width, width // 2)
    given = GPTConfig(n_inner=7, qkv_bias=False, mlp_bias=False, dropout=0.2, embd_pdrop=0.1, attn_pdrop=0.0,
                      resid_pdrop=0.5, mlp_pdrop=0.4, final_layer_norm=False, lm_head_bias=True)
    assert (config := stored(given)) == given
    other = dataclasses.replace(config, dropout=0.3, n_embd=64)
    assert biases(other) == [False, False] and other.mlp_width == 7 and dropouts(other) == [0.1, 0.0, 0.5, 0.4]


def test_the_scale_of_the_scores():
    assert GPTConfig(n_embd=64, n_head=2).attention_scale(3) == pytest.approx(32**-0.5)
    assert GPTConfig(n_embd=64, n_head=2).attention_scale(3, head_size=9) == pytest.approx(1 / 3)
    assert GPTConfig(scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True).attention_scale(3) == 0.25


@pytest.mark.parametrize("cls", [GPTConfig, TrainOptions])
def test_the_docstring_says_what_each_field_is(cls):
    """pdoc and `help` show it; the flags of the command have the same texts."""
    lines = cls.__doc__.splitlines()
    for field in dataclasses.fields(cls):
        assert field.metadata["help"]
        assert lines.count(f"* `{field.name}`: {field.metadata['help']}") == 1

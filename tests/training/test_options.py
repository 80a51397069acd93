"""Defaults that depend on other options."""

import pytest

from npgpt import GPTConfig
from npgpt.training.options import load_preset, with_mup
from tests.helpers.runs import refusing


@pytest.mark.parametrize(
    ("width", "std", "rate"),
    [(128, 0.08, 4e-3), (384, 0.03509, 1.3333e-3), (768, 0.02087, 6.6667e-4)],
)
def test_initial_weights_and_rates_follow_the_width(width, std, rate):
    fields = with_mup({**load_preset("char-cpu"), "n_embd": width})
    assert fields["initializer_range"] == pytest.approx(std, rel=1e-3)
    assert fields["learning_rate"] == pytest.approx(rate, rel=1e-3)
    assert fields["min_lr"] == pytest.approx(rate / 40, rel=1e-3)


def test_what_is_given_is_kept_each_on_its_own():
    ruled = with_mup({"n_embd": 256})
    for name, value in (("initializer_range", 0.5), ("min_lr", 0.0)):
        assert with_mup({"n_embd": 256, name: value}) == ruled | {name: value}
    given = {"learning_rate": 0.5}
    assert with_mup({"n_embd": 256, **given}) == ruled | given | {"min_lr": 0.5 / 40}
    for preset in ("char-nanogpt", "char-gpu", "bpe-small"):
        fields = load_preset(preset)
        assert with_mup(fields) == fields
        assert fields["initializer_range"] == GPTConfig.initializer_range
    for field in ({"n_embd": 0}, {"n_embd": "8"}, {"learning_rate": "1"}):
        with refusing(next(iter(field))):
            with_mup(field)

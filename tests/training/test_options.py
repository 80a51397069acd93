"""Defaults that depend on other options."""

import pytest

from npgpt import GPTConfig, TrainOptions, UserError
from npgpt.training.metrics import read_metrics
from npgpt.training.options import load_preset, with_mup
from tests.conftest import TINY


@pytest.mark.parametrize(("width", "std", "rate"), [
    (16, 0.08, 4e-3), (128, 0.08, 4e-3), (256, 0.04757, 2e-3), (384, 0.03509, 1.3333e-3), (768, 0.02087, 6.6667e-4)])
def test_initial_weights_and_rates_follow_the_width(width, std, rate):
    fields = with_mup({**load_preset("char-cpu"), "n_embd": width})
    assert fields["initializer_range"] == pytest.approx(std, rel=1e-3)
    assert fields["learning_rate"] == pytest.approx(rate, rel=1e-3)
    assert fields["min_lr"] == pytest.approx(rate / 40, rel=1e-3)


def test_what_is_given_is_kept_each_on_its_own():
    for name, value in (("initializer_range", 0.5), ("learning_rate", 0.5), ("min_lr", 0.0)):
        ruled = with_mup({"n_embd": 256})
        given = with_mup({"n_embd": 256, name: value})
        assert given == ruled | {name: value} | ({"min_lr": 0.5 / 40} if name == "learning_rate" else {})
    for preset in ("char-nanogpt", "char-gpu", "bpe-small"):
        fields = load_preset(preset)
        assert with_mup(fields) == fields and fields["initializer_range"] == GPTConfig.initializer_range
    for field in ({"n_embd": 0}, {"n_embd": "8"}, {"learning_rate": "1"}):
        with pytest.raises(UserError, match=next(iter(field))):
            with_mup(field)


def test_the_decay_follows_max_iters():
    """Also if the run ends within the warm-up."""
    assert TrainOptions(max_iters=500).last_decay_step == 500
    assert TrainOptions(max_iters=50, warmup_iters=100).last_decay_step == 50
    assert [TrainOptions(max_iters=500, lr_decay_iters=n).last_decay_step for n in (0, 700)] == [0, 700]
    assert load_preset("char-cpu").get("lr_decay_iters") is None


def test_more_steps_for_such_a_run_move_the_end_of_its_decay(npgpt, text_file):
    tiny, at = list(TINY), TINY.index("--lr-decay-iters")
    del tiny[at:at + 2]
    assert npgpt("train", "--corpus", text_file, *tiny, "--max-iters", 20)[0] == 0
    assert npgpt("train", "--resume", "--max-iters", 40)[0] == 0
    rates = [record["lr"] for record in read_metrics("out") if "lr" in record]
    assert rates[19] < 2e-4 < rates[20] and rates[39] < 2e-4

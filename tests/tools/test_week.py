"""The experimenter's week: each wish does what it says, in ten lines or fewer."""

import runpy

import numpy as np
import pytest

from tests.tools.test_examples import EXAMPLES

# What each wish returns at last, divided by what it returns first, is below this number.
BELOW = """label_smoothing 0.7, distillation 0.2, mixture_with_a_curriculum 0.8, rates_by_layer 0.3,
lion 0.6, moving_average 0.9"""
SLOW = "preferences 0.3, steering_vector 0.95"


@pytest.fixture(scope="module")
def week():
    return runpy.run_path(str(EXAMPLES / "week.py"))


def assert_falls(week, row):
    wish, below = row.split()
    found = week[wish]()
    assert found[-1] < float(below) * found[0]


@pytest.mark.parametrize("row", BELOW.split(","))
def test_what_a_wish_trains(week, row):
    assert_falls(week, row)


@pytest.mark.slow
@pytest.mark.parametrize("row", SLOW.split(","))
def test_what_a_slow_wish_trains(week, row):
    assert_falls(week, row)


def test_what_a_wish_finds(week):
    """A head's use: the loss with a gain a little above 1 differs by the gradient."""
    model, idx, targets = week["model"], week["idx"], week["targets"]
    uses = week["soft_heads"]()
    assert len(uses) == model.config.n_head
    losses = []
    for gain in (0.98, 1.02):
        scales = np.where(np.arange(len(uses)) == 1, gain, 1.0).astype(np.float32)
        edit = {"h.2.attn.mix": lambda mix, scales=scales: mix * scales[:, None, None]}
        losses.append(model.forward(idx, targets, edit=edit)[1])
    assert (losses[1] - losses[0]) / 0.04 == pytest.approx(uses[1], rel=0.02)
    score, text = week["beams"]()
    greedy = model.generate(week["tokens"][None, :9], 10, temperature=0.0)
    assert score >= model.score(greedy)[0, -10:].sum() - 1e-4 and len(text) == 19

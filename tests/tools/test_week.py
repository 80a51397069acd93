"""The experimenter's week: each wish does what it says, in ten lines or fewer."""

import ast
import runpy

import numpy as np
import pytest

from tests.tools.test_examples import EXAMPLES

# What each wish returns at last, divided by what it returns first, is below this number.
BELOW = {
    "label_smoothing": 0.7,
    "distillation": 0.2,
    "preferences": 0.3,
    "mixture_with_a_curriculum": 0.8,
    "rates_by_layer": 0.3,
    "lion": 0.6,
    "moving_average": 0.9,
    "steering_vector": 0.95,
}


@pytest.fixture(scope="module")
def week():
    return runpy.run_path(str(EXAMPLES / "week.py"))


@pytest.mark.parametrize("wish", BELOW)
def test_what_a_wish_trains(week, wish):
    found = week[wish]()
    assert found[-1] < BELOW[wish] * found[0]


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


def test_no_wish_is_longer_than_ten_lines():
    text = (EXAMPLES / "week.py").read_text()
    lines = text.splitlines()
    wishes = [each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)]
    assert len(wishes) == 12            # ten, and two that they share
    for each in wishes:
        body = lines[each.body[ast.get_docstring(each) is not None].lineno - 1:each.end_lineno]
        assert len([*filter(str.strip, body)]) <= 10, each.name

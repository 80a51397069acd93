"""The loss on a whole split, compared with a loop without batches."""

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.data.batches import windows
from npgpt.training import evaluation
from npgpt.training.evaluation import evaluate_split
from tests.torch_gpt import unit_scale


@pytest.mark.parametrize("tokens_at_once", [1, 16, 8192])
@pytest.mark.parametrize(
    ("length", "stride"), [(2, None), (9, None), (10, None), (41, None), (2, 3), (41, 1), (100, 3)]
)
def test_every_target_counts_once(tokens_at_once, length, stride, monkeypatch):
    monkeypatch.setattr(evaluation, "TOKENS_AT_ONCE", tokens_at_once)
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8)
    model = GPT(config, dtype="float64")
    unit_scale(model.params)
    tokens = np.random.default_rng(0).integers(0, 11, length)
    one_by_one = [(tokens[i : i + 9][:-1], tokens[i + 1 : i + 9]) for i in range(0, length - 1, 8)]
    total = 0.0
    for x, y in windows(tokens, 8, stride) if stride else one_by_one:
        total += model.evaluate(x[None], y[None]) * (y != -1).sum()
    loss, n = evaluate_split(model, tokens, stride)
    assert (loss, n) == (pytest.approx(total / (length - 1), rel=1e-9), length - 1)

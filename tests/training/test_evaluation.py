"""The loss on a whole split, compared with a loop without batches."""

import math

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.data.batches import windows
from npgpt.layers.loss import IGNORE_INDEX
from npgpt.training import evaluation
from npgpt.training.evaluation import evaluate_split


@pytest.mark.parametrize("tokens_at_once", [1, 16, 8192])
@pytest.mark.parametrize(("length", "stride"), [
    (2, None), (8, None), (9, None), (10, None), (41, None), (100, None), (2, 3), (41, 1), (100, 3)])
def test_every_target_counts_once(tokens_at_once, length, stride, monkeypatch):
    monkeypatch.setattr(evaluation, "TOKENS_AT_ONCE", tokens_at_once)
    model = GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8), dtype="float64")
    rng = np.random.default_rng(0)
    model.params.flat[:] = rng.standard_normal(model.params.flat.size)
    tokens = rng.integers(0, 11, length)
    total = 0.0
    without_stride = [(tokens[i:i + 8][:length - 1 - i], tokens[i + 1:i + 9]) for i in range(0, length - 1, 8)]
    for x, y in windows(tokens, 8, stride) if stride else without_stride:
        logits = model.forward(x[None])[0][0]
        total += sum(math.log(np.exp(row).sum()) - row[target]
                     for row, target in zip(logits, y, strict=True) if target != IGNORE_INDEX)
    loss, n = evaluate_split(model, tokens, stride)
    assert (loss, n) == (pytest.approx(total / (length - 1), rel=1e-9), length - 1)

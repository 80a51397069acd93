"""The loss on a whole split, against a loop that knows nothing of batches."""

import math

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.training import evaluation
from npgpt.training.evaluation import evaluate_split


@pytest.mark.parametrize("tokens_at_once", [1, 16, 8192])
@pytest.mark.parametrize("length", [2, 8, 9, 10, 41, 100])
def test_every_target_counts_once(tokens_at_once, length, monkeypatch):
    monkeypatch.setattr(evaluation, "TOKENS_AT_ONCE", tokens_at_once)
    model = GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8), dtype="float64")
    rng = np.random.default_rng(0)
    model.params.flat[:] = rng.standard_normal(model.params.flat.size)
    tokens = rng.integers(0, 11, length)
    total = 0.0
    for start in range(0, length - 1, 8):
        x, y = tokens[start:start + 8][:length - 1 - start], tokens[start + 1:start + 9]
        logits = model.forward(x[None])[0][0]
        total += sum(math.log(np.exp(row).sum()) - row[target] for row, target in zip(logits, y, strict=True))
    result = evaluate_split(model, tokens, progress=False)
    assert result.tokens == length - 1
    assert result.loss == pytest.approx(total / (length - 1), rel=1e-9)
    assert result.perplexity == pytest.approx(math.exp(total / (length - 1)), rel=1e-9)

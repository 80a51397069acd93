"""The loss of a model on a whole split, with perplexity and bits per byte."""

import dataclasses
import math
import operator

import numpy as np

from npgpt.data.batches import Tokens, count_targets, strided_windows, windows
from npgpt.data.token_files import check_tokens
from npgpt.display import HIDE_BARS, tqdm
from npgpt.layers.loss import IGNORE_INDEX

TOKENS_AT_ONCE = 8192
LOGITS_AT_ONCE = 1 << 24     # 64 MB in float32; the loss makes several arrays of this size


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """loss: mean nats per token. tokens: how many were predicted."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """Return exp(loss); infinity for a loss above 709, where float64 overflows."""
        return math.exp(self.loss) if self.loss < 709.0 else math.inf


def evaluate_split(model, tokens: Tokens, stride: int | None = None, progress: bool | None = None) -> Evaluation:
    """Return the `Evaluation` of a model on a split, 1-D token ids or `Documents`.

    Without a stride the windows do not overlap, and no window of documents crosses their ends. Every token of a stream
    but the first is predicted once. Early tokens of a window have little context, so the loss is an upper bound.
    With a stride the windows are those of `strided_windows`.
    """
    check_tokens("tokens", tokens)
    block_size = model.config.block_size
    rows = max(model.engine.threads, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.config.vocab_size) // block_size)
    losses, counts, batch = [], [], []

    def finish_batch():
        idx, targets = (np.stack(part) for part in zip(*batch, strict=True))
        counts.append(int((targets != IGNORE_INDEX).sum()))
        losses.append(model.evaluate(idx, targets))
        bar.update(counts[-1])
        batch.clear()

    with tqdm(total=count_targets(tokens, block_size), unit="token", unit_scale=True, desc="evaluate",
              disable=HIDE_BARS if progress is None else not progress) as bar:
        for window in windows(tokens, block_size) if stride is None else strided_windows(tokens, block_size, stride):
            if batch and (len(batch) == rows or len(window[0]) != len(batch[0][0])):
                finish_batch()
            batch.append(window)
        finish_batch()
    return Evaluation(sum(map(operator.mul, counts, map(float, losses))) / sum(counts), sum(counts))

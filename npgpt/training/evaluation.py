"""The loss of a model on all of a split, and what follows from it."""

import dataclasses
import math

import numpy as np
from tqdm import tqdm

from npgpt.text.batches import windows

TOKENS_AT_ONCE = 8192


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """loss: mean nats per token. tokens: how many were predicted. bytes: of UTF-8 that they stand for, or None."""

    loss: float
    tokens: int
    bytes: int | None

    @property
    def perplexity(self):
        """exp(loss): as uncertain as a choice among so many equally likely tokens."""
        return math.exp(self.loss)

    @property
    def bits_per_byte(self):
        """The loss per byte of text, in bits: comparable between tokenizers. None where the bytes are not known."""
        return self.loss * self.tokens / math.log(2) / self.bytes if self.bytes else None


def evaluate_split(model, tokens, bytes_per_token=None, progress=None):
    """The `Evaluation` of a model on a split (1-D token ids), every token but the first predicted exactly once.

    The split is cut into windows of `block_size` tokens that do not overlap, so a token at the beginning of a window is
    predicted from few others: a pessimistic figure. bytes_per_token (V,): how many bytes each token stands for.
    """
    block_size = model.config.block_size
    rows = max(model.shards.threads, TOKENS_AT_ONCE // block_size)
    total, count, n_bytes = 0.0, 0, 0
    batch = []

    def finish_batch():
        nonlocal total, count, n_bytes
        idx, targets = (np.stack(part) for part in zip(*batch, strict=True))
        total += model.evaluate(idx, targets) * targets.size
        count += targets.size
        n_bytes += 0 if bytes_per_token is None else int(bytes_per_token[targets].sum())
        bar.update(targets.size)
        batch.clear()

    with tqdm(total=len(tokens) - 1, unit="token", unit_scale=True, desc="evaluate",
              disable=None if progress is None else not progress) as bar:
        for window in windows(tokens, block_size):
            if batch and (len(batch) == rows or len(window[0]) != len(batch[0][0])):
                finish_batch()
            batch.append(window)
        finish_batch()
    return Evaluation(total / count, count, n_bytes or None)

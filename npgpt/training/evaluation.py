"""The loss of a model on all of a split, and what follows from it."""

import dataclasses
import math

import numpy as np
from tqdm import tqdm

from npgpt.data.batches import windows
from npgpt.errors import UserError
from npgpt.layers.loss import IGNORE_INDEX

TOKENS_AT_ONCE = 8192
LOGITS_AT_ONCE = 1 << 24     # 64 MB in float32, and the loss makes a few such arrays


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """loss: mean nats per token. tokens: how many were predicted."""

    loss: float
    tokens: int

    @property
    def perplexity(self):
        """exp(loss): as uncertain as a choice among so many equally likely tokens; infinite for a loss above 709."""
        return math.exp(self.loss) if self.loss < 709.0 else math.inf


def evaluate_split(model, tokens, stride=None, progress=None):
    """The `Evaluation` of a model on a split (1-D token ids).

    Without a stride the split is cut into windows that do not overlap, every token but the first is predicted exactly
    once, and those at the beginning of a window from few others: a pessimistic figure. With a stride the windows are
    those of `strided_windows`.
    """
    block_size = model.config.block_size
    rows = min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.config.vocab_size) // block_size
    rows = max(model.engine.threads, rows)
    total, count = 0.0, 0
    batch = []

    def finish_batch():
        nonlocal total, count
        idx, targets = (np.stack(part) for part in zip(*batch, strict=True))
        counted = targets[targets != IGNORE_INDEX]
        total += model.evaluate(idx, targets) * counted.size
        count += counted.size
        bar.update(counted.size)
        batch.clear()

    with tqdm(total=len(tokens) - 1, unit="token", unit_scale=True, desc="evaluate",
              disable=None if progress is None else not progress) as bar:
        for window in windows(tokens, block_size) if stride is None else strided_windows(tokens, block_size, stride):
            if batch and (len(batch) == rows or len(window[0]) != len(batch[0][0])):
                finish_batch()
            batch.append(window)
        finish_batch()
    return Evaluation(float(total) / count, count)


def strided_windows(tokens, block_size, stride):
    """Yield (x, y), each window beginning `stride` tokens after the last; y is -1 where the last had the token already.

    The windows of transformers' "Perplexity of fixed-length models": block_size tokens with their own last ones as
    targets, so that each has at least block_size - stride tokens before it (the first window's apart). UserError for a
    stride that is not from 1 to block_size, and for fewer than two tokens.
    """
    if not 1 <= stride <= block_size:
        raise UserError(f"the stride must be from 1 to the context of {block_size} tokens, not {stride}")
    if len(tokens) < 2:
        raise UserError(f"there are {len(tokens)} tokens and evaluation needs 2: give a longer text")
    seen = 0                                    # tokens up to here have been targets
    for begin in range(0, len(tokens), stride):
        end = min(begin + block_size, len(tokens))
        x, y = np.array(tokens[begin:end - 1], dtype=np.int64), np.array(tokens[begin + 1:end], dtype=np.int64)
        y[:max(0, seen - begin - 1)] = IGNORE_INDEX
        if (y != IGNORE_INDEX).any():
            yield x, y
        seen = end
        if end == len(tokens):
            return

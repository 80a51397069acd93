"""The loss of a model on a whole split."""

import itertools
from collections.abc import Iterable

import numpy as np

from npgpt.data.batches import Batch, Tokens, count_targets, windows
from npgpt.display import HIDE_BARS, tqdm
from npgpt.engine.reference import counted

TOKENS_AT_ONCE = 8192
LOGITS_AT_ONCE = 1 << 24  # 64 MB in float32; the loss makes several arrays of this size


def mean_loss(model, batches: Iterable[Batch]) -> tuple[float, int]:
    """Compute the mean loss over all targets of some batches (idx, targets), and how many targets
    there are.
    """
    # On a GPU nothing waits for the losses before all are computed.
    found = [(model.evaluate(*batch), counted(batch[1])) for batch in batches]
    count = sum(n for _, n in found)
    return sum(n * float(loss) for loss, n in found) / count, count


def evaluate_split(model, tokens: Tokens, stride: int | None = None) -> tuple[float, int]:
    """Compute the `mean_loss` of a model on a split, 1-D token ids.

    Without a stride the windows do not overlap. Every token but the first, and masked ones, is
    predicted once. Early tokens of a window have little context, so the loss is an upper bound.
    With a stride the windows are those of `windows`.
    """
    block_size = model.config.block_size
    rows = max(
        model.engine.threads,
        min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.config.vocab_size) // block_size,
    )
    size, stride = (block_size + 1, block_size) if stride is None else (block_size, stride)
    with tqdm(
        total=count_targets(tokens),
        unit="token",
        unit_scale=True,
        desc="evaluate",
        disable=HIDE_BARS,
    ) as bar:
        return mean_loss(model, stacked(windows(tokens, size, stride), rows, bar))


def stacked(windows, rows, bar):
    """Yield batches of at most `rows` windows (x, y) of equal length."""
    for _, equal in itertools.groupby(windows, lambda window: len(window[0])):
        while batch := list(itertools.islice(equal, rows)):
            idx, targets = map(np.stack, zip(*batch, strict=True))
            yield idx, targets
            bar.update(counted(targets))

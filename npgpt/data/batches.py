"""Choose the parts of the tokens that training and evaluation read."""

from collections.abc import Iterator

import numpy as np

from npgpt.checks import require
from npgpt.data.token_files import TokenFile
from npgpt.errors import UserError

Tokens = np.ndarray | TokenFile
Starts = np.ndarray | range
Batch = tuple[np.ndarray, np.ndarray]  # idx and targets, or one row of each
IGNORED = -1  # the target of a masked token, which the loss ignores


class Crops:
    """The crops of a stream of tokens, which may begin anywhere.

    A start offset is the position of a crop's first token.

    tokens: 1-D integers; those that a np.ma.MaskedArray masks are read, but are no targets.
    length: of a crop; of shorter tokens there is one crop. split: the name of the tokens in errors.
    Raises UserError for other tokens, for fewer than two, or if all are masked.
    """

    def __init__(self, tokens: Tokens, length: int, split: str = "train"):
        is_integer = isinstance(tokens, Tokens) and tokens.dtype.kind in "iu"
        is_row = is_integer and getattr(tokens, "ndim", 1) == 1
        what = "a 1-D array of integers (np.array makes one of a list)"
        require(f"{split} tokens", tokens, is_row, what)
        if count_targets(tokens) < 1:
            raise UserError(
                f"the {split} split has {len(tokens)} tokens, none of which is to be predicted: "
                "give a longer text, or train without validation (--val-fraction 0)"
            )
        self.tokens = tokens
        self.length = length = min(length, len(tokens) - 1)
        # All start offsets, and those of crops in order.
        self.starts: Starts = range(len(tokens) - length)
        self.in_turn: Starts = self.starts[::length]
        if isinstance(tokens, np.ma.MaskedArray):  # without crops that have no target
            seen = np.cumsum(~np.ma.getmaskarray(tokens))
            self.starts = np.flatnonzero(seen[length:] > seen[:-length])
            self.in_turn = self.starts[self.starts % length == 0]

    def at(self, starts: np.ndarray) -> Batch:
        """Return x and y, int64 (len(starts), length): the crops, and the same one token later."""
        crops = [self.tokens[start : start + self.length + 1] for start in starts.tolist()]
        return np.stack([*map(inputs, crops)]), np.stack([*map(targets, crops)])

    def random(self, batch_size: int, rng: np.random.Generator) -> np.ndarray:
        """Return the start offsets (batch_size,) of a batch, each equally likely; rng: a
        np.random.Generator.
        """
        return chosen(self.starts, rng.integers(len(self.starts), size=batch_size))

    def in_order(self, n: int, batch_size: int) -> np.ndarray:
        """Return the start offsets (batch_size,) of batch n, when the data are read in order again
        and again.
        """
        numbers = (n * batch_size + np.arange(batch_size)) % self.in_epoch(batch_size)
        return chosen(self.in_turn, numbers)

    def evenly(self, n_batches: int, batch_size: int) -> np.ndarray:
        """Return start offsets (n_batches, batch_size), spread evenly over the data, the same in
        every call.
        """
        numbers = np.linspace(0, len(self.starts) - 1, n_batches * batch_size).astype(np.int64)
        return chosen(self.starts, numbers).reshape(n_batches, batch_size)

    def in_epoch(self, batch_size: int) -> int:
        """Return the number of crops in an epoch's full batches. Raises UserError if the crops fill
        none.
        """
        if batch_size > len(self.in_turn):
            raise UserError(
                f"the train split has {len(self.tokens)} tokens and a batch in order needs "
                f"{batch_size * self.length + 1}: lower --batch-size or --crop-length, or give a "
                "longer text"
            )
        return len(self.in_turn) // batch_size * batch_size


def chosen(starts, numbers):
    """Return starts[numbers], int64, of an array or a range."""
    return np.array([starts[number] for number in numbers.tolist()])


def inputs(part):
    """Return all tokens of a part but the last, int64."""
    return np.array(part[:-1], dtype=np.int64)


def targets(part):
    """Return all tokens of a part but the first, int64; IGNORED for masked ones."""
    return np.ma.filled(part[1:].astype(np.int64), IGNORED)


def count_targets(tokens: Tokens) -> int:
    """Return the number of targets of all `windows`."""
    return tokens[1:].count() if isinstance(tokens, np.ma.MaskedArray) else len(tokens) - 1


def windows(tokens: Tokens, size: int, stride: int) -> Iterator[Batch]:
    """Yield parts (x, y) of at most `size` tokens that begin `stride` tokens apart, for evaluation.

    y is IGNORED for tokens that an earlier window predicted, and for masked ones. These are the
    windows of transformers' "Perplexity of fixed-length models". Except in the first window, every
    target has at least size - stride tokens of context; with size = stride + 1 none overlap. Raises
    UserError for a stride that is not from 1 to size, or if nothing is to be predicted.
    """
    if not 1 <= stride <= size:
        raise UserError(f"the stride must be from 1 to the context of {size} tokens, not {stride}")
    if count_targets(tokens) < 1:
        raise UserError(f"of {len(tokens)} tokens none is to be predicted: give a longer text")
    seen = 0  # tokens before this position have been targets
    for begin in range(0, len(tokens), stride):
        part = tokens[begin : begin + size]
        y = targets(part)
        y[: max(0, seen - begin - 1)] = IGNORED
        if (y != IGNORED).any():
            yield inputs(part), y
        seen = begin + len(part)
        if seen == len(tokens):
            return

"""Choose the parts of the tokens that training and evaluation read.

A stream of tokens is read in crops, which may begin anywhere; documents are read in windows.
"""

from collections.abc import Callable, Iterator

import numpy as np

from npgpt.data.token_files import Documents, TokenFile
from npgpt.errors import UserError

Tokens = np.ndarray | TokenFile | Documents
IGNORED = -1    # the target of padding, which the loss ignores


def crops_of(tokens: Tokens, length: int) -> "StreamCrops | DocumentCrops":
    """Return the crops of `length` tokens and as many targets of `tokens`: 1-D integers, or `Documents`.

    Raises UserError if there are too few tokens for one crop.
    """
    return DocumentCrops(tokens, length) if isinstance(tokens, Documents) else StreamCrops(tokens, length)


class Crops:
    """Choose the crops of a batch. A subclass reads them."""

    n_starts: int                   # the number of possible start offsets
    stride: int                     # in order, the next crop starts that much later
    in_epoch: Callable[..., int]

    def random(self, batch_size: int, rng: np.random.Generator) -> np.ndarray:
        """Return the start offsets (batch_size,) of a batch, each equally likely; rng: a np.random.Generator."""
        return rng.integers(self.n_starts, size=batch_size)

    def in_order(self, n: int, batch_size: int) -> np.ndarray:
        """Return the start offsets (batch_size,) of batch n, when the data are read in order again and again."""
        return (n * batch_size + np.arange(batch_size)) % self.in_epoch(batch_size) * self.stride

    def evenly(self, n_batches: int, batch_size: int) -> np.ndarray:
        """Return start offsets (n_batches, batch_size), spread evenly over the data, the same in every call."""
        starts = np.linspace(0, self.n_starts - 1, n_batches * batch_size).astype(np.int64)
        return starts.reshape(n_batches, batch_size)


class StreamCrops(Crops):
    """The crops of a stream. A start offset is the position of a crop's first token."""

    def __init__(self, tokens: np.ndarray | TokenFile, length: int):
        if len(tokens) <= length:
            raise UserError(f"the split has {len(tokens)} tokens and a crop needs {length + 1} (block_size + 1): "
                            "lower the block size, or give a longer text")
        self.tokens, self.length = tokens, length
        self.n_starts, self.stride = len(tokens) - length, length

    def in_epoch(self, batch_size: int) -> int:
        """Return the number of crops in an epoch's full batches. Raises UserError if the crops fill none."""
        batches = (len(self.tokens) - 1) // self.length // batch_size
        if batches == 0:
            raise UserError(f"the training split has {len(self.tokens)} tokens and a batch in order needs "
                            f"{batch_size * self.length + 1}: lower the batch size, or give a longer text")
        return batches * batch_size

    def at(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return x and y, int64 (len(starts), length): the crops at `starts`, and the same one token later."""
        crops = np.stack([self.tokens[start:start + self.length + 1] for start in starts.tolist()])
        return crops[:, :-1].astype(np.int64), crops[:, 1:].astype(np.int64)


class DocumentCrops(Crops):
    """The first length + 1 tokens, a window, of each of the `Documents`. Its start is its number.

    Windows in which every target is ignored are left out. Raises UserError if all are.
    """

    stride = 1

    def __init__(self, documents: Documents, length: int):
        self.documents, self.length = documents, length
        lengths = np.minimum(documents.lengths, length + 1)
        prompts = np.zeros_like(lengths) if documents.prompts is None else documents.prompts.astype(np.int64)
        ignored = np.clip(prompts - 1, 0, lengths - 1)          # targets that are tokens of the prompt
        counts = lengths - 1 - ignored
        self.starts, self.lengths, self.ignored, self.counts = (
            each[counts > 0] for each in (documents.starts, lengths, ignored, counts))
        self.n_starts = len(self.starts)
        if self.n_starts == 0:
            raise UserError(f"every prompt has more than {length} tokens, so no completion is seen: give shorter "
                            "prompts, or raise the block size")

    def in_epoch(self, batch_size: int) -> int:
        """Return the number of windows in an epoch, whose last batch is filled with the first windows."""
        return self.n_starts

    def at(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return x and y, int64 (len(starts), length), as in `StreamCrops`.

        A shorter window is padded: x with pad_token_id, by default the window's last token, which ends the text, and y
        with -1.
        """
        x = np.empty((len(starts), self.length), dtype=np.int64)
        y = np.full_like(x, IGNORED)
        for row, number in enumerate(starts):
            start = int(self.starts[number])
            window = self.documents[start:start + int(self.lengths[number])]
            n, pad = len(window) - 1, self.documents.pad_token_id
            pad = window[-1] if pad is None else pad
            x[row, :n + 1], x[row, n + 1:], y[row, :n] = window[:self.length], pad, window[1:]
            y[row, :self.ignored[number]] = IGNORED
        return x, y


def count_targets(tokens: Tokens, block_size: int) -> int:
    """Return the number of targets of all `windows`."""
    if isinstance(tokens, Documents):
        return int(DocumentCrops(tokens, block_size).counts.sum())
    return len(tokens) - 1


def windows(tokens: Tokens, block_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (x, y), int64 (block_size,) each, for evaluation.

    Together the y's of a stream are tokens[1:], and the last may be shorter. Those of documents are
    padded, as in `DocumentCrops`. Raises UserError if there are fewer than two tokens.
    """
    if not isinstance(tokens, Documents):
        yield from strided_windows(tokens, block_size + 1, block_size)
        return
    crops = DocumentCrops(tokens, block_size)
    for number in range(crops.n_starts):
        x, y = crops.at(np.array([number]))
        yield x[0], y[0]


def strided_windows(tokens: Tokens, block_size: int, stride: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield windows (x, y) that begin `stride` tokens apart. y is -1 for tokens that an earlier window predicted.

    These are the windows of transformers' "Perplexity of fixed-length models". Except in the first window, every
    target has at least block_size - stride tokens of context. Raises UserError for documents, a stride that is not from
    1 to block_size, or fewer than two tokens.
    """
    if isinstance(tokens, Documents):
        raise UserError("documents have their own windows: leave the stride out")
    if not 1 <= stride <= block_size:
        raise UserError(f"the stride must be from 1 to the context of {block_size} tokens, not {stride}")
    if len(tokens) < 2:
        raise UserError(f"there are {len(tokens)} tokens and evaluation needs 2: give a longer text")
    seen = 0                                    # tokens before this position have been targets
    for begin in range(0, len(tokens), stride):
        end = min(begin + block_size, len(tokens))
        x, y = np.array(tokens[begin:end - 1], dtype=np.int64), np.array(tokens[begin + 1:end], dtype=np.int64)
        y[:max(0, seen - begin - 1)] = IGNORED
        if (y != IGNORED).any():
            yield x, y
        seen = end
        if end == len(tokens):
            return

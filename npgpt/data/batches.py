"""Batches: which parts of the tokens training and evaluation read.

A stream of tokens has a crop at every place; documents have one window each. Both classes answer the same questions.
"""

import numpy as np

from npgpt.data.token_files import Documents
from npgpt.errors import UserError

IGNORED = -1    # the target of a padded position, which the loss leaves out


def crops_of(tokens, length):
    """Return the crops of `length` tokens and as many targets of `tokens`: 1-D integers, or `Documents`.

    Raises UserError if there are too few tokens for one crop.
    """
    return DocumentCrops(tokens, length) if isinstance(tokens, Documents) else StreamCrops(tokens, length)


class Crops:
    """Which crops a batch consists of. A subclass has `places`, how many crops there are, and says what is in them."""

    def random(self, batch_size, rng):
        """Return the places (batch_size,) of a batch, each equally likely; rng: a np.random.Generator."""
        return rng.integers(self.places, size=batch_size)

    def in_order(self, n, batch_size):
        """Return the places (batch_size,) of batch n of an endless walk over the data."""
        numbers = n * batch_size + np.arange(batch_size)
        return numbers % self.in_epoch(batch_size) * self.stride

    def evenly(self, n_batches, batch_size):
        """Return places (n_batches, batch_size), spread evenly over the data, the same in every call."""
        places = np.linspace(0, self.places - 1, n_batches * batch_size).astype(np.int64)
        return places.reshape(n_batches, batch_size)


class StreamCrops(Crops):
    """The crops of a stream. A place is the position of a crop's first token."""

    def __init__(self, tokens, length):
        if len(tokens) <= length:
            raise UserError(f"the split has {len(tokens)} tokens and a crop needs {length + 1} (block_size + 1): "
                            "lower the block size, or give a longer text")
        self.tokens, self.length = tokens, length
        self.places, self.stride = len(tokens) - length, length

    def in_epoch(self, batch_size):
        """Return how many crops an epoch has: as many as fill whole batches. Raises UserError if they fill none."""
        batches = (len(self.tokens) - 1) // (batch_size * self.length)
        if batches == 0:
            raise UserError(f"the training split has {len(self.tokens)} tokens and a batch in order needs "
                            f"{batch_size * self.length + 1}: lower the batch size, or give a longer text")
        return batches * batch_size

    def count(self, places):
        """Return how many targets count in the crops at `places`."""
        return len(places) * self.length

    def at(self, places):
        """Return x and y, int64 (len(places), length): the crops at `places`, and the same one token later."""
        crops = np.stack([self.tokens[place:place + self.length + 1] for place in places.tolist()])
        return crops[:, :-1].astype(np.int64), crops[:, 1:].astype(np.int64)


class DocumentCrops(Crops):
    """One window for each document: its first length + 1 tokens. A place is the number of a document."""

    stride = 1

    def __init__(self, documents, length):
        self.documents, self.length = documents, length
        self.places = len(documents.starts)

    def in_epoch(self, batch_size):
        """Return how many windows an epoch has. A batch at its end goes on with the first documents."""
        return self.places

    def count(self, places):
        """Return how many targets count in the windows at `places`."""
        return int(np.minimum(self.documents.lengths[places] - 1, self.length).sum())

    def at(self, places):
        """Return x and y, int64 (len(places), length), as in `StreamCrops`.

        A shorter document is padded: x with its last token, the end of text, and y with -1.
        """
        x = np.empty((len(places), self.length), dtype=np.int64)
        y = np.full_like(x, IGNORED)
        for row, place in enumerate(places):
            window = self.window(place)
            n = len(window) - 1
            x[row, :n], x[row, n:], y[row, :n] = window[:-1], window[-1], window[1:]
        return x, y

    def window(self, place):
        """Return the tokens of the window at a place, without padding."""
        start = int(self.documents.starts[place])
        return self.documents[start:start + min(int(self.documents.lengths[place]), self.length + 1)]

    def targets(self):
        """Yield the targets of all windows in their order, 1-D, some thousand windows at a time."""
        for first in range(0, self.places, 4096):
            some = range(first, min(first + 4096, self.places))
            yield np.concatenate([self.window(place)[1:] for place in some])


def count_targets(tokens, block_size):
    """Return how many targets the windows have."""
    if isinstance(tokens, Documents):
        crops = DocumentCrops(tokens, block_size)
        return crops.count(np.arange(crops.places))
    return len(tokens) - 1


def windows(tokens, block_size):
    """Yield (x, y), int64 (block_size,) each, for evaluation.

    Together the y's of a stream are tokens[1:], and the last may be shorter. Documents have one window each, padded as
    in `DocumentCrops`. Raises UserError if there are fewer than two tokens.
    """
    if isinstance(tokens, Documents):
        crops = DocumentCrops(tokens, block_size)
        for place in range(crops.places):
            x, y = crops.at(np.array([place]))
            yield x[0], y[0]
        return
    targets = len(tokens) - 1
    if targets < 1:
        raise UserError(f"the split has {len(tokens)} tokens and evaluation needs 2: give a longer text")
    for start in range(0, targets, block_size):
        stop = min(start + block_size, targets)
        yield np.array(tokens[start:stop], dtype=np.int64), np.array(tokens[start + 1:stop + 1], dtype=np.int64)

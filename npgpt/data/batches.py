"""Tokens to train on: the two splits of a corpus, random crops for training and windows for evaluation.

Tokens are a 1-D uint16 array or a `TokenFile`, which reads nanoGPT's train.bin and val.bin piece by piece.
"""

import os
from pathlib import Path

import numpy as np
from tqdm import tqdm

from npgpt.data.tokenizers import TOKENIZER_FILE, is_called, load_tokenizer, make_tokenizer, save_tokenizer
from npgpt.errors import UserError
from npgpt.files import new_folder, open_regular


def split_text(text, fraction=0.9):
    """Return (train text, validation text), cut as in nanoGPT: after int(len(text) * fraction) characters."""
    boundary = int(len(text) * fraction)
    return text[:boundary], text[boundary:]


def tokenize_corpus(corpus, tokenizer):
    """Return (train, validation) tokens of a corpus with a text, uint16. Raises UserError as tokenizer.encode does.

    The splits are encoded separately, so that no token crosses the boundary.
    """
    train_text, val_text = split_text(corpus.text)
    return tokenizer.encode(train_text), tokenizer.encode(val_text)


class TokenFile:
    """The tokens in a file, little-endian uint16 as in nanoGPT. It has a length, and a slice is read when it is taken.

    Raises UserError if the file is missing, empty, not regular, or has an odd size, and later if it became shorter:
    a memory map would end the process then.
    """

    dtype = np.dtype("<u2")

    def __init__(self, path):
        self.path = Path(path)
        try:
            self._file = open_regular(path)
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: write train.bin and val.bin with `npgpt data prepare`") from None
        size = os.fstat(self._file.fileno()).st_size
        if size == 0 or size % 2:
            raise UserError(f"{path} has {size} bytes, which are not uint16 tokens: prepare it again")
        self._length = size // 2

    def __len__(self):
        return self._length

    def __getitem__(self, part):
        start, stop, _ = part.indices(self._length)
        self._file.seek(2 * start)
        data = self._file.read(2 * max(0, stop - start))
        if len(data) < 2 * (stop - start):
            raise UserError(f"{self.path} was cut short while it was read: prepare it again")
        return np.frombuffer(data, self.dtype)


def load_token_files(folder):
    """Return train.bin and val.bin of `folder`, two `TokenFile`s. Raises UserError as they do."""
    return TokenFile(Path(folder) / "train.bin"), TokenFile(Path(folder) / "val.bin")


def prepare(corpus, tokenizer, folder, progress=True):
    """Write a corpus with a text as the new folder `folder`: train.bin, val.bin and the tokenizer, all or nothing.

    Raises UserError if the corpus is token files already or the folder holds other files, and as tokenizer.encode
    does; OSError if the folder cannot be written.
    """
    if corpus.text is None:
        raise UserError(f"{corpus.folder} holds token files already: give a corpus that is text")
    train_text, val_text = split_text(corpus.text)
    with new_folder(folder, TOKENIZER_FILE) as unfinished:
        save_tokenizer(tokenizer, unfinished / TOKENIZER_FILE)
        for name, text in tqdm([("train.bin", train_text), ("val.bin", val_text)], desc="prepare",
                               disable=None if progress else True):
            (unfinished / name).write_bytes(tokenizer.encode(text).astype("<u2").tobytes())


def open_dataset(corpus, tokenizer_kind=None):
    """Return (train, validation, tokenizer) of a corpus; the tokens are uint16.

    `tokenizer_kind`: a name for make_tokenizer, by default "char" for a text. Token files come with their tokenizer;
    without one it is `tokenizer_kind`, by default GPT-2's, as in nanoGPT. Raises UserError if the folder has another
    tokenizer or nanoGPT's meta.pkl, and as tokenize_corpus, make_tokenizer and load_token_files do.
    """
    if corpus.text is None:
        return *load_token_files(corpus.folder), folder_tokenizer(corpus.folder, tokenizer_kind)
    tokenizer = make_tokenizer(tokenizer_kind or "char", corpus.text)
    return *tokenize_corpus(corpus, tokenizer), tokenizer


def folder_tokenizer(folder, tokenizer_kind):
    """Return the tokenizer of the token files in `folder`. Raises UserError as open_dataset does."""
    if (folder / TOKENIZER_FILE).exists():
        tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
        if tokenizer_kind is not None and not is_called(tokenizer, tokenizer_kind):
            raise UserError(f"{folder} was prepared with the {tokenizer.kind} tokenizer, not {tokenizer_kind}: "
                            "leave the tokenizer out, or prepare the text again")
        return tokenizer
    if (folder / "meta.pkl").exists():
        raise UserError(f"{folder} keeps its characters in meta.pkl, and npgpt reads no pickles: "
                        "make the folder from the text with `npgpt data prepare`")
    return make_tokenizer(tokenizer_kind or "gpt2")


def random_crops(tokens, batch_size, block_size, rng):
    """Draw a batch from `tokens` (1-D): x and y, int64 (batch_size, block_size), where y is x one token later.

    Every crop is equally likely; rng: a np.random.Generator. Raises UserError if there are too few tokens.
    """
    check_long_enough(tokens, block_size)
    return crops_at(tokens, rng.integers(len(tokens) - block_size, size=batch_size), block_size)


def even_crops(tokens, n_batches, batch_size, block_size):
    """Yield n_batches batches like those of random_crops, but with the crops spread evenly over all of `tokens`.

    They are the same in every call, so that two losses differ only by the model. Raises UserError as random_crops does.
    """
    check_long_enough(tokens, block_size)
    starts = np.linspace(0, len(tokens) - block_size - 1, n_batches * batch_size).astype(np.int64)
    for batch in starts.reshape(n_batches, batch_size):
        yield crops_at(tokens, batch, block_size)


def crops_at(tokens, starts, block_size):
    """Return x and y, int64 (len(starts), block_size): the crops of `tokens` that begin at `starts`."""
    crops = np.stack([tokens[start:start + block_size + 1] for start in starts.tolist()])
    return crops[:, :-1].astype(np.int64), crops[:, 1:].astype(np.int64)


def check_long_enough(tokens, block_size):
    """Raise UserError if there are too few tokens for one crop and its last target."""
    if len(tokens) <= block_size:
        raise UserError(f"the split has {len(tokens)} tokens and a crop needs {block_size + 1} (block_size + 1): "
                        "lower the block size, or give a longer text")


def windows(tokens, block_size):
    """Yield (x, y), int64 (block_size,) each; together the y's are tokens[1:], and the last may be shorter.

    Raises UserError if there are fewer than two tokens.
    """
    targets = len(tokens) - 1
    if targets < 1:
        raise UserError(f"the split has {len(tokens)} tokens and evaluation needs 2: give a longer text")
    for start in range(0, targets, block_size):
        stop = min(start + block_size, targets)
        yield np.array(tokens[start:stop], dtype=np.int64), np.array(tokens[start + 1:stop + 1], dtype=np.int64)

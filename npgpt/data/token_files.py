"""Token files: nanoGPT's train.bin and val.bin, read piece by piece, and indexes of the documents in them."""

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from npgpt.checks import as_array, check, check_path, check_whole
from npgpt.errors import UserError
from npgpt.files import atomic_writer, open_regular, read_bytes, read_json, write_atomically

SEPARATOR = "<|endoftext|>"     # between two documents of a text file
SPLITS = ("train", "val")
SETTINGS_FILE = "npgpt_data.json"       # of a folder of token files, if its settings differ from these
SETTINGS = {"all_windows": False, "count_padding": False, "validation": True}       # and perhaps "pad_token_id"


class TokenFile:
    """The tokens in a file, little-endian uint16 as in nanoGPT. It has a length, and slices are read on demand.

    Raises UserError if the file is missing, empty, not regular, or has an odd size, and later if it became shorter:
    a memory map would end the process then.
    """

    dtype = np.dtype("<u2")

    def __init__(self, path: str | Path):
        check_path("path", path)
        self.path = Path(path)
        try:
            self._file = open_regular(path)
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: write train.bin and val.bin with `npgpt data prepare`") from None
        size = os.fstat(self._file.fileno()).st_size
        if size == 0 or size % 2:
            raise UserError(f"{path} has {size} bytes, which are not uint16 tokens: prepare it again")
        self._length = size // 2

    def __repr__(self):
        return f"TokenFile({len(self):,} tokens in {self.path})"

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self._length)
        self._file.seek(2 * start)
        data = self._file.read(2 * max(0, stop - start))
        if len(data) < 2 * (stop - start):
            raise UserError(f"{self.path} was cut short while it was read: prepare it again")
        return np.frombuffer(data, self.dtype)


class Documents:
    """Tokens divided into documents. As a stream of tokens, it has a length and slices.

    tokens: 1-D, an array or a `TokenFile`. starts: the first token of each document, ascending integers from 0.
    prompts: how many first tokens of each document are not targets (at least one target is left), or None.
    all_windows: training and evaluation read every window of a document, not only the first. count_padding: the
    padding of a window counts as targets. pad_token_id: what pads windows; None: the document's last token.
    Raises UserError unless each document has at least two tokens: with one there is nothing to predict.
    """

    def __init__(self, tokens: np.ndarray | TokenFile, starts: ArrayLike, prompts: ArrayLike | None = None,
                 all_windows: bool = False, count_padding: bool = False, pad_token_id: int | None = None):
        check_tokens("tokens", tokens)
        starts = as_array("starts", starts)
        within = starts.ndim == 1 and starts.size and starts.dtype.kind in "iu" and starts.max() < len(tokens)
        lengths: np.ndarray = np.diff(starts.astype(np.int64), append=len(tokens)) if within else np.zeros(1)
        if lengths.min() < 2 or starts[0] != 0:
            raise UserError(f"the documents do not divide the {len(tokens)} tokens into parts of at least 2 tokens")
        self.tokens, self.dtype = tokens, tokens.dtype
        self.starts, self.lengths = starts.astype(np.int64), lengths
        self.prompts = None if prompts is None else as_array("prompts", prompts)
        right = self.prompts is None or (self.prompts.shape == starts.shape and self.prompts.dtype.kind in "iu"
                                    and (0 <= self.prompts).all() and (self.prompts < lengths).all())
        check("prompts", prompts, right, "a length for each document, shorter than the document")
        for name, value in (("all_windows", all_windows), ("count_padding", count_padding)):
            check(name, value, isinstance(value, bool), "true or false")
        check_whole("pad_token_id", pad_token_id, most=2**16 - 1, or_none=True)
        self.all_windows, self.count_padding, self.pad_token_id = all_windows, count_padding, pad_token_id

    def __repr__(self):
        return (f"Documents({len(self):,} tokens in {len(self.starts):,} documents, "
                f"{'all windows' if self.all_windows else 'the first window'} of each)")

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> np.ndarray:
        return self.tokens[part]


def check_tokens(name, tokens):
    """Raise UserError unless `tokens` are a 1-D array of integers, a `TokenFile` or `Documents`, without reading."""
    right = isinstance(tokens, TokenFile | Documents | np.ndarray) and tokens.dtype.kind in "iu"
    check(name, tokens, right and getattr(tokens, "ndim", 1) == 1,
          "a 1-D array of integers (np.array makes one of a list), or Documents")


def index_file(folder: str | Path, split: str) -> Path:
    """Return the path of the index of a split's documents: where each begins, little-endian uint64."""
    return Path(folder) / f"{split}.documents.bin"


def load_token_files(folder: str | Path) -> list:
    """Return train.bin and val.bin of `folder`, `TokenFile`s, or `Documents` if the folder has indexes of documents.

    The second is None if the folder was prepared without validation. Raises UserError as `TokenFile` does, and if an
    index is missing or does not fit its tokens.
    """
    check_path("folder", folder)
    settings = read_settings(folder)
    names = SPLITS if settings.pop("validation") else SPLITS[:1]
    splits = [TokenFile(Path(folder) / f"{split}.bin") for split in names]
    if any(index_file(folder, split).exists() for split in SPLITS):
        splits = [read_documents(tokens, index_file(folder, split), settings)
                  for split, tokens in zip(names, splits, strict=True)]
    return [*splits, None][:2]


def write_settings(folder, **settings):
    """Write SETTINGS_FILE into a folder of token files, if a setting differs from SETTINGS and is not None."""
    settings = SETTINGS | {name: value for name, value in settings.items() if value is not None}
    if settings != SETTINGS:
        write_atomically(Path(folder) / SETTINGS_FILE, json.dumps(settings).encode())


def read_settings(folder):
    """Return the settings of a folder of token files, a dict. Raises UserError if their file is wrong."""
    path = Path(folder) / SETTINGS_FILE
    settings = read_json(path) if path.exists() else SETTINGS.copy()
    right = isinstance(settings, dict) and settings.keys() - {"pad_token_id"} == SETTINGS.keys()
    if not right or not all(isinstance(settings[name], bool) for name in SETTINGS):
        raise UserError(f"{path} must set {', '.join(SETTINGS)} to true or false: prepare the folder again")
    check_whole(f"pad_token_id in {path}", settings.get("pad_token_id", 0), most=2**16 - 1)
    return settings


def read_documents(tokens, path, settings):
    """Return the `Documents` of a `TokenFile`, with the index at `path`. Raises UserError as load_token_files does."""
    try:
        data = read_bytes(path, most=4 * len(tokens))       # 8 for every second token
        return Documents(tokens, np.frombuffer(data, "<u8"), **settings)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): prepare the folder again") from None
    except (ValueError, UserError) as error:        # ValueError: its size is not a multiple of 8
        raise UserError(f"{path} is not an index of the documents in {tokens.path} ({error}): prepare the folder again"
                        ) from None


def write_documents(texts: Iterable[str], tokenizer, separator: str, path: Path, index: Path | None = None,
                    end: int | None = None) -> None:
    """Write the tokens of texts (an iterable) to `path`, and where each begins to `index`, completely or not at all.

    A document ends with the token `end`, by default the tokenizer's end of text or, if it has none, the separator as
    text. One with fewer than two tokens is left out. Raises UserError if all are, and as tokenizer.encode does.
    """
    eos = tokenizer.eos_token_id if end is None else end
    ending, eos_bytes = (separator, b"") if eos is None else ("", eos.to_bytes(2, "little"))
    # The index is renamed first: if the tokens are there, they are complete.
    with atomic_writer(path) as tokens, contextlib.nullcontext() if index is None else atomic_writer(index) as starts:
        for text in texts:
            data = tokenizer.encode(text + ending).astype("<u2").tobytes() + eos_bytes
            if len(data) < 4:
                continue
            if starts:
                starts.write((tokens.tell() // 2).to_bytes(8, "little"))
            tokens.write(data)
        if not tokens.tell():
            raise UserError(f"no document for {path.name} has 2 tokens: give a longer text")

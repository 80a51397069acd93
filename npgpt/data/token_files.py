"""Token files: nanoGPT's train.bin and val.bin, read piece by piece, and indexes of the documents in them."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from npgpt.checks import check_whole, require
from npgpt.errors import UserError
from npgpt.files import open_regular, read_bytes, read_json, write_json

SEPARATOR = "<|endoftext|>"     # between two documents of a text file
SPLITS = ("train", "val")
SETTINGS_FILE = "npgpt_data.json"       # has the pad_token_id of the documents in a folder, if there is one


class TokenFile:
    """The tokens in a file, little-endian uint16 as in nanoGPT. It has a length, and slices are read on demand.

    Raises UserError if the file is missing, empty, not regular, or has an odd size, and later if it became shorter:
    a memory map would end the process then.
    """

    dtype = np.dtype("<u2")

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self._file = open_regular(path)
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: write train.bin and val.bin with `npgpt data prepare`") from None
        size = os.fstat(self._file.fileno()).st_size
        if size == 0 or size % 2:
            raise UserError(f"{path} has {size} bytes, which are not uint16 tokens: prepare it again")
        self._length = size // 2

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
    pad_token_id: what pads a document in a batch; None: its last token.
    Raises UserError unless each document has at least two tokens: with one there is nothing to predict.
    """

    def __init__(self, tokens: np.ndarray | TokenFile, starts: ArrayLike, prompts: ArrayLike | None = None,
                 pad_token_id: int | None = None):
        check_tokens("tokens", tokens)
        starts = np.asarray(starts)
        within = starts.ndim == 1 and starts.size and starts.dtype.kind in "iu" and starts.max() < len(tokens)
        lengths: np.ndarray = np.diff(starts.astype(np.int64), append=len(tokens)) if within else np.zeros(1)
        if lengths.min() < 2 or starts[0] != 0:
            raise UserError(f"the documents do not divide the {len(tokens)} tokens into parts of at least 2 tokens")
        self.tokens, self.dtype = tokens, tokens.dtype
        self.starts, self.lengths = starts.astype(np.int64), lengths
        self.prompts = None if prompts is None else np.asarray(prompts)
        right = self.prompts is None or (self.prompts.shape == starts.shape and self.prompts.dtype.kind in "iu"
                                    and (0 <= self.prompts).all() and (self.prompts < lengths).all())
        require("prompts", prompts, right, "a length for each document, shorter than the document")
        check_whole("pad_token_id", pad_token_id, most=2**16 - 1, or_none=True)
        self.pad_token_id = pad_token_id

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> np.ndarray:
        return self.tokens[part]


def check_tokens(name, tokens):
    """Raise UserError unless `tokens` are a 1-D array of integers, a `TokenFile` or `Documents`, without reading."""
    right = isinstance(tokens, TokenFile | Documents | np.ndarray) and tokens.dtype.kind in "iu"
    require(name, tokens, right and getattr(tokens, "ndim", 1) == 1,
            "a 1-D array of integers (np.array makes one of a list), or Documents")


def index_file(folder: Path, split: str) -> Path:
    """Return the path of the index of a split's documents: where each begins, little-endian uint64."""
    return folder / f"{split}.documents.bin"


def write_token_files(folder: Path, train: np.ndarray | Documents, val: np.ndarray | Documents | None) -> None:
    """Write both splits into a folder, for `load_token_files`. Without validation, val.bin is empty."""
    for split, tokens in zip(SPLITS, (train, val), strict=True):
        (folder / f"{split}.bin").write_bytes(b"" if tokens is None else tokens[:].astype("<u2").tobytes())
        if isinstance(tokens, Documents):
            index_file(folder, split).write_bytes(tokens.starts.astype("<u8").tobytes())
    if isinstance(train, Documents) and train.pad_token_id is not None:
        write_json(folder / SETTINGS_FILE, {"pad_token_id": train.pad_token_id})


def load_token_files(folder: Path) -> list:
    """Return train.bin and val.bin of `folder`, `TokenFile`s, or `Documents` if the folder has indexes of documents.

    The second is None if val.bin is empty. Raises UserError as `TokenFile` does, and if an index is missing or does not
    fit its tokens.
    """
    val = folder / "val.bin"
    names = SPLITS[:1] if val.is_file() and val.stat().st_size == 0 else SPLITS
    splits = [TokenFile(folder / f"{split}.bin") for split in names]
    if any(index_file(folder, split).exists() for split in SPLITS):
        path = folder / SETTINGS_FILE
        settings = read_json(path) if path.exists() else {}
        if not isinstance(settings, dict) or settings.get("all_windows") or settings.get("count_padding"):
            raise UserError(f"{path} has settings that only older versions know: prepare the folder again")
        splits = [read_documents(tokens, index_file(folder, split), settings.get("pad_token_id"))
                  for split, tokens in zip(names, splits, strict=True)]
    return [*splits, None][:2]


def read_documents(tokens, path, pad_token_id):
    """Return the `Documents` of a `TokenFile`, with the index at `path`. Raises UserError as load_token_files does."""
    try:
        data = read_bytes(path, most=4 * len(tokens))       # 8 for every second token
        return Documents(tokens, np.frombuffer(data, "<u8"), pad_token_id=pad_token_id)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): prepare the folder again") from None
    except (ValueError, UserError) as error:        # ValueError: its size is not a multiple of 8
        raise UserError(f"{path} and {SETTINGS_FILE} do not fit {tokens.path} ({error}): prepare the folder again"
                        ) from None

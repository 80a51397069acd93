"""Token files: nanoGPT's train.bin and val.bin, read piece by piece."""

import os
from pathlib import Path

import numpy as np

from npgpt.errors import UserError
from npgpt.files import AnyPath, open_regular

SEPARATOR = "<|endoftext|>"  # between two documents of a text file
WITHOUT_HEADER = (
    "it is a token file of llm.c: without its header of 1,024 bytes it is nanoGPT's train.bin or "
    "val.bin"
)
LLM_C = (20240520).to_bytes(4, "little")  # begins llm.c's token files


class TokenFile:
    """The tokens in a file, little-endian uint16 as in nanoGPT. It has a length, and slices are
    read on demand.

    Differences of uint16 wrap: compute with `file[:100].astype(np.int64)`.
    Raises UserError if the file is missing, empty, not regular, or has an odd size, and later if it
    became shorter: a memory map would end the process then.
    """

    dtype = np.dtype("<u2")

    def __init__(self, path: AnyPath):
        self.path = Path(path)
        try:
            self._file = open_regular(path)
        except FileNotFoundError:
            raise UserError(
                f"{path} does not exist: write train.bin and val.bin with `npgpt data prepare`"
            ) from None
        size = os.fstat(self._file.fileno()).st_size
        if size == 0 or size % 2:
            raise UserError(
                f"{path} has {size} bytes, which are not uint16 tokens: prepare it again"
            )
        if self._file.read(4) == LLM_C:
            raise UserError(f"{path} cannot be read: {WITHOUT_HEADER}")
        self._length = size // 2

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self._length)
        size = 2 * max(0, stop - start)
        self._file.seek(2 * start)
        data = self._file.read(size)
        if len(data) < size:
            raise UserError(f"{self.path} was cut short while it was read: prepare it again")
        return np.frombuffer(data, self.dtype)


def write_token_files(folder: Path, train: np.ndarray, val: np.ndarray | None) -> None:
    """Write both splits into a folder, for `load_token_files`. Without validation, val.bin is
    empty.
    """
    for name, tokens in {"train.bin": train, "val.bin": val}.items():
        data = b"" if tokens is None else tokens.astype("<u2").tobytes()
        (folder / name).write_bytes(data)


def load_token_files(folder: Path) -> tuple[TokenFile, TokenFile | None]:
    """Return train.bin and val.bin of `folder`; None if val.bin is empty. Raises as `TokenFile`."""
    val = folder / "val.bin"
    is_empty = val.is_file() and not val.stat().st_size
    return TokenFile(folder / "train.bin"), None if is_empty else TokenFile(val)

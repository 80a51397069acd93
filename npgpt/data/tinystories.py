"""TinyStories as token files: 2.2 GB of text, prepared story by story in little memory, and where it stopped if it did.

The stories are those of GPT-4, second version (Eldan and Li, "TinyStories", 2023), from the hub.
"""

import json
import os
import re
import zlib
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from npgpt.checks import check_whole
from npgpt.data.tokenizers import TOKENIZER_FILE, canonical_kind, load_tokenizer, save_tokenizer
from npgpt.errors import UserError
from npgpt.files import make_folder, read_json, sync_folder, write_atomically

REPOSITORY = "roneneldan/TinyStories"
# The small one first: what goes wrong does so before the large one is fetched.
SPLITS = {"val.bin": "TinyStoriesV2-GPT4-valid.txt", "train.bin": "TinyStoriesV2-GPT4-train.txt"}
SEPARATOR = "<|endoftext|>"
PIECE_BYTES = 1 << 20  # of text that is in memory at a time


def tinystories_folder(directory, tokenizer_name):
    """Return where TinyStories goes below the folder for downloads, prepared with the tokenizer of that name."""
    kind = canonical_kind(tokenizer_name)
    return Path(directory) / "tinystories" / (re.sub(r"[^\w.-]+", "-", tokenizer_name) if kind == "hf" else kind)


def prepared_folders(directory):
    """Return the folders below the folder for downloads that hold TinyStories completely, one a tokenizer, sorted."""
    complete = (*SPLITS, TOKENIZER_FILE)
    folders = sorted((Path(directory) / "tinystories").glob("*/"))
    return [folder for folder in folders if all((folder / name).is_file() for name in complete)]


def prepare_tinystories(tokenizer, folder, progress=True):
    """Fetch TinyStories from the hub and write it into `folder`: train.bin, val.bin and the tokenizer's file.

    A split gets its name when it is complete. A call that was killed is continued by the next one; a split that is
    complete is left alone. Raises UserError when the folder has another tokenizer, as hub.fetch_file, prepare_split
    and tokenizer.encode do, and OSError when the folder cannot be written.
    """
    from npgpt.hub import fetch_file

    folder = Path(folder)
    make_folder(folder)
    # The tokenizer goes first: token files without one would be taken for GPT-2's.
    if not (folder / TOKENIZER_FILE).exists():
        save_tokenizer(tokenizer, folder / TOKENIZER_FILE)
    elif load_tokenizer(folder / TOKENIZER_FILE).to_dict() != tokenizer.to_dict():
        raise UserError(f"{folder} was prepared with another tokenizer of that name: delete the folder to begin anew")
    for name, filename in SPLITS.items():
        if not (folder / name).exists():
            prepare_split(fetch_file(REPOSITORY, filename, repo_type="dataset"), tokenizer, folder / name, progress)


class Progress(NamedTuple):
    """How far a split has come: so many bytes of text read, so many of tokens written, and a checksum of each."""

    read: int = 0
    read_crc: int = 0
    written: int = 0
    written_crc: int = 0

    def plus(self, piece, tokens):
        """Return the Progress when a piece of text and its tokens are done as well."""
        return Progress(
            self.read + len(piece),
            zlib.crc32(piece, self.read_crc),
            self.written + len(tokens),
            zlib.crc32(tokens, self.written_crc),
        )


def prepare_split(source, tokenizer, path, progress=True):
    """Write the tokens of the stories in the file `source` to `path`, little-endian uint16.

    They go to NAME.partial, and after each piece NAME.progress tells what is surely on the disk. Raises UserError when
    the source is not TinyStories: not UTF-8, without separators, or without a story; OSError as open and write do.
    """
    partial, note = path.with_suffix(".partial"), path.with_suffix(".progress")
    done = read_progress(note, source, partial)
    with (
        open(source, "rb") as text,
        # Nothing is cut off before the end: what lies beyond `done` will be written again, byte for byte the same.
        open(partial, "r+b" if partial.exists() else "wb") as tokens,
        tqdm(total=os.path.getsize(source), initial=done.read, unit="B", unit_scale=True, desc=path.name,
             disable=None if progress else True) as bar,
    ):
        text.seek(done.read)
        tokens.seek(done.written)
        for piece in pieces(text):
            data = encode_stories(decode_piece(piece, source, done.read), tokenizer)
            tokens.write(data)
            flush_to_disk(tokens)
            done = done.plus(piece, data)
            write_atomically(note, json.dumps(done._asdict()).encode())
            bar.update(len(piece))
        if not done.written:
            raise UserError(f"{source} holds no story: it is not the file that was asked for")
        tokens.truncate()
        flush_to_disk(tokens)
    os.replace(partial, path)
    sync_folder(path.parent)
    note.unlink(missing_ok=True)


def read_progress(note, source, partial):
    """Return the Progress in the file `note` if both other files begin as it tells, else that of a new beginning."""
    try:
        done = Progress(**read_json(note))
        for name, count in done._asdict().items():
            check_whole(name, count, 0, max(os.path.getsize(source), os.path.getsize(partial), 2**32))
        if checksum(source, done.read) == done.read_crc and checksum(partial, done.written) == done.written_crc:
            return done
    except (OSError, UserError, TypeError):  # no such note, or a damaged one
        pass
    return Progress()


def checksum(path, length):
    """Return the CRC-32 of the first `length` bytes of a file, or of all of it where it is shorter."""
    crc = 0
    with open(path, "rb") as file:
        while length > 0 and (chunk := file.read(min(length, PIECE_BYTES))):
            crc = zlib.crc32(chunk, crc)
            length -= len(chunk)
    return crc


def pieces(file):
    """Yield the rest of a binary file in pieces of whole stories, about PIECE_BYTES each, which end in a separator.

    The last piece may end without. Raises UserError when a story is longer than that.
    """
    rest = b""
    while block := file.read(PIECE_BYTES):
        stories, separator, rest = (rest + block).rpartition(SEPARATOR.encode())
        if separator:
            yield stories + separator
        if len(rest) > PIECE_BYTES:
            raise UserError(f"{file.name} has no {SEPARATOR} within {PIECE_BYTES:,} bytes: it is not TinyStories' text")
    if rest:
        yield rest


def decode_piece(piece, source, start):
    """Return the text of a piece that begins at the byte `start`; raises UserError that names a byte that is wrong."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 text at byte {start + error.start}: fetch it again") from error


def encode_stories(text, tokenizer):
    """Return the bytes of the tokens of a text: each story, without the space around it, and the id that ends it.

    A tokenizer that has no such id gets the separator as text, on a line of its own.
    """
    if tokenizer.eos_token_id is None:
        end, end_token = f"\n{SEPARATOR}\n", b""
    else:
        end, end_token = "", tokenizer.eos_token_id.to_bytes(2, "little")
    stories = [story for part in text.split(SEPARATOR) if (story := part.strip())]
    return b"".join(tokenizer.encode(story + end).astype("<u2").tobytes() + end_token for story in stories)


def flush_to_disk(file):
    """Return when everything that was written to a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())

"""TinyStories as token files: the stories of GPT-4, version 2 (Eldan and Li, 2023), 2.2 GB of text from the hub."""

import re
from pathlib import Path

from tqdm import tqdm

from npgpt.data.tokenizers import TOKENIZER_FILE, canonical_kind, load_tokenizer, save_tokenizer
from npgpt.errors import UserError
from npgpt.files import atomic_writer, make_folder

REPOSITORY = "roneneldan/TinyStories"
# The small one first: most errors then come before the large one is downloaded.
SPLITS = {"val.bin": "TinyStoriesV2-GPT4-valid.txt", "train.bin": "TinyStoriesV2-GPT4-train.txt"}
SEPARATOR = "<|endoftext|>"
PIECE = 1 << 18     # characters in memory at a time


def tinystories_folder(directory, tokenizer_name):
    """Return the folder for TinyStories in the tokens of that tokenizer, below the folder for downloads."""
    kind = canonical_kind(tokenizer_name)
    return Path(directory) / "tinystories" / (re.sub(r"[^\w.-]+", "-", tokenizer_name) if kind == "hf" else kind)


def prepared_folders(directory):
    """Return the complete folders of TinyStories below the folder for downloads, one a tokenizer, sorted."""
    complete = (*SPLITS, TOKENIZER_FILE)
    folders = sorted((Path(directory) / "tinystories").glob("*/"))
    return [folder for folder in folders if all((folder / name).is_file() for name in complete)]


def prepare_tinystories(tokenizer, folder, progress=True):
    """Download TinyStories and write it into `folder`: train.bin, val.bin and the tokenizer's file.

    After an interruption the next call resumes the download, and keeps a split that is complete. Raises UserError if
    the folder has another tokenizer, and as fetch_file and prepare_split do; OSError if the folder cannot be written.
    """
    from npgpt.hub import fetch_file

    folder = Path(folder)
    make_folder(folder)
    # The tokenizer first: token files without one are taken for GPT-2's.
    if not (folder / TOKENIZER_FILE).exists():
        save_tokenizer(tokenizer, folder / TOKENIZER_FILE)
    elif load_tokenizer(folder / TOKENIZER_FILE).to_dict() != tokenizer.to_dict():
        raise UserError(f"{folder} was prepared with another tokenizer of that name: delete the folder to start again")
    for name, filename in SPLITS.items():
        if not (folder / name).exists():
            prepare_split(fetch_file(REPOSITORY, filename, repo_type="dataset"), tokenizer, folder / name, progress)


def prepare_split(source, tokenizer, path, progress=True):
    """Write the tokens of the stories in the file `source` to `path`, little-endian uint16, whole or not at all.

    A story ends with the tokenizer's end of text or, if it has none, with the separator as text on a line of its own.
    Raises UserError if the source is not TinyStories: not UTF-8, without separators, or without a story.
    """
    eos = tokenizer.eos_token_id
    ending, eos_bytes = (f"\n{SEPARATOR}\n", b"") if eos is None else ("", eos.to_bytes(2, "little"))
    with (
        open(source, encoding="utf-8", newline="") as text, atomic_writer(path) as tokens,
        tqdm(total=Path(source).stat().st_size, unit="B", unit_scale=True, desc=path.name,
             disable=None if progress else True) as bar,
    ):
        for story in stories(text):
            tokens.write(tokenizer.encode(story + ending).astype("<u2").tobytes() + eos_bytes)
            bar.update(text.buffer.tell() - bar.n)
        if not tokens.tell():
            raise UserError(f"{source} holds no story: it is not TinyStories")


def stories(file):
    """Yield the stories of a text file, without the space around them. Raises UserError as prepare_split does."""
    rest, block = "", None
    while block != "":
        try:
            block = file.read(PIECE)
        except UnicodeDecodeError as error:
            raise UserError(f"{file.name} is not UTF-8 text ({error}): delete it and download it again") from error
        *complete, rest = (rest + block).split(SEPARATOR)
        if len(rest) > PIECE:
            raise UserError(f"{file.name} has no {SEPARATOR} in {PIECE:,} characters: it is not TinyStories")
        yield from filter(None, map(str.strip, complete if block else [*complete, rest]))

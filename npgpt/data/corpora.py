"""The texts to train on: known by name, a text file of your own, or a folder of token files."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from npgpt.checks import check_memory
from npgpt.data.download import download
from npgpt.data.tinystories import prepared_folders
from npgpt.errors import UserError
from npgpt.files import open_regular


class Source(NamedTuple):
    """Where a corpus that has a name comes from. What is built in or on the hub has neither URL nor digest here."""

    description: str
    url: str | None = None
    sha256: str | None = None
    size: int | None = None  # bytes; None where it varies with the version of Python


BYTES_PER_CHARACTER = 8     # of a text in memory: its bytes, its characters, its tokens

CORPORA = {
    "tinyshakespeare": Source(
        "40,000 lines of Shakespeare's plays, 65 different characters",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        1_115_394,
    ),
    "tinystories": Source("2.7 million short stories in a small child's words (2.2 GB), as token files"),
    "pydocs": Source("the help texts on the Python language that every Python carries"),
}


@dataclass(frozen=True)
class Corpus:
    """A text, or a folder with token files. `reason` says in one line which corpus it is and where it was found."""

    name: str
    text: str | None
    folder: Path | None
    reason: str


def data_dir(explicit=None):
    """Return the folder for downloads: `explicit`, else NPGPT_DATA_DIR, else "data" where the program runs."""
    return Path(explicit or os.environ.get("NPGPT_DATA_DIR") or "data")


def open_corpus(name=None, directory=None, progress=True):
    """Return the Corpus `name`: one of CORPORA, a UTF-8 text file, or a folder with train.bin and val.bin.

    Without a name it is TinyShakespeare where that is at hand in data_dir(directory) or can be downloaded, else pydocs.
    `progress` shows a bar on a terminal while it downloads. Raises UserError when there is no such corpus, when its
    file is empty, unreadable, not a regular one or not UTF-8, when TinyShakespeare is asked for by name and not to be
    had, when the file at hand has another digest than TinyShakespeare's, and when TinyStories is not prepared, or with
    several tokenizers.
    """
    directory = data_dir(directory)
    if name is None:
        return open_default(directory, progress)
    if name == "tinyshakespeare":
        return open_tinyshakespeare(directory, progress)
    if name == "tinystories":
        return open_tinystories(directory)
    if name == "pydocs":
        return Corpus(name, pydocs_text(), None, "pydocs, built into Python")
    path = Path(name)
    # os.path says no where Path raises: a name too long for the system is an unknown corpus like any other.
    if os.path.isfile(path / "train.bin") and os.path.isfile(path / "val.bin"):
        return Corpus(str(path), None, path, f"the token files train.bin and val.bin in {path}")
    if os.path.isdir(path) or not os.path.exists(path):
        raise UserError(
            f"corpus {str(name)!r} is not known: give {', '.join(CORPORA)}, a UTF-8 text file that exists, "
            "or a folder with train.bin and val.bin"
        )
    return Corpus(str(path), decode_text(read_text_bytes(path), path), None, f"the text file {path}")


def open_default(directory, progress):
    """Return TinyShakespeare, or pydocs where TinyShakespeare is not to be had; raises UserError if it is damaged."""
    try:
        return open_tinyshakespeare(directory, progress)
    except UserError as error:
        if tinyshakespeare_path(directory).exists():
            raise
        return Corpus("pydocs", pydocs_text(), None, f"pydocs, built into Python, because {error}")


def open_tinyshakespeare(directory, progress):
    """Return the Corpus TinyShakespeare, downloaded if need be; raises UserError when that fails or it is damaged."""
    source = CORPORA["tinyshakespeare"]
    path = tinyshakespeare_path(directory)
    if path.exists():
        origin = "found at"
    else:
        download(source.url, source.sha256, path, progress)
        origin = "downloaded to"
    data = read_text_bytes(path)
    digest = hashlib.sha256(data).hexdigest()
    if digest != source.sha256:
        raise UserError(
            f"{path} is not TinyShakespeare (its SHA-256 is {digest[:12]}… instead of {source.sha256[:12]}…): "
            "delete it, and it is downloaded again"
        )
    return Corpus("tinyshakespeare", decode_text(data, path), None, f"TinyShakespeare, {origin} {path}")


def tinyshakespeare_path(directory):
    """Return where TinyShakespeare lies below the folder for downloads."""
    return directory / "tinyshakespeare" / "input.txt"


def open_tinystories(directory):
    """Return the Corpus TinyStories, by the name of its folder: it exists once for each tokenizer, as token files."""
    folders = prepared_folders(directory)
    if not folders:
        raise UserError(f"tinystories is not prepared in {directory}: get it with `npgpt data get tinystories`")
    if len(folders) > 1:
        raise UserError(f"tinystories is prepared with several tokenizers: give one of {', '.join(map(str, folders))}")
    return Corpus(str(folders[0]), None, folders[0], f"TinyStories, the token files in {folders[0]}")


def pydocs_text():
    """Return the text of Python's help topics (about half a million characters, varying with the version of Python)."""
    from pydoc_data.topics import topics  # half a megabyte that is read only where it is wanted

    return "\n".join(topics[name] for name in sorted(topics))


def read_text_bytes(path):
    """Return the bytes of a text file; raises UserError when it cannot be read, or not with its tokens in memory."""
    try:
        with open_regular(path) as file:
            check_memory(BYTES_PER_CHARACTER * os.fstat(file.fileno()).st_size, f"the text {path} with its tokens")
            return file.read()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check its name and permissions") from error


def decode_text(data, path):
    """Return the UTF-8 bytes of a file as text; raises UserError when there are none, and for a byte that is wrong."""
    if not data:
        raise UserError(f"{path} is empty: give a text to train on")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (byte 0x{data[error.start]:02x} at position {error.start}): convert it to UTF-8"
        ) from error


def list_corpora(directory=None):
    """Return a row (name, state, bytes or None, description) for each of CORPORA, as `npgpt data list` prints them.

    The state is "built in", "at hand" (in data_dir(directory)) or "not downloaded".
    """
    directory = data_dir(directory)
    at_hand = {
        "tinyshakespeare": tinyshakespeare_path(directory).exists(),
        "tinystories": bool(prepared_folders(directory)),
    }
    states = {name: "at hand" if here else "not downloaded" for name, here in at_hand.items()} | {"pydocs": "built in"}
    return [(name, states[name], source.size, source.description) for name, source in CORPORA.items()]

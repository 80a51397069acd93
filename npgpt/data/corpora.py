"""The texts to train on: a corpus with a name, your own text file, or a folder of token files."""

import hashlib
import os
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from npgpt.checks import check, check_memory
from npgpt.data.tinystories import prepared_folders
from npgpt.download.file import download
from npgpt.errors import UserError, one_line
from npgpt.files import open_regular, parse_json

BYTES_PER_CHARACTER = 8     # of a text in memory: its bytes, its characters, its tokens
ASCII = str.maketrans("‘’–—", "''--", '"“”')     # without double quotes: every second word is quoted
# A paragraph that begins and ends like a sentence, has nine or more words, and is not a remark on a Python version.
PROSE = re.compile(r"(?!Added in|Changed in|Deprecated|New in|See also)(?=(\S+ ){8})"
                   r"""([A-Z]|\w+[.(])[\w '(),./:;=[\]-]*[.:]""", re.ASCII)
CORPORA = {     # name -> description
    "tinyshakespeare": "40,000 lines of Shakespeare's plays, 65 different characters (1,115,394 bytes)",
    "tinystories": "2.7 million short stories in simple words (2.2 GB), as token files",
    "pydocs": "the prose of the help texts on the Python language that come with Python"}
TINYSHAKESPEARE = {
    "url": "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "size": 1_115_394, "sha256": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}


@dataclass(frozen=True)
class Corpus:
    """A text, or a folder with token files. `reason` says in one line which corpus it is and where it was found.

    answers: the pairs (prompt, completion) that the text consists of, or None.
    """

    name: str
    text: str | None
    folder: Path | None
    reason: str
    answers: list[tuple[str, str]] | None = None


def data_dir(explicit: str | Path | None = None) -> Path:
    """Return the folder for downloads: `explicit`, else NPGPT_DATA_DIR, else "data" in the current folder."""
    return Path(explicit or os.environ.get("NPGPT_DATA_DIR") or "data")


def open_corpus(name: str | Path | None = None, directory: str | Path | None = None) -> Corpus:
    """Return the Corpus `name`: one of CORPORA, a UTF-8 text file, or a folder with train.bin and val.bin.

    A text file whose name ends in .jsonl has prompts and completions: see `read_answers`. Without a name it is
    TinyShakespeare, or pydocs if that cannot be downloaded. `directory` is the folder for downloads. Raises UserError
    if the corpus is missing or damaged, or if TinyStories is not prepared in exactly one way.
    """
    directory = data_dir(directory)
    if name is None:
        try:
            return open_tinyshakespeare(directory)
        except UserError as error:
            if tinyshakespeare_path(directory).exists():
                raise
            return Corpus("pydocs", pydocs_text(), None, f"pydocs, built into Python, because {error}")
    if name == "tinyshakespeare":
        return open_tinyshakespeare(directory)
    if name == "tinystories":
        folders = prepared_folders(directory)
        if not folders:
            raise UserError(f"tinystories is not prepared in {directory}: get it with `npgpt data get tinystories`")
        if len(folders) > 1:
            raise UserError(f"tinystories is prepared in several ways: give one of {', '.join(map(str, folders))}")
        return Corpus(str(folders[0]), None, folders[0], f"TinyStories, the token files in {folders[0]}")
    if name == "pydocs":
        return Corpus(name, pydocs_text(), None, "pydocs, built into Python")
    path = Path(name)
    # os.path returns False for impossible names, for which Path raises.
    if name and os.path.isfile(path / "train.bin") and os.path.isfile(path / "val.bin"):
        return Corpus(str(path), None, path, f"the token files train.bin and val.bin in {path}")
    if os.path.isdir(path) or not os.path.exists(path):
        raise UserError(f"there is no corpus {str(name)!r}: give {', '.join(CORPORA)}, a UTF-8 text file, a .jsonl "
                        "file of prompts and completions, or a folder with train.bin and val.bin")
    text = decode_text(read_text_bytes(path), path)
    if path.suffix == ".jsonl":
        answers = read_answers(text.removeprefix("\ufeff"), path)     # a byte order mark
        return Corpus(str(path), "".join(map("".join, answers)), None, f"{len(answers):,} prompts in {path}", answers)
    return Corpus(str(path), text, None, f"the text file {path}")


def read_answers(text: str, path: Path) -> list[tuple[str, str]]:
    """Return the pairs (prompt, completion) in a text of JSON lines {"prompt": …, "completion": …}.

    Empty lines are skipped. Raises UserError, with the number of the line, for any other.
    """
    answers = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            answers.append((row["prompt"], row["completion"]))
            for name in ("prompt", "completion"):
                check(f"the {name}", row[name], isinstance(row[name], str) and row[name], "a string that is not empty")
        except (ValueError, KeyError, TypeError, RecursionError) as error:      # UserError is a ValueError
            raise UserError(f'{path}, line {number} is not {{"prompt": "…", "completion": "…"}} '
                            f"({type(error).__name__}: {one_line(error)})") from None
    if not answers:
        raise UserError(f"{path} has no prompts: give a text to train on")
    return answers


def open_tinyshakespeare(directory):
    """Return the Corpus TinyShakespeare, downloaded if necessary. Raises UserError if that fails or it is damaged."""
    path, origin = tinyshakespeare_path(directory), "found at"
    if not path.exists():
        download(**TINYSHAKESPEARE, path=path)
        origin = "downloaded to"
    data = read_text_bytes(path)
    digest = hashlib.sha256(data).hexdigest()
    if digest != TINYSHAKESPEARE["sha256"]:
        raise UserError(f"{path} is not TinyShakespeare (its SHA-256 is {digest[:12]}…): delete it, and it is "
                        "downloaded again")
    return Corpus("tinyshakespeare", data.decode(), None, f"TinyShakespeare, {origin} {path}")


def tinyshakespeare_path(directory):
    """Return the path of TinyShakespeare below the folder for downloads."""
    return directory / "tinyshakespeare" / "input.txt"


def pydocs_text() -> str:
    """Return the prose of Python's help topics, 200,000 characters; they differ a little in each Python version.

    Lists, tables, grammars and code are left out, and of the prose its footnote marks, emphasis and line ends.
    """
    from pydoc_data.topics import topics  # half a megabyte

    found = {}      # the paragraphs, each once: topics repeat each other
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name].translate(ASCII)):
            text = re.sub(r"(?<=\w-)\s*\n\s*", "", re.sub(r"\s+\[\d+\]|^\s*[-*] ", "", paragraph))
            text = " ".join(re.sub(r"\*+(\w[^*]*)\*+", r"\1", text).split())
            if PROSE.fullmatch(text):
                found[textwrap.fill(text, 70, break_on_hyphens=False)] = True
    return "\n\n".join(found) + "\n"


def read_text_bytes(path):
    """Return the bytes of a text file. Raises UserError if it cannot be read or is too large for the memory."""
    try:
        with open_regular(path) as file:
            check_memory(BYTES_PER_CHARACTER * os.fstat(file.fileno()).st_size, f"the text {path} with its tokens")
            return file.read()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check its name and permissions") from error


def decode_text(data, path):
    """Return UTF-8 bytes as text. Raises UserError if they are empty or not UTF-8."""
    if not data:
        raise UserError(f"{path} is empty: give a text to train on")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte 0x{data[error.start]:02x} at position {error.start}): "
                        "convert it to UTF-8") from error


def list_corpora(directory: str | Path | None = None) -> list[tuple[str, str, str]]:
    """Return (name, "built in", "downloaded" or "not downloaded", description) for each of CORPORA."""
    directory = data_dir(directory)
    here = {"tinyshakespeare": tinyshakespeare_path(directory).exists(), "tinystories": prepared_folders(directory)}
    states = {"pydocs": "built in"} | {name: "downloaded" if here[name] else "not downloaded" for name in here}
    return [(name, states[name], description) for name, description in CORPORA.items()]

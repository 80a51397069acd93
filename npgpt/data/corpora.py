"""The texts to train on: a corpus with a name, your own text file, or a folder of token files."""

import hashlib
import json
import os
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

from npgpt.data.token_files import LLM_C, WITHOUT_HEADER
from npgpt.download.file import download
from npgpt.errors import UserError, one_line, say_once
from npgpt.files import AnyPath, cache_folder, open_regular, write_atomically

ASCII = str.maketrans("‘’–—", "''--", '"“”')  # without double quotes: every second word is quoted
# A paragraph that begins and ends like a sentence, has nine or more words, and is not a remark on a
# Python version.
PROSE = re.compile(
    r"(?!Added in|Changed in|Deprecated|New in|See also)(?=(\S+ ){8})"
    r"""([A-Z]|\w+[.(])[\w '(),./:;=[\]-]*[.:]""",
    re.ASCII,
)
CORPORA = "tinyshakespeare", "pydocs"
TINYSHAKESPEARE_FILE = "tinyshakespeare/input.txt"  # below the folder for downloads
TINYSHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    1_115_394,
)


Pair = tuple[str, str]


class Corpus(NamedTuple):
    """A text, or a folder with token files.

    reason: one line that says which corpus it is, and where it was found. documents: the pairs
    (prompt, completion) that the text consists of, or None. separator: the text between them.
    """

    name: str
    text: str | None
    folder: Path | None
    reason: str
    documents: list[Pair] | None = None
    separator: str = ""


def open_corpus(
    name: AnyPath | None = None, directory: AnyPath | None = None, raw: bool = False
) -> Corpus:
    """Return the Corpus `name`: one of CORPORA, a UTF-8 text file, or a folder with train.bin and
    val.bin.

    A text file whose name ends in .jsonl has prompts and completions: see `read_answers`. Without a
    name it is TinyShakespeare, or pydocs if that cannot be downloaded. directory: for downloads, by
    default NPGPT_DATA_DIR, else that of `downloads`. raw: as in `read_text`. Raises UserError if
    the corpus is missing or damaged.
    """
    directory = Path(directory or os.environ.get("NPGPT_DATA_DIR") or downloads())
    reason = ""
    if name in (None, "tinyshakespeare"):
        try:
            return open_tinyshakespeare(directory)
        except UserError as error:
            if name or (directory / TINYSHAKESPEARE_FILE).exists():
                raise
            name = "pydocs"
            reason = f", because {error}"
    if name == "pydocs":
        return Corpus("pydocs", pydocs_text(), None, f"pydocs, built into Python{reason}")
    path = Path(name or "")
    # os.path returns False for impossible names, for which Path raises.
    if name and os.path.isfile(path / "train.bin") and os.path.isfile(path / "val.bin"):
        return Corpus(str(path), None, path, f"the token files train.bin and val.bin in {path}")
    if os.path.isdir(path) or not os.path.exists(path):
        raise UserError(
            f"there is no corpus {str(name)!r}: give {', '.join(CORPORA)}, a UTF-8 text file, a "
            ".jsonl file of prompts and completions, or a folder with train.bin and val.bin"
        )
    if path.suffix != ".jsonl":
        return Corpus(str(path), read_text(path, raw), None, f"the text file {path}")
    pairs = read_answers(read_text(path), path)
    text = "".join(f"{prompt}{completion}\n" for prompt, completion in pairs)
    return Corpus(str(path), text, None, f"{len(pairs):,} prompts in {path}", pairs, "\n")


def downloads():
    """Return the folder data if TinyShakespeare is there, as it may be in a checkout; else the
    user's cache.
    """
    here = Path("data")
    if (here / TINYSHAKESPEARE_FILE).exists():
        return here
    return cache_folder() or here  # without a home there is no cache


def in_documents(corpus: Corpus, separator: str) -> Corpus:
    """Return a corpus whose text is divided into documents. Raises UserError if it has but one."""
    texts = map(str.strip, corpus.text.split(separator)) if corpus.text and separator else ()
    documents = [("", text) for text in texts if text]
    if len(documents) < 2:
        raise UserError(
            f"{corpus.name} does not contain two documents separated by {separator!r}: "
            "give another separator"
        )
    return corpus._replace(documents=documents, separator=separator)


def read_answers(text: str, path: Path) -> list[Pair]:
    """Return the pairs (prompt, completion) in a text of JSON lines {"prompt": …, "completion": …}.

    Empty lines are skipped. Raises UserError, with the number of the line, for any other.
    """
    answers = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            pair = row["prompt"], row["completion"]
            if not all(isinstance(each, str) and each for each in pair):
                raise TypeError("both must be strings that are not empty")
            answers.append(pair)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(
                f'{path}, line {number} is not {{"prompt": "…", "completion": "…"}} '
                f"({type(error).__name__}: {one_line(error)})"
            ) from None
    if not answers:
        raise UserError(f"{path} has no prompts: give a text to train on")
    return answers


def open_tinyshakespeare(directory):
    """Return the Corpus TinyShakespeare, downloaded if necessary. Raises UserError if that fails or
    it is damaged.
    """
    path = directory / TINYSHAKESPEARE_FILE
    url, sha256, size = TINYSHAKESPEARE
    found = path.exists()
    try:
        data = read_text(path).encode() if found else download(url, size)
        digest = hashlib.sha256(data).hexdigest()
        if digest != sha256:
            raise UserError(
                f"{path if found else url} is not TinyShakespeare ({len(data):,} bytes, SHA-256 "
                f"{digest[:12]}…): "
                + ("delete it, and it is downloaded again" if found else "try again")
            )
        if not found:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
    except OSError as error:
        raise UserError(
            f"{url} could not be downloaded ({error}): check the network and the folder "
            f"(--data-dir and NPGPT_DATA_DIR name another), or put the file at {path}"
        ) from error
    origin = "found at" if found else "downloaded to"
    return Corpus("tinyshakespeare", data.decode(), None, f"TinyShakespeare, {origin} {path}")


def pydocs_text() -> str:
    """Return the prose of Python's help topics, 200,000 characters; they differ a little in each
    Python version.

    Lists, tables, grammars and code are left out, and of the prose its footnote marks, emphasis and
    line ends.
    """
    from pydoc_data.topics import topics  # half a megabyte

    found = {}  # the paragraphs, each once: topics repeat each other
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name].translate(ASCII)):
            text = re.sub(r"(?<=\w-)\s*\n\s*", "", re.sub(r"\s+\[\d+\]|^\s*[-*] ", "", paragraph))
            text = " ".join(re.sub(r"\*+(\w[^*]*)\*+", r"\1", text).split())
            if PROSE.fullmatch(text):
                found[textwrap.fill(text, 70, break_on_hyphens=False)] = True
    return "\n\n".join(found) + "\n"


def read_text(path: AnyPath, raw: bool = False) -> str:
    """Return the text in a UTF-8 file. A byte order mark is left out.

    The line ends of Windows, \\r\\n, become \\n, which standard error says.
    raw: as it is stored. Raises UserError if it is empty or cannot be read.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
        text = data.decode("utf-8" if raw else "utf-8-sig")
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): check its name and permissions"
        ) from error
    except UnicodeDecodeError as error:
        how = "convert it to UTF-8 (PowerShell writes UTF-16)"
        if data.startswith(LLM_C):
            how = WITHOUT_HEADER
        raise UserError(
            f"{path} is not UTF-8 text (byte 0x{data[error.start]:02x} at position "
            f"{error.start}): {how}"
        ) from error
    if not text:
        raise UserError(f"{path} is empty: give a text to train on")
    if raw or "\r\n" not in text:
        return text
    say_once(f"{path} has the line ends of Windows, \\r\\n, which are read as \\n")
    return text.replace("\r\n", "\n")

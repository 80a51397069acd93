"""From text to token ids and back: characters, bytes, GPT-2's byte pair encoding, any
tokenizer.json.

All ids are int64, and small enough for the uint16 of nanoGPT's token files. A tokenizer is saved as
JSON beside a checkpoint.
"""

import functools
import json
from typing import Any

import numpy as np

from npgpt.checks import check_whole, shown
from npgpt.data.hf_tokenizer import MOST_TOKENIZER_BYTES, HFTokenizer, one_line_errors
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.download.file import call_within
from npgpt.errors import UserError, one_line
from npgpt.files import AnyPath, read_json, write_json

TOKENIZER_FILE = "npgpt_tokenizer.json"
VOCABULARY_SECONDS = 10  # to load GPT-2's vocabulary (1.5 MB), the first time over the network

AnyTokenizer = Any  # npgpt's, that of `tokenizers`, a fast one of transformers, or a name


class CharTokenizer(Tokenizer):
    """One token a character: id i is `chars[i]`.

    Raises UserError if `chars` (a string) is empty, repeats a character, or has more than 65536.
    """

    kind = "char"

    def __init__(self, chars: str):
        self.chars = chars
        self.vocab_size = n = len(chars)
        self._ids = {char: i for i, char in enumerate(chars)}
        if not 0 < n <= 2**16 or len(self._ids) < n:
            raise UserError(
                "a char tokenizer needs 1 to 65536 characters, all different: give it another text"
            )

    @classmethod
    def from_text(cls, text: str) -> "CharTokenizer":
        """Make the tokenizer of the characters in `text`, in the order of their code points."""
        return cls("".join(sorted(set(text))))

    def encode(self, text: str, special: bool = False) -> np.ndarray:
        """Return the ids of `text`, int64 1-D. Raises UserError for an unknown character."""
        try:
            return np.fromiter(map(self._ids.__getitem__, text), np.int64, len(text))
        except KeyError as error:
            char = error.args[0]
            raise UserError(
                f"character {char!r} (U+{ord(char):04X}) at position {text.index(char)} is unknown "
                f"to this char tokenizer: use only {self.chars[:100]!r}"
            ) from None

    def decode_bytes(self, ids):
        """Return the UTF-8 bytes of 1-D token ids. Raises UserError for unknown ids."""
        return "".join(self.chars[i] for i in self._checked(ids)).encode("utf-8", "surrogatepass")

    def to_dict(self):
        return {"kind": self.kind, "chars": self.chars}


class ByteTokenizer(Tokenizer):
    """One token a byte of UTF-8: every text can be encoded, and the vocabulary is always 256."""

    kind = "byte"
    vocab_size = 256

    def encode(self, text: str, special: bool = False) -> np.ndarray:
        """Return the ids of `text`, int64 1-D."""
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8).astype(np.int64)

    def decode_bytes(self, ids):
        """Return 1-D token ids as bytes. Raises UserError for ids outside the vocabulary."""
        return self._checked(ids).astype(np.uint8).tobytes()


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte pair encoding, by tiktoken, which downloads the vocabulary once and caches it.

    The vocabulary is loaded when it is first used: training on token files works without it. The
    methods raise UserError if tiktoken is missing, or if the vocabulary is neither cached nor
    downloaded within VOCABULARY_SECONDS.
    """

    kind = "gpt2"
    vocab_size = 50257
    eos_token_id = 50256
    special = ("<|endoftext|>",)

    @functools.cached_property
    def _encoding(self):
        try:
            import tiktoken  # slow to import, and most runs do without
        except ImportError:
            raise UserError(
                "GPT-2's tokens need tiktoken: pip install tiktoken, or choose another tokenizer"
            ) from None
        try:
            return call_within(VOCABULARY_SECONDS, tiktoken.get_encoding, "gpt2")
        except (OSError, ValueError) as error:
            raise UserError(
                f"GPT-2's vocabulary is not cached and could not be downloaded "
                f"({one_line(error, 100)}): connect to the network once, or set TIKTOKEN_CACHE_DIR "
                "to a folder where tiktoken has stored it"
            ) from error

    def encode(self, text: str, special: bool = False) -> np.ndarray:
        """Return the ids of `text`, int64 1-D. special: read "<|endoftext|>" as a token."""
        allowed = {*self.special * special}
        ids = self._encoding.encode(text, allowed_special=allowed, disallowed_special=())
        return np.array(ids, dtype=np.int64)

    def decode_bytes(self, ids):
        """Return the bytes of 1-D token ids, which may end inside a character. Raises UserError for
        ids outside.
        """
        return self._encoding.decode_bytes(self._checked(ids).tolist())


class NoTokenizer(Tokenizer):
    """Placeholder for a model without a tokenizer. Its methods raise UserError, which says why."""

    kind = "none"
    why = (
        "the model was saved without a tokenizer: use it in Python, with ids or with "
        "load(…, tokenizer=…), or save it there with one, save_pretrained(folder, tokenizer)"
    )

    def __init__(self, vocab_size, why=why):
        self.vocab_size = vocab_size
        self.why = why

    def encode(self, text, special=False):
        raise UserError(self.why)

    decode_bytes = encode

    def to_dict(self):
        return {"kind": self.kind, "vocab_size": self.vocab_size}


SAVED = CharTokenizer, ByteTokenizer, GPT2Tokenizer, HFTokenizer, NoTokenizer


def make_tokenizer(name: str, text: str | None = None) -> Tokenizer:
    """Make a tokenizer.

    Parameters
    ----------
    name : str
        "char", "byte", "gpt2", or "hf:PATH_OR_ID" for a tokenizer.json on the disk or the hub.
    text : str, optional
        For "char": a text with all characters.

    Returns
    -------
    Tokenizer
        With `encode(text)`, `decode(ids)` and `vocab_size`.

    Raises
    ------
    UserError
        If the name is unknown, "char" has no text or more than 65536 characters, or a
        tokenizer.json is missing or damaged.
    """
    if name == "byte":
        return ByteTokenizer()
    if name == "gpt2":
        return GPT2Tokenizer()
    if name.startswith("hf:"):
        return HFTokenizer.open(name.removeprefix("hf:"))
    if name != "char":
        raise UserError(
            f"tokenizer {name!r} is unknown: choose char, byte or gpt2, or "
            "hf:PATH_OR_ID, a tokenizer.json on your disk or on the hub"
        )
    if text is None:
        raise UserError(
            "a char tokenizer takes its characters from a text: give it one, or choose byte or gpt2"
        )
    return CharTokenizer.from_text(text)


def given_tokenizer(given: AnyTokenizer, vocab_size: int, to_save: bool = True) -> Tokenizer:
    """Return the Tokenizer that a user has given for a model of `vocab_size` tokens.

    given: a Tokenizer; one of the `tokenizers` library, or a fast one of transformers; a name for
    `make_tokenizer`; None for a `NoTokenizer`.
    to_save: refuse one that `load_tokenizer` would not give back.
    Raises UserError for anything else, or if the vocabulary exceeds the model's.
    """
    if given is None:
        return NoTokenizer(vocab_size)
    if isinstance(given, str):
        given = make_tokenizer(given)
    elif not isinstance(given, Tokenizer):
        library: Any = getattr(given, "backend_tokenizer", given)  # transformers'
        if not hasattr(library, "to_str"):
            raise UserError(
                f"tokenizer={shown(given)} is neither npgpt's, nor one of tokenizers, nor a fast "
                "one of transformers: give one of these, or a name"
            )
        with one_line_errors():
            description = json.loads(library.to_str())
        given = HFTokenizer(description, getattr(given, "special_tokens_map", None))
    size = getattr(given, "vocab_size", None)
    check_whole("vocab_size of the tokenizer of this model", size, 1, vocab_size)
    if to_save and type(given) not in SAVED:
        raise UserError(
            f"a tokenizer of the type {type(given).__name__} cannot be saved, only npgpt's own "
            "types: leave it out (tokenizer=None), and give it to load(…, tokenizer=…)"
        )
    return given


def is_called(tokenizer: Tokenizer, name: str) -> bool:
    """Return whether make_tokenizer(name) makes this tokenizer; char matches any text. Raises as it
    does.
    """
    if name == "char":
        return tokenizer.kind == "char"
    return make_tokenizer(name).to_dict() == tokenizer.to_dict()


def tokenizer_from_dict(data: dict) -> Tokenizer:
    """Make the tokenizer that `to_dict` described. Raises UserError for any other data."""
    match data:
        case {"kind": "char", "chars": str(chars)}:
            return CharTokenizer(chars)
        case {"kind": "byte"}:
            return ByteTokenizer()
        case {"kind": "gpt2"}:
            return GPT2Tokenizer()
        case {"kind": "none", "vocab_size": int(vocab_size)}:
            return NoTokenizer(vocab_size)
        case {"kind": "hf", "tokenizer": dict(description)}:
            return HFTokenizer(description, data.get("names"))
    raise UserError(
        'a tokenizer is described by its "kind", with "chars" for char and "tokenizer" for hf'
    )


def save_tokenizer(tokenizer: Tokenizer, path: AnyPath) -> None:
    """Write the tokenizer to `path` as JSON, atomically. Raises OSError."""
    description = tokenizer.to_dict()
    if tokenizer.names:
        description["names"] = tokenizer.names
    write_json(path, description)


def load_tokenizer(path: AnyPath) -> Tokenizer:
    """Read a tokenizer that save_tokenizer wrote. Raises UserError if the file is missing or
    damaged.
    """
    try:
        return tokenizer_from_dict(read_json(path, MOST_TOKENIZER_BYTES))
    except (OSError, UserError) as error:
        raise UserError(f"the tokenizer in {path} cannot be used: {error}") from error

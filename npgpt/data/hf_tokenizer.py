"""Any tokenizer.json, as the `tokenizers` library reads it: the word pieces of BERT, the byte pairs of newer models."""

import base64
import contextlib
import functools
import json
import os
import re
import textwrap
from pathlib import Path

import numpy as np

from npgpt.data.tokenizer_base import Tokenizer
from npgpt.errors import UserError
from npgpt.files import read_json

MOST_TOKENIZER_BYTES = 1 << 28

# What ends a document, in the words of different tokenizers; a tokenizer that has several means the first.
END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]")

# Characters that between them need every byte that UTF-8 uses, and some that normalizers like to replace.
PROBE = "".join(map(chr, [*range(0x800), *range(0x800, 0xD800, 0x400), *range(0xE000, 0x110000, 0x1000)]))


class HFTokenizer(Tokenizer):
    """The tokenizer that `description`, the contents of a tokenizer.json, tells the `tokenizers` library to build.

    Text is always text here: no special tokens are added to it, and those that it spells out are not recognised.
    Raises UserError when the library (the extra "hf") is missing or refuses the description, and when the ids do not
    fit in uint16.
    """

    kind = "hf"

    def __init__(self, description):
        try:
            import tokenizers
        except ImportError:
            raise UserError('a tokenizer.json needs the tokenizers library: pip install "npgpt[hf]"') from None
        check_charsmaps(description.get("normalizer") if isinstance(description, dict) else None)
        self._library = asked(tokenizers.Tokenizer.from_str, json.dumps(description))
        self.description = description
        # Both belong to the batches of another library; a corpus is one long text.
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        # Not the number of tokens: ids may have gaps, and a model needs a row for the last one.
        self.vocab_size = max(self._library.get_vocab().values(), default=-1) + 1
        if not 0 < self.vocab_size <= 2**16:
            raise UserError(
                f"this tokenizer.json has a vocabulary of {self.vocab_size}, and token files hold 1 to 65536: "
                "use another one"
            )
        added = self._library.get_added_tokens_decoder()
        self._added = set(added)
        self._special = {token.content: i for i, token in added.items() if token.special}
        self.eos_token_id = next((self._special[name] for name in END_OF_TEXT if name in self._special), None)

    @classmethod
    def open(cls, name):
        """Make the tokenizer of a tokenizer.json, of a folder that holds one, or of a repository of the hub.

        Raises UserError where there is none, where it is not JSON, and as the class does.
        """
        path = find_tokenizer_json(name)
        try:
            description = read_json(path, MOST_TOKENIZER_BYTES)
        except (OSError, UserError) as error:
            raise UserError(f"{path} is not a tokenizer.json that can be read ({error}): give another one") from error
        try:
            return cls(description)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    def encode(self, text):
        """Return the ids of `text`, uint16 1-D. Raises UserError where the vocabulary has neither token nor unknown."""
        # Half a surrogate pair, which only a command line can bring, is no text to the library.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return np.array(asked(self._library.encode, text, add_special_tokens=False).ids, dtype=np.uint16)

    def decode(self, ids):
        """Return the text (str) of 1-D token ids, as the library puts it together. Raises as decode_bytes."""
        if self._has_byte_pairs:
            return super().decode(ids)
        return asked(self._library.decode, self._checked(ids).tolist(), skip_special_tokens=False)

    def decode_bytes(self, ids):
        """Return the bytes that 1-D token ids add to a text: those of a word begin with the space before it.

        So the bytes of the parts, one after another, are the bytes of the whole. Raises UserError for ids outside.
        """
        return b"".join(self._bytes_of_id[i] for i in self._checked(ids))

    def bytes_per_token(self):
        """Return how many bytes of text each token stands for, int64 (vocab_size,): none for special tokens.

        Raises UserError when the ids do not keep every byte, as where capitals or spaces get lost: a loss per byte
        would then leave out what the model never had to predict.
        """
        if self.decode_bytes(self.encode(PROBE)) != PROBE.encode():
            raise UserError("not defined, because this tokenizer.json does not keep every byte of a text")
        sizes = np.array([len(data) for data in self._bytes_of_id], dtype=np.int64)
        sizes[list(self._special.values())] = 0
        return sizes

    def to_dict(self):
        return {"kind": self.kind, "tokenizer": self.description}

    @property
    def _decoders(self):
        """The types of the decoders that the description lists, one or a sequence."""
        decoder = self.description.get("decoder")
        parts = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
        types = [part.get("type") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        return {each for each in types if isinstance(each, str)}

    @property
    def _has_byte_pairs(self):
        return "ByteLevel" in self._decoders

    @functools.cached_property
    def _bytes_of_id(self):
        """For each id the bytes that it adds to a text which is there already, a list."""
        if self._has_byte_pairs:
            byte_of_char = byte_alphabet()
            return [self._bytes_of_byte_pair(i, byte_of_char) for i in range(self.vocab_size)]
        once, twice = (
            asked(self._library.decode_batch, [[i] * n for i in range(self.vocab_size)], skip_special_tokens=False)
            for n in (1, 2)
        )
        # The first token of a text loses its space: what the second of two adds is the token's own.
        added = [both.removeprefix(one).encode() for one, both in zip(once, twice, strict=True)]
        if "ByteFallback" in self._decoders:  # <0xE2> is that byte, for characters without a token
            for token, i in self._library.get_vocab().items():
                if re.fullmatch("<0x[0-9A-F]{2}>", token):
                    added[i] = bytes([int(token[1:-1], 16)])
        return added

    def _bytes_of_byte_pair(self, i, byte_of_char):
        """The bytes of one token of a byte pair encoding; a token that was added later is written as what it is."""
        token = self._library.id_to_token(i) or ""  # ids may have gaps
        if i in self._added or not byte_of_char.keys() >= set(token):
            return token.encode()
        return bytes(byte_of_char[char] for char in token)


def check_charsmaps(normalizer):
    """Raise UserError where a map of characters claims to be larger than it is.

    The library would ask for as much memory as it claims, and end the process where it does not get it.
    """
    if not isinstance(normalizer, dict):
        return
    charsmap, others = normalizer.get("precompiled_charsmap"), normalizer.get("normalizers")
    if isinstance(charsmap, str):
        try:
            data = base64.b64decode(charsmap, validate=True)
        except ValueError as error:
            raise UserError(f"precompiled_charsmap is no base64 ({error}): use another tokenizer.json") from None
        if int.from_bytes(data[:4], "little") > len(data) - 4:
            raise UserError("precompiled_charsmap is cut off: use another tokenizer.json")
    for other in others if isinstance(others, list) else ():
        check_charsmaps(other)


def asked(function, *args, **kwargs):
    """Return what a function of the library returns; UserError for whatever it raises.

    That is nothing more particular than Exception, and for what its authors did not foresee a panic: a BaseException,
    which also prints lines of its own.
    """
    try:
        with without_standard_error():
            return function(*args, **kwargs)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UserError(f"the tokenizers library cannot work with this tokenizer.json ({brief(error)}): "
                        "use another one") from error


@contextlib.contextmanager
def without_standard_error():
    """Within it, what the process writes to standard error, past Python too, goes nowhere."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):      # there may be no standard error
            kept = os.dup(2)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 2)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)
        yield


def byte_alphabet():
    """Return the byte of each character in which byte pairs are written, a dict.

    GPT-2 wrote every byte as a character that can be seen: itself where it can be, the others in order from U+0100 on.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    chars = sorted(ByteLevel.alphabet())
    seen = [byte for byte in range(256) if chr(byte) in chars]
    unseen = [byte for byte in range(256) if chr(byte) not in chars]
    return dict(zip(chars, seen + unseen, strict=True))


def find_tokenizer_json(name):
    """Return the path of the tokenizer.json that `name` stands for, fetched from the hub if need be, or UserError."""
    if os.path.isfile(name):  # os.path says no where Path raises: for a name too long, or with a null character
        return Path(name)
    if os.path.isdir(name):
        path = Path(name) / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"the folder {name} holds no tokenizer.json: give another one")
        return path
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name, re.ASCII) or name.endswith(".json"):
        raise UserError(
            f"there is no tokenizer at {name!r}: give hf: and a tokenizer.json, a folder that holds one, "
            "or the name of a repository on the hub"
        )
    from npgpt.hub import fetch_file

    return Path(fetch_file(name, "tokenizer.json"))


def brief(error):
    """Return the first words of an exception of the library, which can quote whole vocabularies."""
    return textwrap.shorten(str(error), 100, placeholder="…")

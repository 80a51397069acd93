"""Any tokenizer.json, by the `tokenizers` library: BERT's WordPiece, the byte-pair encodings of
newer models.
"""

import contextlib
import json
import os
import re
from pathlib import Path

import numpy as np

from npgpt.checks import check_whole
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.errors import UserError, one_line
from npgpt.files import read_json

MOST_TOKENIZER_BYTES = 1 << 28
CONTEXT = 8  # tokens before a new one that its text may depend on
# What special tokens with these names are for, unless a config says it; the last one counts.
ENDS = ("[SEP]", "[EOS]", "<eos>", "</s>", "<|end_of_text|>", "<|endoftext|>")
PADS = ("<|padding|>", "<|pad|>", "<pad>", "[PAD]")
KNOWN = dict.fromkeys(ENDS, "eos_token") | dict.fromkeys(PADS, "pad_token")
# Characters whose UTF-8 uses every byte that UTF-8 can use, and some that normalizers often
# replace.
PROBE = "".join(
    map(chr, [*range(0x800), *range(0x800, 0xD800, 0x400), *range(0xE000, 0x110000, 0x1000)])
)


@contextlib.contextmanager
def one_line_errors():
    """Raise UserError for whatever the library raises inside, and discard what it writes to
    standard error.

    Its errors are plain Exceptions. If its Rust code panics, it raises a BaseException and prints a
    stack trace.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # standard error may be closed
            stack.callback(os.close, kept := os.dup(2))
            stack.callback(os.dup2, kept, 2)
            with open(os.devnull, "wb") as devnull:
                os.dup2(devnull.fileno(), 2)
        try:
            yield
        except (KeyboardInterrupt, SystemExit, UserError):
            raise
        except BaseException as error:
            raise UserError(f"the tokenizers library fails: {one_line(error, 100)}") from error


class HFTokenizer(Tokenizer):
    """The tokenizer that `description`, the contents of a tokenizer.json, defines.

    config: the contents of transformers' tokenizer_config.json, which names its "eos_token", … .
    `batch` adds the special tokens that the tokenizer.json adds to a text, such as [CLS] and [SEP];
    `encode` adds none. The methods raise UserError if the library (the extra "hf") is missing or
    fails; the constructor also if the ids do not fit into token files.
    """

    kind = "hf"

    def __init__(self, description: dict, config: object = None):
        try:
            import tokenizers
        except ImportError:
            raise UserError(
                'a tokenizer.json needs the tokenizers library: pip install "npgpt[hf]"'
            ) from None
        self.description = description
        with one_line_errors():
            self._library = library = tokenizers.Tokenizer.from_str(json.dumps(description))
        library.no_truncation()  # a corpus is one long text
        library.no_padding()
        # The largest id, not the number of tokens: ids may have gaps, and the embedding needs a row
        # for each id.
        self.vocab_size = max(library.get_vocab().values(), default=-1) + 1
        if not 0 < self.vocab_size <= 2**16:
            raise UserError(
                f"its vocabulary is {self.vocab_size}, and token files can store 1 to 65536"
            )
        added = library.get_added_tokens_decoder()
        self.special = {added[i].content: i for i in added if added[i].special}
        self.names = {key: name for name, key in KNOWN.items() if name in self.special}
        for key, token in config.items() if isinstance(config, dict) else ():
            content = str(token.get("content") if isinstance(token, dict) else token)
            if key.endswith("_token") and content in self.special:
                self.names[key] = content
        self.eos_token_id = self.special.get(self.names.get("eos_token", ""))
        self.pad_token_id = self.special.get(self.names.get("pad_token", ""))

    @classmethod
    def open(cls, name: str) -> "HFTokenizer":
        """Make the tokenizer of a tokenizer.json, of a folder that contains one, or of a repository
        on the hub.
        """
        if os.path.exists(name):  # Path(name).exists() raises for impossible names
            path = Path(name)
            if path.is_dir():
                path /= "tokenizer.json"
        elif re.fullmatch(r"(?!.*\.json$)\w[\w.-]*(/\w[\w.-]*)?", name, re.ASCII):
            from npgpt.download.hub import fetch

            path = fetch(name, ["tokenizer.json", "tokenizer_config.json"]) / "tokenizer.json"
        else:
            raise UserError(
                f"there is no tokenizer at {name!r}: give hf: and a tokenizer.json, a folder that "
                "contains one, or the name of a repository on the hub"
            )
        try:
            beside = path.with_name("tokenizer_config.json")
            config = read_json(beside, MOST_TOKENIZER_BYTES) if beside.exists() else None
            return cls(read_json(path, MOST_TOKENIZER_BYTES), config)
        except (OSError, UserError) as error:
            raise UserError(
                f"{path} cannot be used as a tokenizer.json ({error}): give another one"
            ) from error

    @one_line_errors()
    def encode(self, text: str, special: bool = False) -> np.ndarray:
        """Return the ids of `text`, int64 1-D. special: read special tokens in it as tokens."""
        self._library.encode_special_tokens = not special
        return np.array(self._library.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    @one_line_errors()
    def encode_row(self, text, length):
        special = self._library.num_special_tokens_to_add(is_pair=False)
        check_whole("length", length, max(1, special))
        self._library.encode_special_tokens = True
        encoding = self._library.encode(text, add_special_tokens=False)
        encoding.truncate(length - special)
        return self._library.post_process(encoding).ids

    @one_line_errors()
    def decode(self, ids):
        return self._library.decode(self._checked(ids).tolist(), skip_special_tokens=False)

    def decode_bytes(self, ids):
        return self.decode(ids).encode()

    def decode_stream(self, tokens, prompt=()):
        ids = list(prompt)
        text = longer = self.decode(ids)
        for token in tokens:
            ids.append(token)
            longer = self.decode(ids)
            if longer.endswith("\ufffd"):  # a character may be incomplete
                yield ""
                continue
            yield longer[len(text) :]
            ids = ids[-CONTEXT:]
            text = longer = self.decode(ids)
        yield longer[len(text) :]

    def count_bytes(self, tokens):
        # If case is lost, for example, bits per byte would count bytes that the model never had to
        # predict.
        if self.decode(self.encode(PROBE)) != PROBE:
            raise UserError(
                "not defined, because this tokenizer.json does not keep every character of a text"
            )
        return super().count_bytes(tokens)

    def to_dict(self):
        return {"kind": self.kind, "tokenizer": self.description}

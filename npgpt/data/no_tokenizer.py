"""The tokenizer of a model that was trained on token ids only."""

from npgpt.checks import check_whole
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.errors import UserError


class NoTokenizer(Tokenizer):
    """Placeholder for a `Trainer` without a tokenizer. Its methods raise UserError."""

    kind = "none"

    def __init__(self, vocab_size):
        check_whole("vocab_size", vocab_size, 1)
        self.vocab_size = vocab_size

    def encode(self, text):
        raise UserError("this model was trained on token ids without a tokenizer: use it from Python, with ids")

    decode_bytes = encode

    def to_dict(self):
        return {"kind": "none", "vocab_size": self.vocab_size}

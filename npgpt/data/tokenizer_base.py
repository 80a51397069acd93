"""The base class of all tokenizers."""

import codecs
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from npgpt.errors import UserError

TOKENS_AT_ONCE = 1 << 20  # whose bytes are counted: a token file may be larger than the memory


class Tokenizer:
    """Convert text to token ids and back. A subclass adds vocab_size, encode and decode_bytes."""

    kind: str | None = None
    vocab_size: int
    encode: Callable[..., np.ndarray]  # (text, special=False) -> ids, int64 1-D
    decode_bytes: Callable[[ArrayLike], bytes]
    eos_token_id: int | None = None  # the id that ends a document, if there is one
    pad_token_id: int | None = None  # the id that pads a batch, if there is one
    names: dict[str, str] = {}  # of special tokens, as in transformers: {"eos_token": "</s>"}
    special: Collection[str] = ()  # the tokens that `encode` reads in a text if it is told to

    def decode(self, ids: ArrayLike) -> str:
        """Return the text (str) of 1-D token ids; bytes that are not UTF-8 become U+FFFD. Raises as
        decode_bytes.
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_stream(self, tokens: Iterable[int], prompt: Iterable[int] = ()) -> Iterator[str]:
        """Yield the text of token ids as they arrive. An incomplete character is held back until
        its last byte.

        prompt: the ids before them, on which the text of the first one may depend. Raises as
        decode_bytes.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in tokens:
            yield decoder.decode(self.decode_bytes([token]))
        yield decoder.decode(b"", final=True)

    def batch(
        self, texts: list[str], length: int, left: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return texts as a batch for a model.

        Parameters
        ----------
        texts : list of B str
        length : int
            Longer texts are truncated, shorter ones padded.
        left : bool
            Whether padding comes first, as `generate` needs it.

        Returns
        -------
        ids : int64 array, shape (B, length)
            Padding has the id pad_token_id, else eos_token_id, else 0.
        mask : int64 array, shape (B, length)
            1 for a token and 0 for padding, as transformers' attention_mask.

        Raises
        ------
        UserError
            As `encode`, and if the length is too short for the special tokens.
        """
        rows = [self.encode_row(text, length) for text in texts]
        padding = next((i for i in (self.pad_token_id, self.eos_token_id) if i is not None), 0)
        ids = np.full((len(rows), length), padding, dtype=np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            begin = length - len(row) if left else 0
            ids[i, begin : begin + len(row)] = row
            mask[i, begin : begin + len(row)] = 1
        return ids, mask

    def encode_row(self, text: str, length: int) -> np.ndarray | list[int]:
        """Return at most `length` ids of `text`, for `batch`."""
        return self.encode(text)[:length]

    def count_bytes(self, tokens) -> int:
        """Return the bytes of text that 1-D token ids stand for.

        Masked tokens and those that end a text count as 0.
        """
        total = 0
        for start in range(0, len(tokens), TOKENS_AT_ONCE):
            ids = np.ma.compressed(tokens[start : start + TOKENS_AT_ONCE])
            if self.eos_token_id is not None:
                ids = ids[ids != self.eos_token_id]
            total += len(self.decode_bytes(ids))
        return total

    def to_dict(self) -> dict:
        """Return a JSON-serializable dict for tokenizer_from_dict."""
        return {"kind": self.kind}

    def _checked(self, ids):
        """Return `ids` as an int64 array. Raises UserError unless they are 1-D integers within the
        vocabulary.
        """
        ids = np.asarray(ids)
        is_row = ids.ndim == 1 and (ids.size == 0 or ids.dtype.kind in "iu")
        if not is_row or not ((0 <= ids) & (ids < self.vocab_size)).all():
            raise UserError(
                f"token ids must be 1-D integers within this {self.kind} tokenizer's "
                f"vocabulary of {self.vocab_size}: use the tokenizer that made them"
            )
        return ids.astype(np.int64)

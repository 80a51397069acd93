"""What every tokenizer has in common."""

import numpy as np

from npgpt.errors import UserError


class Tokenizer:
    """From text to token ids and back. A subclass adds vocab_size, encode, decode_bytes and bytes_per_token."""

    kind = None
    eos_token_id = None  # the id that ends a document, where there is one

    def decode(self, ids):
        """Return the text (str) of 1-D token ids; bytes that are not UTF-8 become U+FFFD. Raises as decode_bytes."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def to_dict(self):
        """Return what tokenizer_from_dict needs to make this tokenizer again: a dict that JSON can hold."""
        return {"kind": self.kind}

    def _checked(self, ids):
        """Return `ids` as an int64 array; raises UserError unless it is 1-D and all of it is in the vocabulary."""
        ids = np.asarray(ids, dtype=np.int64)
        if ids.ndim != 1:
            raise UserError(f"token ids have the shape {ids.shape}: decode one sequence at a time")
        outside = ids[(ids < 0) | (ids >= self.vocab_size)]
        if outside.size:
            raise UserError(
                f"token id {outside[0]} is outside this {self.kind} tokenizer's vocabulary of {self.vocab_size}: "
                "use the tokenizer that made the ids"
            )
        return ids

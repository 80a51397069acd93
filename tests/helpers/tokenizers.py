"""What every tokenizer does, and small tokenizer.json files of the two families, made by the
library itself.
"""

import numpy as np

from npgpt.data.tokenizers import load_tokenizer, save_tokenizer
from tests.helpers.runs import refusing

MIXED = "Zoë: 5 €, 漢字 and 🦉\n"  # characters of 1, 2, 3 and 4 bytes
SENTENCES = [
    "To be, or not to be, that is the question.",
    "Whether 'tis nobler in the mind to suffer",
] * 4


def assert_round_trip(tokenizer):
    ids = tokenizer.encode(MIXED)
    assert ids.dtype == np.int64 and ids.ndim == 1
    assert tokenizer.decode(ids) == MIXED
    assert tokenizer.decode(ids.tolist()) == MIXED
    assert tokenizer.decode_bytes(ids) == MIXED.encode()
    assert tokenizer.count_bytes(ids) == len(MIXED.encode()) and tokenizer.count_bytes(ids[:0]) == 0
    assert tokenizer.encode("").shape == (0,) and tokenizer.encode("").dtype == np.int64
    assert tokenizer.decode([]) == "" and tokenizer.decode_bytes(tokenizer.encode("")) == b""
    for wrong in (-1, tokenizer.vocab_size):
        with refusing(f"token ids must be .*{tokenizer.vocab_size}"):
            tokenizer.decode([0, wrong])


def assert_saved(tokenizer, path):
    save_tokenizer(tokenizer, path)
    again = load_tokenizer(path)
    assert type(again) is type(tokenizer) and again.to_dict() == tokenizer.to_dict()
    assert again.vocab_size == tokenizer.vocab_size and again.eos_token_id == tokenizer.eos_token_id
    return again


def byte_pairs(path, vocab_size=300):
    """Write a byte-level BPE like GPT-2's, which can encode every text. Return the path."""
    import tokenizers as library

    tokenizer = library.Tokenizer(library.models.BPE())
    byte_level = library.pre_tokenizers.ByteLevel
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.save(str(path))
    return path


def word_pieces(path):
    """Write a WordPiece like bert-base-uncased's, with [CLS], [SEP] and truncation. Return the
    path.
    """
    import tokenizers as library

    tokenizer = library.Tokenizer(library.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = library.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece()
    special = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=70, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(path))
    return path

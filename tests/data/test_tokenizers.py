import json

import numpy as np
import pytest
import tiktoken

from npgpt.data.tokenizers import (
    TOKENIZER_FILE,
    ByteTokenizer,
    CharTokenizer,
    GPT2Tokenizer,
    load_tokenizer,
)
from tests.helpers.runs import refusing
from tests.helpers.tokenizers import MIXED, assert_round_trip, assert_saved


def test_char():
    tokenizer = CharTokenizer.from_text("hello")
    assert (tokenizer.kind, tokenizer.chars, tokenizer.vocab_size) == ("char", "ehlo", 4)
    assert tokenizer.eos_token_id is None
    assert tokenizer.encode("hole").tolist() == [1, 3, 2, 0]
    assert tokenizer.decode([1, 0, 2, 2, 3]) == "hello"
    assert CharTokenizer("ba").encode("ab").tolist() == [1, 0]  # not sorted
    assert CharTokenizer("\udcff").decode_bytes([0]) == b"\xed\xb3\xbf"  # not an error
    assert_round_trip(CharTokenizer.from_text(MIXED))


@pytest.mark.parametrize(
    ("chars", "text", "named"),
    [
        ("ab", "ab🦉baY", r"'🦉' \(U\+1F989\) at position 2 .* only 'ab'"),
        (
            "ab",
            "\udcff",
            r"U\+DCFF\) at position 0",
        ),  # how Python shows a byte of the command line that is not UTF-8
        ("".join(map(chr, range(0x4E00, 0x4E00 + 5000))), "a", "'a'"),
    ],
)
def test_char_names_the_character_it_does_not_know(chars, text, named):
    with refusing(named) as caught:
        CharTokenizer(chars).encode(text)
    assert len(str(caught.value)) < 300


def test_char_fills_uint16_and_no_more():
    every_id = "".join(map(chr, range(0x10000, 0x20000)))
    assert np.array_equal(CharTokenizer(every_id).encode(every_id), np.arange(2**16))
    for chars in ("", "aba", every_id + "a"):
        with refusing("1 to 65536"):
            CharTokenizer(chars)


def test_byte():
    tokenizer = ByteTokenizer()
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.eos_token_id) == ("byte", 256, None)
    assert tokenizer.encode("aë").tolist() == [0x61, 0xC3, 0xAB]
    assert tokenizer.decode([0x61, 0xC3]) == "a\ufffd"
    assert tokenizer.decode_bytes([0x61, 0xC3]) == b"a\xc3"
    assert tokenizer.encode("\udcff").size == 3  # never an error
    assert_round_trip(tokenizer)


def test_gpt2(gpt2):
    assert (gpt2.kind, gpt2.vocab_size, gpt2.eos_token_id) == ("gpt2", 50257, 50256)
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    ids = gpt2.encode("<|endoftext|>")  # ordinary text
    assert 50256 not in ids
    assert gpt2.decode(ids) == gpt2.decode([50256]) == "<|endoftext|>"
    assert gpt2.count_bytes([50256, *ids]) == 13
    assert gpt2.encode("a<|endoftext|>b", special=True).tolist() == [64, 50256, 65]
    assert_round_trip(gpt2)


def test_an_incomplete_character_is_held_back(gpt2):
    ids = gpt2.encode("a🦉")
    assert list(gpt2.decode_stream(ids)) == ["a", *[""] * (len(ids) - 2), "🦉", ""]
    assert list(gpt2.decode_stream(ids[:2])) == ["a", "", "\ufffd"]


def test_a_batch_is_truncated_and_padded():
    ids, mask = CharTokenizer("abc").batch(["abcab", "cb", ""], 3)
    assert ids.tolist() == [[0, 1, 2], [2, 1, 0], [0, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
    assert ids.dtype == mask.dtype == np.int64
    ending = ByteTokenizer()
    ending.eos_token_id = 9
    assert ending.batch(("a",), 3)[0].tolist() == [[97, 9, 9]]
    assert ending.batch([], 3)[0].shape == (0, 3)


def test_gpt2_without_its_vocabulary_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    gpt2 = GPT2Tokenizer()
    assert_saved(gpt2, tmp_path / TOKENIZER_FILE)  # which works without the vocabulary
    with refusing("could not be downloaded .*TIKTOKEN_CACHE_DIR") as caught:
        gpt2.encode("a")
    assert len(str(caught.value)) < 300


def test_saved_tokenizers_come_back(tmp_path):
    path = tmp_path / TOKENIZER_FILE
    assert assert_saved(CharTokenizer.from_text(MIXED), path).encode("🦉").tolist() == [
        len(set(MIXED)) - 1
    ]
    assert_saved(ByteTokenizer(), path)
    assert [file.name for file in tmp_path.iterdir()] == [TOKENIZER_FILE]
    assert json.loads(path.read_text()) == {"kind": "byte"}


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"[]",
        b'{"kind": ["char"]}',
        b'{"kind": "char"}',
        b'{"kind": "char", "chars": ["a", "b"]}',
    ],
)
def test_a_damaged_file_is_named(damaged, tmp_path):
    (tmp_path / TOKENIZER_FILE).write_bytes(damaged)
    with refusing(TOKENIZER_FILE):
        load_tokenizer(tmp_path / TOKENIZER_FILE)

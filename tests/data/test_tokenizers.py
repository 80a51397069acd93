import json
import threading
import time
import timeit

import numpy as np
import pytest
import tiktoken

from npgpt.data import tokenizers
from npgpt.data.tokenizers import (
    TOKENIZER_FILE,
    ByteTokenizer,
    CharTokenizer,
    GPT2Tokenizer,
    load_tokenizer,
    make_tokenizer,
    save_tokenizer,
    tokenizer_from_dict,
)
from npgpt.errors import UserError

MIXED = "Zoë: 5 €, 漢字 and 🦉\n"  # characters of 1, 2, 3 and 4 bytes


@pytest.fixture
def unloaded_gpt2(monkeypatch, tmp_path):
    """A GPT2Tokenizer on a machine that has never seen the vocabulary."""
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return GPT2Tokenizer()


def check_round_trip(tokenizer):
    ids = tokenizer.encode(MIXED)
    assert ids.dtype == np.uint16 and ids.ndim == 1
    assert tokenizer.decode(ids) == MIXED
    assert tokenizer.decode(ids.tolist()) == MIXED
    assert tokenizer.decode_bytes(ids) == MIXED.encode()
    assert tokenizer.count_bytes(ids) == len(MIXED.encode()) and tokenizer.count_bytes(ids[:0]) == 0
    assert tokenizer.encode("").shape == (0,) and tokenizer.encode("").dtype == np.uint16
    assert tokenizer.decode([]) == "" and tokenizer.decode_bytes(tokenizer.encode("")) == b""


def check_refuses_other_ids(tokenizer):
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(UserError, match=f"token id {wrong} .*{tokenizer.vocab_size}"):
            tokenizer.decode([0, wrong])
    with pytest.raises(UserError, match="one sequence"):
        tokenizer.decode_bytes(np.zeros((2, 3), dtype=int))


def check_saved(tokenizer, path):
    save_tokenizer(tokenizer, path)
    again = load_tokenizer(path)
    assert type(again) is type(tokenizer) and again.to_dict() == tokenizer.to_dict()
    assert again.vocab_size == tokenizer.vocab_size and again.eos_token_id == tokenizer.eos_token_id
    return again


def test_char():
    tokenizer = CharTokenizer.from_text("hello")
    assert (tokenizer.kind, tokenizer.chars, tokenizer.vocab_size) == ("char", "ehlo", 4)
    assert tokenizer.eos_token_id is None
    assert tokenizer.encode("hole").tolist() == [1, 3, 2, 0]
    assert tokenizer.decode([1, 0, 2, 2, 3]) == "hello"
    check_refuses_other_ids(tokenizer)
    check_round_trip(CharTokenizer.from_text(MIXED))


def test_char_keeps_the_order_it_is_given():
    assert CharTokenizer("ba").encode("ab").tolist() == [1, 0]
    assert CharTokenizer("ba").decode([0, 1]) == "ba"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("abZbaY", r"'Z' \(U\+005A\) at position 2 .* only 'ab'"),
        ("a🦉", r"'🦉' \(U\+1F989\) at position 1"),
        ("\udcff", r"U\+DCFF\) at position 0"),  # how Python shows a byte of the command line that is not UTF-8
    ],
)
def test_char_names_the_character_it_does_not_know(text, named):
    with pytest.raises(UserError, match=named) as caught:
        CharTokenizer("ab").encode(text)
    assert "\n" not in str(caught.value)


def test_char_names_no_more_than_a_line_of_what_it_knows():
    with pytest.raises(UserError) as caught:
        CharTokenizer("".join(map(chr, range(0x4E00, 0x4E00 + 5000)))).encode("a")
    assert len(str(caught.value)) < 300


def test_char_fills_uint16_and_no_more():
    every_id = "".join(map(chr, range(0x10000, 0x20000)))
    tokenizer = CharTokenizer(every_id)
    assert np.array_equal(tokenizer.encode(every_id), np.arange(2**16))
    for chars in ("", "aba", every_id + "a"):
        with pytest.raises(UserError, match="1 to 65536"):
            CharTokenizer(chars)


def test_char_encodes_without_a_loop_over_the_characters():
    text = "abcdefgh" * 2**17
    tokenizer = CharTokenizer.from_text(text)
    id_of = {char: i for i, char in enumerate(tokenizer.chars)}
    quick = min(timeit.repeat(lambda: tokenizer.encode(text), number=1, repeat=3))
    assert quick < min(timeit.repeat(lambda: [id_of[char] for char in text], number=1, repeat=3))


def test_char_agrees_with_nanogpt_on_shakespeare(shakespeare):
    tokenizer = make_tokenizer("char", shakespeare.text)
    assert tokenizer.vocab_size == 65
    assert tokenizer.encode("First").tolist() == [18, 47, 56, 57, 58]


def test_byte():
    tokenizer = ByteTokenizer()
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.eos_token_id) == ("byte", 256, None)
    assert tokenizer.encode("aë").tolist() == [0x61, 0xC3, 0xAB]
    assert tokenizer.decode([0x61, 0xC3]) == "a\ufffd"  # half a character
    assert tokenizer.decode_bytes([0x61, 0xC3]) == b"a\xc3"
    assert tokenizer.encode("\udcff").size == 3  # never an error
    check_refuses_other_ids(tokenizer)
    check_round_trip(tokenizer)


def test_gpt2(gpt2):
    assert (gpt2.kind, gpt2.vocab_size, gpt2.eos_token_id) == ("gpt2", 50257, 50256)
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    check_refuses_other_ids(gpt2)
    check_round_trip(gpt2)


def test_gpt2_takes_the_end_of_text_for_text(gpt2):
    marker = "<|endoftext|>"
    ids = gpt2.encode(marker)
    assert gpt2.eos_token_id not in ids and gpt2.decode(ids) == marker
    assert gpt2.decode([gpt2.eos_token_id]) == marker
    assert gpt2.bytes_per_token()[gpt2.eos_token_id] == 0


def test_gpt2_streams_the_bytes_of_half_a_character(gpt2):
    ids = gpt2.encode("🦉")
    assert ids.size > 1
    assert b"".join(gpt2.decode_bytes([i]) for i in ids) == "🦉".encode()
    assert gpt2.decode(ids[:1]) == "\ufffd"


def test_gpt2_exists_without_its_vocabulary(unloaded_gpt2, tmp_path):
    assert unloaded_gpt2.vocab_size == 50257
    check_saved(unloaded_gpt2, tmp_path / TOKENIZER_FILE)


@pytest.mark.parametrize(
    "use", [lambda gpt2: gpt2.encode("a"), lambda gpt2: gpt2.decode([1]), lambda gpt2: gpt2.bytes_per_token()]
)
def test_gpt2_without_a_network_says_what_to_do(unloaded_gpt2, use):
    with pytest.raises(UserError, match="could not be downloaded .*TIKTOKEN_CACHE_DIR") as caught:
        use(unloaded_gpt2)
    assert len(str(caught.value)) < 300


def test_gpt2_waits_no_longer_than_its_limit(unloaded_gpt2, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(tokenizers, "VOCABULARY_SECONDS", 0.2)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: released.wait(20))
    start = time.perf_counter()
    with pytest.raises(UserError, match="no answer within 0.2 seconds.*TIKTOKEN_CACHE_DIR"):
        unloaded_gpt2.encode("a")
    assert time.perf_counter() - start < 5
    released.set()


def test_gpt2_waits_ten_seconds_at_most():
    assert tokenizers.VOCABULARY_SECONDS <= 10


def test_make_tokenizer():
    assert make_tokenizer("char", "banana").chars == "abn"
    assert isinstance(make_tokenizer("byte"), ByteTokenizer)
    assert isinstance(make_tokenizer("gpt2"), GPT2Tokenizer)
    assert isinstance(make_tokenizer("bpe", "a text that it does not need"), GPT2Tokenizer)
    with pytest.raises(UserError, match="'word' .*char, byte or gpt2"):
        make_tokenizer("word")
    with pytest.raises(UserError, match="from a text"):
        make_tokenizer("char")
    with pytest.raises(UserError, match="1 to 65536"):
        make_tokenizer("char", "")


def test_saved_tokenizers_come_back(tmp_path):
    path = tmp_path / TOKENIZER_FILE
    assert check_saved(CharTokenizer.from_text(MIXED), path).encode("🦉").tolist() == [len(set(MIXED)) - 1]
    check_saved(ByteTokenizer(), path)
    assert [file.name for file in tmp_path.iterdir()] == [TOKENIZER_FILE]
    assert json.loads(path.read_text()) == {"kind": "byte"}


@pytest.mark.parametrize(
    "bad",
    [
        [],
        "char",
        {},
        {"kind": "word"},
        {"kind": ["char"]},
        {"kind": "char"},
        {"kind": "char", "chars": ["a", "b"]},
        {"kind": "char", "chars": ""},
        {"kind": "char", "chars": "aa"},
    ],
)
def test_a_description_that_is_wrong_is_refused(bad, tmp_path):
    with pytest.raises(UserError):
        tokenizer_from_dict(bad)
    path = tmp_path / TOKENIZER_FILE
    path.write_text(json.dumps(bad))
    with pytest.raises(UserError, match=TOKENIZER_FILE):
        load_tokenizer(path)


@pytest.mark.parametrize("damaged", [b"", b'{"kind": "cha', b"\xff\xfe\xfd"])
def test_a_damaged_file_is_named(damaged, tmp_path):
    path = tmp_path / TOKENIZER_FILE
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=TOKENIZER_FILE):
        load_tokenizer(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="gone.json"):
        load_tokenizer(tmp_path / "gone.json")

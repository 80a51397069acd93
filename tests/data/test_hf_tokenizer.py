import json
import os
import sys

import numpy as np
import pytest

from npgpt.data.hf_tokenizer import PROBE, HFTokenizer
from npgpt.data.tokenizers import TOKENIZER_FILE, load_tokenizer, make_tokenizer
from tests.helpers.runs import refusing
from tests.helpers.tokenizers import assert_round_trip, assert_saved, byte_pairs, word_pieces

library = pytest.importorskip("tokenizers", reason="the extra hf is not installed")


@pytest.fixture
def bpe(tmp_path):
    return make_tokenizer(f"hf:{byte_pairs(tmp_path / 'bpe.json')}")


@pytest.fixture
def bert(tmp_path):
    return make_tokenizer(f"hf:{word_pieces(tmp_path / 'bert.json')}")


def test_byte_pairs_keep_every_byte(bpe):
    assert_round_trip(bpe)
    assert (bpe.vocab_size, bpe.eos_token_id) == (300, 0)
    assert bpe.decode(bpe.encode(PROBE)) == PROBE and len(bpe.encode("question")) < len("question")
    assert set(PROBE.encode()) == set(range(256)) - {
        0xC0,
        0xC1,
        *range(0xF5, 0x100),
    }  # those that UTF-8 uses


@pytest.mark.parametrize(
    ("name", "end", "eos"), [("bpe", "<|endoftext|>", 0), ("bert", "[SEP]", 3)]
)
def test_special_tokens_in_a_text(request, name, end, eos):
    tokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(f"to{end}be", special=True).tolist()
    assert ids == [*tokenizer.encode("to"), eos, *tokenizer.encode("be")]
    assert tokenizer.eos_token_id == eos and eos not in tokenizer.encode(end)
    assert tokenizer.decode([eos]) == end


def test_word_pieces(bert):
    ids = bert.encode("To be, or NOT to be: the mind")
    assert ids.dtype == np.int64 and len(ids) > 4  # neither truncated nor padded
    assert not set(ids.tolist()) & {0, 2, 3}  # and without [CLS] and [SEP]
    assert bert.decode(ids) == "to be, or not to be [UNK] the mind"
    bert.encode("[SEP]", special=True)
    assert bert.batch(["to [SEP] be"], 9)[0].tolist()[0].count(3) == 1  # that at the end


SENTENCES = [
    "To be, or NOT to be: the mind",
    "suffer",
    "",
    "that is the question, whether 'tis nobler in the mind",
]


@pytest.mark.parametrize("length", [2, 3, 7, 30])
def test_a_batch_is_that_of_transformers_bert(bert, length):
    transformers = pytest.importorskip("transformers")
    fast = transformers.BertTokenizerFast(
        tokenizer_object=library.Tokenizer.from_str(json.dumps(bert.description))
    )
    theirs = fast(
        SENTENCES, max_length=length, truncation=True, padding="max_length", return_tensors="np"
    )
    ids, mask = bert.batch(SENTENCES, length)
    assert ids.shape == mask.shape == (4, length) and ids.dtype == mask.dtype == np.int64
    assert np.array_equal(ids, theirs["input_ids"]) and np.array_equal(
        mask, theirs["attention_mask"]
    )
    with refusing("length must be a whole number from 2 to"):
        bert.batch(SENTENCES, 1)


@pytest.fixture
def llama():
    """Llama's way: a space is ▁, and a character without a token is spelled in bytes."""
    vocab = {"<unk>": 0, "▁be": 1, "▁": 2, "b": 3, "e": 4, "be": 5}
    vocab |= {f"<0x{i:02X}>": 6 + i for i in range(256)}
    merges = [("b", "e"), ("▁", "be")]
    model = library.models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer, decoders = library.Tokenizer(model), library.decoders
    tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace()
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return HFTokenizer(json.loads(tokenizer.to_str()))


@pytest.mark.parametrize(
    ("name", "text"),
    [("bpe", "To be 🦉, Zoë"), ("bert", "to be, or nobler questions"), ("llama", "be be 🦉 be")],
)
def test_a_stream_gives_what_decode_gives(request, name, text):
    tokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(text)
    for prompt in range(3):
        parts = list(tokenizer.decode_stream(ids[prompt:], ids[:prompt]))
        assert tokenizer.decode(ids[:prompt]) + "".join(parts) == text and not parts[-1]
    noise = np.random.default_rng(0).integers(0, tokenizer.vocab_size, 300)
    assert "".join(tokenizer.decode_stream(noise))  # bytes that are no text stop nothing


def test_gaps_between_ids_no_end_of_text_and_the_largest_vocabulary(tmp_path):
    description = json.loads(byte_pairs(tmp_path / "bpe.json").read_text())
    assert HFTokenizer({**description, "added_tokens": []}).eos_token_id is None
    description["model"]["vocab"]["zzz"] = 65535
    tokenizer = HFTokenizer(description)
    assert tokenizer.vocab_size == 65536 and tokenizer.decode([350, 65535]) == "zzz"
    description["model"]["vocab"]["zzz"] = 65536
    with refusing("vocabulary is 65537, and token files can store 1 to 65536"):
        HFTokenizer(description)


def test_a_folder_and_the_hub_which_is_not_asked_for_other_names(bpe, tmp_path, monkeypatch):
    asked = []
    byte_pairs(tmp_path / "tokenizer.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("npgpt.download.hub.fetch", lambda *args: asked.append(args) or tmp_path)
    for name in (tmp_path, "bert-base-uncased", "owner/name"):
        assert make_tokenizer(f"hf:{name}").to_dict() == bpe.to_dict()
    assert [name for name, _ in asked] == ["bert-base-uncased", "owner/name"]
    for name in ("", "gone.json", "../gone", "a/b/c", "nul\0byte", "long" * 2000 + ".json", "ü"):
        with refusing("no tokenizer"):
            make_tokenizer(f"hf:{name}")
    assert len(asked) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"model": {"type": "WordPiece", "vocab": {}, "unk_token": "x", '
        b'"continuing_subword_prefix": "", "max_input_chars_per_word": 9}}',
    ],
)
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "bad.json").write_bytes(content)
    with refusing("bad.json cannot be used as a tokenizer.json") as caught:
        make_tokenizer(f"hf:{tmp_path / 'bad.json'}")
    assert len(str(caught.value)) < 400


def test_without_the_library_the_extra_is_named(bpe, tmp_path, monkeypatch):
    assert_saved(bpe, tmp_path / TOKENIZER_FILE)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for use, argument in (
        (make_tokenizer, f"hf:{tmp_path / 'bpe.json'}"),
        (load_tokenizer, tmp_path / TOKENIZER_FILE),
    ):
        with refusing(r'pip install "npgpt\[hf\]"'):
            use(argument)


def test_a_file_on_which_the_library_panics_is_refused(tmp_path, capfd):
    """The library's own message is discarded; what comes later on standard error is not."""
    path = word_pieces(tmp_path / "tokenizer.json")
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "decoder": {"type": ["WordPiece"]}})
    )
    capfd.readouterr()
    with refusing("tokenizer.json"):
        make_tokenizer(f"hf:{path}").encode("to be or not to be")
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"

import json
import sys

import numpy as np
import pytest

from npgpt.data.batches import folder_tokenizer, open_dataset, prepare
from npgpt.data.corpora import open_corpus
from npgpt.data.hf_tokenizer import PROBE, HFTokenizer
from npgpt.data.tokenizers import TOKENIZER_FILE, is_called, load_tokenizer, make_tokenizer, tokenizer_from_dict
from npgpt.errors import UserError
from tests.data.conftest import gpt2_path
from tests.data.test_tokenizers import check_refuses_other_ids, check_round_trip, check_saved
from tests.data.tokenizer_json import byte_pairs, word_pieces

library = pytest.importorskip("tokenizers", reason="the extra hf is not installed")


@pytest.fixture
def bpe(tmp_path):
    return make_tokenizer(f"hf:{byte_pairs(tmp_path / 'bpe.json')}")


@pytest.fixture
def bert(tmp_path):
    return make_tokenizer(f"hf:{word_pieces(tmp_path / 'bert.json')}")


def edited(path, **changes):
    """Change fields of a tokenizer.json and open it."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return make_tokenizer(f"hf:{path}")


def test_byte_pairs_keep_every_byte(bpe):
    check_round_trip(bpe)
    assert bpe.vocab_size == 300 and bpe.eos_token_id == 0 and bpe.bytes_per_token()[0] == 0
    assert bpe.decode(bpe.encode(PROBE)) == PROBE
    ids = bpe.encode("question")
    assert ids.size < len("question")  # pairs, not bytes alone
    half = bpe.encode("🦉")[:1]
    assert bpe.decode(half) == "\ufffd" and bpe.decode_bytes(half) == "🦉".encode()[: bpe.bytes_per_token()[half[0]]]


def test_gpt2_as_a_tokenizer_json_is_gpt2(gpt2, shakespeare):
    with open(gpt2_path("encoder.json"), encoding="utf-8") as file:
        vocab = json.load(file)
    with open(gpt2_path("vocab.bpe"), encoding="utf-8") as file:
        merges = [tuple(line.split()) for line in file.read().splitlines()[1:]]
    same = library.Tokenizer(library.models.BPE(vocab, merges))
    same.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    same.decoder = library.decoders.ByteLevel()
    same.add_special_tokens(["<|endoftext|>"])
    same = HFTokenizer(json.loads(same.to_str()))
    assert (same.vocab_size, same.eos_token_id) == (50257, 50256)
    assert np.array_equal(same.bytes_per_token(), gpt2.bytes_per_token())
    for text in (shakespeare.text, PROBE, "<|endoftext|> 🦉"):
        ids = gpt2.encode(text)
        assert np.array_equal(same.encode(text), ids) and same.decode_bytes(ids) == gpt2.decode_bytes(ids)


def test_the_probe_needs_every_byte_of_utf8():
    assert set(PROBE.encode()) == set(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}


def test_other_ids_are_refused(bpe, bert):
    check_refuses_other_ids(bpe)
    check_refuses_other_ids(bert)


def test_text_that_looks_like_a_special_token_is_text(bpe, bert):
    for tokenizer, text in ((bpe, "<|endoftext|>"), (bert, "[SEP]")):
        ids = tokenizer.encode(text)
        assert tokenizer.eos_token_id not in ids and ids.size > 1
        assert tokenizer.decode([tokenizer.eos_token_id]) == text
    assert bpe.decode(bpe.encode("<|endoftext|>")) == "<|endoftext|>"


def test_half_a_surrogate_pair_becomes_a_replacement_character(bpe):
    assert bpe.decode(bpe.encode("a\udc80b")) == "a\ufffdb"
    assert bpe.decode(bpe.encode("\ufeffa")) == "\ufeffa"


def test_word_pieces(bert):
    text = "To be, or NOT to be: the mind"
    ids = bert.encode(text)
    assert ids.dtype == np.uint16 and ids.size > 4  # neither truncated nor padded, and without [CLS] and [SEP]
    assert not set(ids.tolist()) & {0, 2, 3}
    assert bert.decode(ids) == "to be, or not to be [UNK] the mind"
    assert bert.eos_token_id == 3 and bert.vocab_size == 70
    assert bert.encode("\n").shape == (0,) and bert.decode([]) == ""


def test_the_bytes_of_word_pieces_are_those_of_their_parts(bert):
    ids = bert.encode("nobler questions")
    assert ids.size > 2
    whole = bert.decode_bytes(ids)
    assert whole.decode() == " " + bert.decode(ids) == " nobler questions"
    assert b"".join(bert.decode_bytes([i]) for i in ids) == whole


def test_bits_per_byte_are_not_defined_where_bytes_get_lost(bert, tmp_path):
    with pytest.raises(UserError, match="does not keep every byte"):
        bert.bytes_per_token()
    lower = edited(byte_pairs(tmp_path / "lower.json"), normalizer={"type": "Lowercase"})
    with pytest.raises(UserError, match="does not keep every byte"):
        lower.bytes_per_token()
    spaced = edited(byte_pairs(tmp_path / "spaced.json"), pre_tokenizer={
        "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True})
    with pytest.raises(UserError, match="does not keep every byte"):
        spaced.bytes_per_token()


def test_metaspace_with_bytes_for_unknown_characters(tmp_path):
    """The way of Llama: a space is ▁, and a character without a token is spelled in bytes."""
    vocab = {"<unk>": 0, "</s>": 1, "▁be": 2, "▁": 3, "b": 4, "e": 5, "be": 6}
    vocab |= {f"<0x{byte:02X}>": 7 + byte for byte in range(256)}
    tokenizer = library.Tokenizer(library.models.BPE(vocab, [("b", "e"), ("▁", "be")], unk_token="<unk>",
                                                     byte_fallback=True, fuse_unk=True))
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace()
    tokenizer.decoder = library.decoders.Sequence([
        library.decoders.Replace("▁", " "), library.decoders.ByteFallback(), library.decoders.Fuse(),
        library.decoders.Strip(" ", 1, 0)])
    tokenizer.save(str(tmp_path / "llama.json"))
    llama = make_tokenizer(f"hf:{tmp_path / 'llama.json'}")
    ids = llama.encode("be be 🦉")
    assert llama.decode(ids) == "be be 🦉" and llama.decode_bytes(ids) == " be be 🦉".encode()
    assert b"".join(llama.decode_bytes([i]) for i in ids) == llama.decode_bytes(ids)
    assert llama.eos_token_id == 1


def test_gaps_between_ids_count(tmp_path):
    path = byte_pairs(tmp_path / "gaps.json")
    description = json.loads(path.read_text())
    description["model"]["vocab"]["zzz"] = 400
    tokenizer = HFTokenizer(description)
    assert tokenizer.vocab_size == 401 and tokenizer.bytes_per_token().shape == (401,)
    assert tokenizer.decode_bytes([350, 400]) == b"zzz"


def test_a_tokenizer_without_an_end_of_text(tmp_path):
    assert edited(byte_pairs(tmp_path / "plain.json"), added_tokens=[]).eos_token_id is None


def test_saved_with_all_that_it_needs(bpe, bert, tmp_path):
    for tokenizer, path in ((bpe, tmp_path / "bpe.json"), (bert, tmp_path / "bert.json")):
        ids = tokenizer.encode("To be")
        path.unlink()
        again = check_saved(tokenizer, tmp_path / TOKENIZER_FILE)
        assert np.array_equal(again.encode("To be"), ids)
    saved = json.loads((tmp_path / TOKENIZER_FILE).read_text())
    assert saved == {"kind": "hf", "tokenizer": bert.description} and saved["tokenizer"]["truncation"]


def test_a_folder_and_the_hub(tmp_path, monkeypatch):
    path = byte_pairs(tmp_path / "tokenizer.json")
    from_folder = make_tokenizer(f"hf:{tmp_path}")
    asked = []
    monkeypatch.setattr("npgpt.hub.fetch_file", lambda *args: asked.append(args) or str(path))
    for name in ("bert-base-uncased", "owner/name"):
        assert make_tokenizer(f"hf:{name}").to_dict() == from_folder.to_dict()
    assert asked == [("bert-base-uncased", "tokenizer.json"), ("owner/name", "tokenizer.json")]


@pytest.mark.parametrize("name", ["", "/", "gone.json", "../gone", "a/b/c", "nul\0byte", "long" * 2000 + ".json", "ü"])
def test_what_is_no_tokenizer_is_one_line(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("npgpt.hub.fetch_file", lambda *args: pytest.fail("the hub was asked"))
    with pytest.raises(UserError, match="no tokenizer"):
        make_tokenizer(f"hf:{name}")


@pytest.mark.parametrize(("content", "says"), [
    (b"", "not a tokenizer.json that can be read"),
    (b"\xff\xfe", "not a tokenizer.json that can be read"),
    (b"[" * 100_000, "not a tokenizer.json that can be read"),
    (b"[]", "library cannot work"),
    (b"{}", "library cannot work"),
    (b'{"kind": "byte"}', "library cannot work"),
    (b'{"model": {"type": "WordPiece", "vocab": {}, "unk_token": "x", "continuing_subword_prefix": "",'
     b' "max_input_chars_per_word": 9}}', "vocabulary of 0"),
])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content, says):
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(UserError, match=f"bad.json.*{says}") as caught:
        make_tokenizer(f"hf:{tmp_path / 'bad.json'}")
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_a_vocabulary_that_does_not_fit_in_uint16(tmp_path):
    path = byte_pairs(tmp_path / "large.json")
    description = json.loads(path.read_text())
    description["model"]["vocab"]["zzz"] = 65535
    assert HFTokenizer(description).vocab_size == 65536
    description["model"]["vocab"]["zzz"] = 65536
    path.write_text(json.dumps(description))
    with pytest.raises(UserError, match="vocabulary of 65537, and token files hold 1 to 65536"):
        make_tokenizer(f"hf:{path}")


def test_a_text_without_tokens_and_without_unknown(tmp_path):
    path = word_pieces(tmp_path / "bert.json")
    description = json.loads(path.read_text())
    description["model"]["unk_token"] = "[NONE]"
    with pytest.raises(UserError, match="cannot work .*Missing"):
        HFTokenizer(description).encode("€")


def test_without_the_library_the_extra_is_named(bpe, tmp_path, monkeypatch):
    check_saved(bpe, tmp_path / TOKENIZER_FILE)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for use, argument in ((make_tokenizer, f"hf:{tmp_path / 'bpe.json'}"), (load_tokenizer, tmp_path / TOKENIZER_FILE)):
        with pytest.raises(UserError, match=r'pip install "npgpt\[hf\]"'):
            use(argument)


@pytest.mark.parametrize("bad", [{"kind": "hf"}, {"kind": "hf", "tokenizer": "owner/name"},
                                 {"kind": "hf", "tokenizer": {}}, {"kind": "hf:owner/name"}])
def test_a_description_never_leads_to_the_hub(bad, monkeypatch):
    monkeypatch.setattr("npgpt.hub.fetch_file", lambda *args: pytest.fail("the hub was asked"))
    with pytest.raises(UserError):
        tokenizer_from_dict(bad)


def test_which_tokenizer_a_name_asks_for(bpe, bert, tmp_path):
    assert is_called(bpe, f"hf:{tmp_path / 'bpe.json'}") and not is_called(bpe, f"hf:{tmp_path / 'bert.json'}")
    assert not is_called(bpe, "gpt2") and is_called(make_tokenizer("gpt2"), "bpe")
    assert not is_called(make_tokenizer("gpt2"), f"hf:{tmp_path / 'bpe.json'}")


def test_token_files_remember_which_one_made_them(bpe, tmp_path, poem):
    word_pieces(tmp_path / "bert.json")
    folder = tmp_path / "tokens"
    prepare(poem, bpe, folder, progress=False)
    train, val, tokenizer = open_dataset(open_corpus(folder), f"hf:{tmp_path / 'bpe.json'}")
    assert tokenizer.decode(train[:]) + tokenizer.decode(val[:]) == poem.text
    assert folder_tokenizer(folder, None).to_dict() == bpe.to_dict()
    for other in (f"hf:{tmp_path / 'bert.json'}", "gpt2"):
        with pytest.raises(UserError, match=f"hf tokenizer, not {other}"):
            folder_tokenizer(folder, other)

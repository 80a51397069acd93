import numpy as np
import pytest

from npgpt.cli.training_data import open_tokens
from npgpt.data.corpora import Corpus, in_documents, open_corpus
from npgpt.data.dataset import prepare, tokenize_corpus, tokenizer_of
from npgpt.data.token_files import TokenFile
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, CharTokenizer, GPT2Tokenizer, make_tokenizer
from npgpt.errors import UserError
from tests.helpers.tokenizers import word_pieces


def open_dataset(corpus, kind=None):
    """Return (train, validation, tokenizer) of a corpus, as `npgpt train` does."""
    tokenizer = tokenizer_of(corpus, kind)
    return *open_tokens(tokenizer, corpus), tokenizer


@pytest.mark.parametrize(("eos", "ending"), [(256, [256]), (None, [43])])
def test_answers_are_packed_and_their_prompts_masked(eos, ending):
    tokenizer = ByteTokenizer()
    tokenizer.eos_token_id = eos
    corpus = Corpus("answers", "abcde", None, "a text of the tests", [("ab", "c"), ("", "de")], "+")
    train, val = tokenize_corpus(corpus, tokenizer, 0.5)
    assert train.tolist() == [None, None, *b"c", *ending] and val.tolist() == [*b"de", *ending]
    both, none = tokenize_corpus(corpus, tokenizer, 0)
    assert (
        none is None
        and both.dtype == np.int64
        and both.data.tolist() == [*b"abc", *ending, *b"de", *ending]
    )
    assert np.flatnonzero(both.mask).tolist() == [0, 1]
    kept, _ = open_tokens(tokenizer, corpus, 0)         # as a command keeps them in memory
    assert kept.dtype == np.uint16 and kept.tolist() == both.tolist()


@pytest.mark.parametrize(("fraction", "boundary"), [(0.1, 18), (0.5, 10), (0.85, 3)])
def test_special_tokens_of_a_text_are_not_cut_in_two(fraction, boundary):
    """The boundary in 20 characters moves behind a token that contains it."""
    for at in range(16):
        text = f"{'a' * at}<end>{'b' * (15 - at)}"
        poem = Corpus("poem", text, None, "")
        cut = at + 5 if at < boundary < at + 5 else boundary
        assert tokenize_corpus(poem, Marked(), fraction) == ((text[:cut], True), (text[cut:], True))
        plain, _ = tokenize_corpus(poem, Marked(), fraction, special=False)
        assert plain == (text[:boundary], False)


class Marked(ByteTokenizer):
    special = ("<end>",)

    def encode(self, text, special=False):
        return text, special


def test_prepare_and_open_again(poem, tmp_path):
    folder = tmp_path / "new" / "folder"
    tokenizer = make_tokenizer("char", poem.text)
    prepare(poem, tokenizer, folder)
    assert sorted(path.name for path in folder.iterdir()) == [TOKENIZER_FILE, "train.bin", "val.bin"]
    assert (folder / "val.bin").read_bytes() == bytes([1, 0, 2, 0, 3, 0, 4, 0, 0, 0]) * 2
    train, val, again = open_dataset(open_corpus(folder))
    assert isinstance(train, TokenFile) and train.dtype == np.uint16 and len(train) == 90
    assert again.to_dict() == tokenizer.to_dict()
    assert again.decode(train[:]) + again.decode(val[:]) == poem.text


def test_a_prepared_folder_is_not_overwritten_and_keeps_its_tokenizer(poem, tmp_path):
    prepare(poem, make_tokenizer("char", poem.text), tmp_path)      # an empty folder will do
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match="already exists"):
        prepare(poem, ByteTokenizer(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(UserError, match="already consists of token files"):
        prepare(open_corpus(tmp_path), ByteTokenizer(), tmp_path / "new")
    assert isinstance(open_dataset(open_corpus(tmp_path), "char")[2], CharTokenizer)
    with pytest.raises(UserError, match="char tokenizer, not byte"):
        open_dataset(open_corpus(tmp_path), "byte")


def test_a_text_is_opened_in_characters_unless_told_otherwise(poem):
    train, val, tokenizer = open_dataset(poem, "byte")
    assert isinstance(tokenizer, ByteTokenizer) and val[:5].tolist() == list(b"abcd ")
    train, val, tokenizer = open_dataset(Corpus("late", "a" * 9 + "b", None, "a text of the tests"))
    assert isinstance(tokenizer, CharTokenizer) and tokenizer.chars == "ab"
    assert tokenizer.decode(val) == "b"         # a character of the validation split only


def test_a_folder_without_a_tokenizer_is_gpt2s_and_a_pickle_is_not_opened(token_folder, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(token_folder))  # which has no vocabulary
    for kind in (None, "gpt2"):
        train, val, tokenizer = open_dataset(open_corpus(token_folder), kind)
        assert isinstance(tokenizer, GPT2Tokenizer) and train[:].tolist() == [1, 2, 50256] and val[:].tolist() == [3]
    assert isinstance(open_dataset(open_corpus(token_folder), "byte")[2], ByteTokenizer)
    (token_folder / "meta.pkl").write_bytes(b"cpytest\nfail\n(Vthe pickle was opened\ntR.")      # fails when loaded
    for kind in (None, "gpt2"):
        with pytest.raises(
            UserError, match="meta.pkl.*npgpt data prepare input.txt --tokenizer char"
        ):
            open_dataset(open_corpus(token_folder), kind)


@pytest.mark.parametrize("eos", [None, 7])
def test_prepare_documents(tmp_path, eos):
    """They are packed: one stream, with an end after each."""
    stories, tokenizer = [f"tale {n}" for n in range(10)], ByteTokenizer()
    tokenizer.eos_token_id = eos
    corpus = Corpus("tales", "\n--\n".join(["", *stories, " "]), None, "a text of the tests")
    prepare(in_documents(corpus, "--"), tokenizer, tmp_path / "tokens")
    assert sorted(path.name for path in (tmp_path / "tokens").iterdir()) == [
        TOKENIZER_FILE,
        "train.bin",
        "val.bin",
    ]
    train, val, _ = open_dataset(open_corpus(tmp_path / "tokens"))
    end = "--" if eos is None else chr(eos)
    assert bytes(train[:].tolist()).decode() == "".join(f"{story}{end}" for story in stories[:9])
    assert bytes(val[:].tolist()).decode() == f"tale 9{end}"


def test_the_end_of_a_document_is_the_tokenizers(npgpt, tmp_path):
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    word_pieces(tmp_path / "tokenizer.json")
    (tmp_path / "lines.txt").write_text("to be\nor [MASK] not\n")
    command = [
        "data",
        "prepare",
        "lines.txt",
        "--tokenizer",
        "hf:tokenizer.json",
        "--documents",
        r"\n",
        "--val-fraction",
        0.5,
    ]
    for flags, inside in (([], [4]), (["--no-special"], None)):
        code, out, _ = npgpt(*command, "--out", f"tokens{len(flags)}", *flags)
        assert code == 0 and "documents: 2" in out
        assert ("1 [MASK] in the text, read as special tokens" in out) == (not flags)
        train, val, tokenizer = open_dataset(open_corpus(tmp_path / f"tokens{len(flags)}"))
        assert train[:].tolist() == [*tokenizer.encode("to be"), 3]
        inside = inside or tokenizer.encode("[MASK]").tolist()
        assert val[:].tolist() == [*tokenizer.encode("or"), *inside, *tokenizer.encode("not"), 3]

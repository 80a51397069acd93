import numpy as np
import pytest

from npgpt.cli.training_data import open_tokens
from npgpt.data.corpora import Corpus, in_documents, open_corpus
from npgpt.data.dataset import prepare, tokenize_corpus, tokenizer_of
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, make_tokenizer
from tests.helpers.runs import refusing


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
    both, none = open_tokens(tokenizer, corpus, 0)
    assert none is None and both.dtype == np.uint16
    assert both.data.tolist() == [*b"abc", *ending, *b"de", *ending]
    assert np.flatnonzero(both.mask).tolist() == [0, 1]


def test_prepare_and_open_again(poem, tmp_path):
    folder = tmp_path / "new" / "folder"
    tokenizer = make_tokenizer("char", poem.text)
    prepare(poem, tokenizer, folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [TOKENIZER_FILE, "train.bin", "val.bin"]
    assert (folder / "val.bin").read_bytes() == bytes([1, 0, 2, 0, 3, 0, 4, 0, 0, 0]) * 2
    train, val, again = open_dataset(open_corpus(folder))
    assert again.to_dict() == tokenizer.to_dict() and len(train) == 90
    assert again.decode(train[:]) + again.decode(val[:]) == poem.text


def test_a_prepared_folder_is_not_overwritten_and_keeps_its_tokenizer(poem, tmp_path):
    prepare(poem, make_tokenizer("char", poem.text), tmp_path)  # an empty folder will do
    with refusing("already exists"):
        prepare(poem, ByteTokenizer(), tmp_path)
    with refusing("already consists of token files"):
        prepare(open_corpus(tmp_path), ByteTokenizer(), tmp_path / "new")
    assert open_dataset(open_corpus(tmp_path), "char")[2].chars == " abcd"
    with refusing("char tokenizer, not byte"):
        open_dataset(open_corpus(tmp_path), "byte")


@pytest.mark.parametrize("kind", [None, "gpt2"])
def test_a_folder_without_a_tokenizer_is_gpt2s_and_a_pickle_is_not_opened(
    token_folder, monkeypatch, kind
):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(token_folder))  # which has no vocabulary
    train, val, tokenizer = open_dataset(open_corpus(token_folder), kind)
    assert tokenizer.kind == "gpt2" and (train[:].tolist(), val[:].tolist()) == ([1, 2, 50256], [3])
    assert open_dataset(open_corpus(token_folder), "byte")[2].kind == "byte"
    fails_when_loaded = b"cpytest\nfail\n(Vthe pickle was opened\ntR."
    (token_folder / "meta.pkl").write_bytes(fails_when_loaded)
    says = "meta.pkl.*npgpt data prepare input.txt --tokenizer char"
    with refusing(says):
        open_dataset(open_corpus(token_folder), kind)


@pytest.mark.parametrize("eos", [None, 7])
def test_prepare_documents(tmp_path, eos):
    """They are packed: one stream, with an end after each."""
    stories, tokenizer = [f"tale {n}" for n in range(10)], ByteTokenizer()
    tokenizer.eos_token_id = eos
    corpus = Corpus("tales", "\n--\n".join(["", *stories, " "]), None, "a text of the tests")
    prepare(in_documents(corpus, "--"), tokenizer, tmp_path / "tokens")
    train, val, _ = open_dataset(open_corpus(tmp_path / "tokens"))
    end = "--" if eos is None else chr(eos)
    assert bytes(train[:].tolist()).decode() == "".join(f"{story}{end}" for story in stories[:9])
    assert bytes(val[:].tolist()).decode() == f"tale 9{end}"

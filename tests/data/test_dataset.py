import numpy as np
import pytest

from npgpt.data.corpora import Corpus, open_corpus
from npgpt.data.dataset import concatenate_splits, open_dataset, prepare, tokenize_corpus, tokenize_documents
from npgpt.data.token_files import Documents, TokenFile
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, CharTokenizer, GPT2Tokenizer, make_tokenizer
from npgpt.errors import UserError
from tests.helpers.runs import refused
from tests.helpers.tokenizers import word_pieces


@pytest.mark.parametrize(("eos", "ending"), [(256, [256]), (None, [])])
def test_answers_end_as_documents_do(eos, ending):
    tokenizer = ByteTokenizer()
    tokenizer.eos_token_id = eos
    corpus = Corpus("answers", "abcde", None, "a text of the tests", [("ab", "c"), ("", "de")])
    train, val = tokenize_corpus(corpus, tokenizer, 0.5)
    assert train[:].tolist() == [*b"abc", *ending] and val[:].tolist() == [*b"de", *ending]
    both, none = tokenize_corpus(corpus, tokenizer, 0)
    assert none is None and both.dtype == np.uint16 and both.prompts.tolist() == [2, 0]
    assert both.starts.tolist() == [0, 3 + len(ending)]


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
        with pytest.raises(UserError, match="meta.pkl.*npgpt data prepare"):
            open_dataset(open_corpus(token_folder), kind)


def test_prepare_documents(tmp_path):
    stories = [f"tale {n}" for n in range(10)]
    corpus = Corpus("tales", "\n--\n".join(["", *stories, " "]), None, "a text of the tests")
    prepare(corpus, ByteTokenizer(), tmp_path / "tokens", separator="--")
    train, val, _ = open_dataset(open_corpus(tmp_path / "tokens"))
    assert isinstance(train, Documents) and train.starts.tolist() == [*range(0, 72, 8)] and val.starts.tolist() == [0]
    assert bytes(train[:].tolist()).decode() == "".join(f"{story}--" for story in stories[:9])
    assert bytes(val[:].tolist()) == b"tale 9--"
    both = concatenate_splits(train, val)
    assert both.starts.tolist() == list(range(0, 80, 8)) and both[72:].tolist() == val[:].tolist() and len(both) == 80
    assert concatenate_splits(train.tokens, val.tokens).tolist() == both[:].tolist()


def test_a_document_without_a_target_is_left_out():
    documents = tokenize_documents(ByteTokenizer(), [("", "a"), ("", "bc"), ("d", "e")], None)
    assert documents[:].tolist() == [*b"bcde"]
    assert documents.starts.tolist() == [0, 2] and documents.prompts.tolist() == [0, 1]
    with pytest.raises(UserError, match="no document of 2 tokens"):
        tokenize_documents(ByteTokenizer(), [("", "a")], None)


@pytest.mark.parametrize(("flags", "end", "pad"), [
    (["--end", "[CLS]", "--pad", "[MASK]"], 2, 4), (["--end", "2", "--pad", "4"], 2, 4), ([], 3, None)])
def test_documents_with_an_end_and_padding_of_their_own(npgpt, tmp_path, flags, end, pad):
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    word_pieces(tmp_path / "tokenizer.json")
    (tmp_path / "lines.txt").write_text("to be\nor not\n")
    command = ["data", "prepare", "lines.txt", "--tokenizer", "hf:tokenizer.json", "--out", "tokens"]
    assert npgpt(*command, "--documents", r"\n", "--val-fraction", 0.5, *flags)[0] == 0
    train, val, tokenizer = open_dataset(open_corpus(tmp_path / "tokens"))
    assert [each[:].tolist() for each in (train, val)] == [[*tokenizer.encode(t), end] for t in ("to be", "or not")]
    assert train.pad_token_id == concatenate_splits(train, val).pad_token_id == pad
    for wrong in ("[NONE]", "70", "", "9" * 5000):
        refused(npgpt(*command, "--documents", "--pad", wrong), "the hf tokenizer has no token")
    assert "add --documents" in npgpt(*command, "--end", 2)[2]


@pytest.mark.parametrize("separator", ["", "||", "tale"])
def test_a_text_without_documents(tmp_path, separator):
    corpus = Corpus("one", "tale one tale ", None, "a text of the tests")
    with pytest.raises(UserError, match="one does not contain two documents separated by '.*': give another separator"):
        prepare(corpus, ByteTokenizer(), tmp_path / "tokens", separator=separator)

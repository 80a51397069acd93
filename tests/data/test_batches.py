import numpy as np
import pytest

from npgpt.data.batches import (
    TokenFile,
    even_crops,
    load_token_files,
    open_dataset,
    prepare,
    random_crops,
    split_text,
    tokenize_corpus,
    windows,
)
from npgpt.data.corpora import Corpus, open_corpus
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, CharTokenizer, GPT2Tokenizer, make_tokenizer
from npgpt.errors import UserError

FIRST_GPT2_IDS = "5962 22307 25 198 8421 356 5120 597 2252 11 3285 502 2740 13 198 198 3237 25 198 5248 461 11 2740 13"


@pytest.fixture
def token_folder(tmp_path):
    """A folder as nanoGPT leaves it: token files and nothing about the tokenizer."""
    (tmp_path / "train.bin").write_bytes(bytes([1, 0, 2, 0, 0x50, 0xC4]))
    (tmp_path / "val.bin").write_bytes(bytes([3, 0]))
    return tmp_path


def test_split_text():
    assert split_text("0123456789") == ("012345678", "9")
    assert split_text("x" * 19 + "y") == ("x" * 18, "xy")
    assert split_text("0123456", fraction=0.5) == ("012", "3456")
    assert split_text("") == ("", "")


def test_shakespeare(shakespeare, gpt2):
    train, val = tokenize_corpus(shakespeare, make_tokenizer("char", shakespeare.text))
    assert (train.size, val.size) == (1_003_854, 111_540) and train.dtype == val.dtype == np.uint16
    assert train[:5].tolist() == [18, 47, 56, 57, 58]       # as in nanoGPT
    train, val = tokenize_corpus(shakespeare, gpt2)
    assert (train.size, val.size) == (301_966, 36_059)
    assert train[:24].tolist() == [int(i) for i in FIRST_GPT2_IDS.split()]
    assert gpt2.count_bytes(val) == 111_540 and gpt2.decode(val) == split_text(shakespeare.text)[1]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("progress", [True, False])
def test_prepare_and_open_again(poem, tmp_path, capsys, progress):
    folder = tmp_path / "new" / "folder"
    tokenizer = make_tokenizer("char", poem.text)
    prepare(poem, tokenizer, folder, progress)
    assert ("prepare" in capsys.readouterr().err) == progress
    assert sorted(path.name for path in folder.iterdir()) == [TOKENIZER_FILE, "train.bin", "val.bin"]
    assert (folder / "val.bin").read_bytes() == bytes([1, 0, 2, 0, 3, 0, 4, 0, 0, 0]) * 2
    train, val, again = open_dataset(open_corpus(folder))
    assert isinstance(train, TokenFile) and train.dtype == np.uint16 and len(train) == 90
    assert again.to_dict() == tokenizer.to_dict()
    assert again.decode(train[:]) + again.decode(val[:]) == poem.text


def test_prepare_overwrites_nothing(poem, tmp_path):
    prepare(poem, make_tokenizer("char", poem.text), tmp_path, progress=False)      # an empty folder will do
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match="is there already"):
        prepare(poem, ByteTokenizer(), tmp_path, progress=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(UserError, match="token files already"):
        prepare(open_corpus(tmp_path), ByteTokenizer(), tmp_path / "new")


def test_token_files_are_little_endian_uint16(token_folder):
    train, val = load_token_files(token_folder)
    assert train[:].tolist() == [1, 2, 50256] and val[:].tolist() == [3]
    assert train.dtype == train[:].dtype == np.uint16 and len(train) == 3
    assert train[1:2].tolist() == [2] and train[-1:].tolist() == [50256] and train[2:9].tolist() == [50256]
    assert train[5:].size == 0


@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
@pytest.mark.parametrize(("content", "said"), [(b"\0" * 3, "has 3 bytes"), (b"", "has 0 bytes"), (None, "does not")])
def test_token_files_that_are_wrong_are_named(token_folder, name, content, said):
    (token_folder / name).unlink()
    if content is not None:
        (token_folder / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} {said}"):
        load_token_files(token_folder)


def test_a_text_is_opened_in_characters_unless_told_otherwise(poem):
    train, val, tokenizer = open_dataset(poem)
    assert isinstance(tokenizer, CharTokenizer) and tokenizer.chars == " abcd"
    assert (train.size, val.size) == (90, 10) and val[:5].tolist() == [1, 2, 3, 4, 0]
    train, val, tokenizer = open_dataset(poem, "byte")
    assert isinstance(tokenizer, ByteTokenizer) and val[:5].tolist() == list(b"abcd ")
    train, val, tokenizer = open_dataset(Corpus("late", "a" * 9 + "b", None, "a text of the tests"))
    assert tokenizer.decode(val) == "b"         # a character of the validation split only


def test_a_folder_without_a_tokenizer_is_gpt2s(token_folder, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(token_folder))  # where no vocabulary is
    for kind in (None, "gpt2", "bpe"):
        train, val, tokenizer = open_dataset(open_corpus(token_folder), kind)
        assert isinstance(tokenizer, GPT2Tokenizer) and train[:].tolist() == [1, 2, 50256] and val[:].tolist() == [3]
    assert isinstance(open_dataset(open_corpus(token_folder), "byte")[2], ByteTokenizer)


def test_a_folder_with_another_tokenizer_than_asked_for(poem, tmp_path):
    prepare(poem, ByteTokenizer(), tmp_path, progress=False)
    corpus = open_corpus(tmp_path)
    assert isinstance(open_dataset(corpus, "byte")[2], ByteTokenizer)
    for kind in ("char", "gpt2", "bpe"):
        with pytest.raises(UserError, match=f"byte tokenizer, not {kind}"):
            open_dataset(corpus, kind)
    with pytest.raises(UserError, match="'word' is unknown"):
        open_dataset(corpus, "word")


def test_a_pickle_is_refused_and_not_opened(token_folder):
    (token_folder / "meta.pkl").write_bytes(b"cpytest\nfail\n(Vthe pickle was opened\ntR.")      # fails when loaded
    for kind in (None, "gpt2"):
        with pytest.raises(UserError, match="meta.pkl.*npgpt data prepare"):
            open_dataset(open_corpus(token_folder), kind)


def test_random_crops():
    tokens = np.arange(1000, 1100, dtype=np.uint16)
    x, y = random_crops(tokens, 6, 8, np.random.default_rng(0))
    assert x.shape == y.shape == (6, 8) and x.dtype == y.dtype == np.int64
    assert np.array_equal(y, x + 1)
    assert np.array_equal(x, x[:, :1] + np.arange(8))
    x[:] = 0
    assert y.min() > 1000  # not two views of one array


def test_random_crops_reach_every_start_equally():
    tokens = np.arange(7, dtype=np.uint16)
    x, y = random_crops(tokens, 40_000, 3, np.random.default_rng(0))
    counts = np.bincount(x[:, 0])
    assert counts.size == 4  # 0 to 3, of which the last has its target in the last token
    assert abs(counts - 10_000).max() < 450  # five standard deviations
    assert y.max() == 6


def test_random_crops_depend_on_the_generator_alone(token_folder):
    tokens = np.arange(5000, dtype=np.uint16)
    tokens.astype("<u2").tofile(token_folder / "train.bin")
    here, file, other = (random_crops(source, 4, 16, np.random.default_rng(seed))
                         for source, seed in [(tokens, 1), (load_token_files(token_folder)[0], 1), (tokens, 2)])
    assert np.array_equal(here, file) and not np.array_equal(here, other)


def test_too_few_tokens():
    tokens = np.zeros(8, dtype=np.uint16)
    assert random_crops(tokens, 2, 7, np.random.default_rng(0))[0].shape == (2, 7)
    for crops in (lambda: random_crops(tokens, 2, 8, None), lambda: next(even_crops(tokens, 1, 1, 8))):
        with pytest.raises(UserError, match="8 tokens and a crop needs 9 .*lower the block size"):
            crops()
    for count in (0, 1):
        with pytest.raises(UserError, match=f"{count} tokens and evaluation needs 2"):
            next(windows(tokens[:count], 4))


@pytest.mark.parametrize(
    ("count", "lengths"), [(2, [1]), (4, [3]), (5, [4]), (6, [4, 1]), (9, [4, 4]), (12, [4, 4, 3])]
)
def test_windows_hold_every_target_once(count, lengths):
    tokens = np.arange(count, dtype=np.uint16)
    pairs = list(windows(tokens, 4))
    assert [len(x) for x, _ in pairs] == lengths
    assert all(x.dtype == y.dtype == np.int64 and np.array_equal(y, x + 1) for x, y in pairs)
    assert np.array_equal(np.concatenate([y for _, y in pairs]), tokens[1:])


def test_even_crops_reach_from_the_first_to_the_last_target_in_equal_strides():
    tokens = np.arange(101, dtype=np.uint16)
    batches = list(even_crops(tokens, n_batches=5, batch_size=2, block_size=10))
    starts = np.concatenate([x[:, 0] for x, _ in batches])
    assert starts.tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    for x, y in batches:
        assert x.shape == y.shape == (2, 10) and (np.diff(x, axis=1) == 1).all() and (y == x + 1).all()
    assert y[-1, -1] == 100

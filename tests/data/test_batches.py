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


def test_shakespeare_in_characters(shakespeare):
    train, val = tokenize_corpus(shakespeare, make_tokenizer("char", shakespeare.text))
    assert (train.size, val.size) == (1_003_854, 111_540)
    assert train.dtype == val.dtype == np.uint16


def test_shakespeare_in_byte_pairs(shakespeare, gpt2):
    train, val = tokenize_corpus(shakespeare, gpt2)
    assert (train.size, val.size) == (301_966, 36_059)
    assert train[:24].tolist() == [int(i) for i in FIRST_GPT2_IDS.split()]
    assert gpt2.bytes_per_token()[val].sum() == 111_540
    assert gpt2.decode(val) == split_text(shakespeare.text)[1]


def test_prepare_and_open_again(poem, tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    tokenizer = make_tokenizer("char", poem.text)
    prepare(poem, tokenizer, folder, progress=False)
    assert capsys.readouterr() == ("", "")
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


@pytest.mark.usefixtures("terminal")
def test_prepare_shows_its_progress(poem, tmp_path, capsys):
    prepare(poem, ByteTokenizer(), tmp_path)
    assert "prepare" in capsys.readouterr().err


def test_prepare_wants_a_text(token_folder, tmp_path):
    with pytest.raises(UserError, match="token files already"):
        prepare(open_corpus(token_folder), ByteTokenizer(), tmp_path / "new")


def test_token_files_are_little_endian_uint16(token_folder):
    train, val = load_token_files(token_folder)
    assert train[:].tolist() == [1, 2, 50256] and val[:].tolist() == [3]
    assert train.dtype == train[:].dtype == np.uint16 and len(train) == 3
    assert train[1:2].tolist() == [2] and train[-1:].tolist() == [50256] and train[2:9].tolist() == [50256]
    assert train[5:].size == 0


@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
def test_token_files_that_are_wrong_are_named(token_folder, name):
    (token_folder / name).write_bytes(b"\0\0\0")
    with pytest.raises(UserError, match=f"{name} has 3 bytes"):
        load_token_files(token_folder)
    (token_folder / name).write_bytes(b"")
    with pytest.raises(UserError, match=f"{name} has 0 bytes"):
        load_token_files(token_folder)
    (token_folder / name).unlink()
    with pytest.raises(UserError, match=f"{name} does not exist"):
        load_token_files(token_folder)


def test_a_text_is_opened_in_characters_unless_told_otherwise(poem):
    train, val, tokenizer = open_dataset(poem)
    assert isinstance(tokenizer, CharTokenizer) and tokenizer.chars == " abcd"
    assert (train.size, val.size) == (90, 10) and val[:5].tolist() == [1, 2, 3, 4, 0]
    train, val, tokenizer = open_dataset(poem, "byte")
    assert isinstance(tokenizer, ByteTokenizer) and val[:5].tolist() == list(b"abcd ")


def test_the_characters_of_the_validation_split_are_known_too():
    train, val, tokenizer = open_dataset(Corpus("late", "a" * 9 + "b", None, "a text of the tests"))
    assert tokenizer.decode(val) == "b"


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
    mapped, _ = load_token_files(token_folder)
    crops = [
        random_crops(source, 4, 16, np.random.default_rng(seed))
        for source, seed in [(tokens, 1), (mapped, 1), (tokens, 2)]
    ]
    assert np.array_equal(crops[0], crops[1]) and not np.array_equal(crops[0], crops[2])
    assert type(crops[1][0]) is np.ndarray  # in memory, not a view of the file


def test_random_crops_of_too_few_tokens():
    tokens = np.zeros(8, dtype=np.uint16)
    x, _ = random_crops(tokens, 2, 7, np.random.default_rng(0))
    assert x.shape == (2, 7)
    with pytest.raises(UserError, match="8 tokens and a crop needs 9 .*lower the block size"):
        random_crops(tokens, 2, 8, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("count", "lengths"), [(2, [1]), (4, [3]), (5, [4]), (6, [4, 1]), (9, [4, 4]), (12, [4, 4, 3])]
)
def test_windows_hold_every_target_once(count, lengths):
    tokens = np.arange(count, dtype=np.uint16)
    pairs = list(windows(tokens, 4))
    assert [len(x) for x, _ in pairs] == lengths
    assert all(x.dtype == y.dtype == np.int64 and np.array_equal(y, x + 1) for x, y in pairs)
    assert np.array_equal(np.concatenate([y for _, y in pairs]), tokens[1:])


def test_windows_of_too_few_tokens():
    for count in (0, 1):
        with pytest.raises(UserError, match=f"{count} tokens and evaluation needs 2"):
            next(windows(np.zeros(count, dtype=np.uint16), 4))


def test_even_crops_reach_from_the_first_to_the_last_target_in_equal_strides():
    tokens = np.arange(101, dtype=np.uint16)
    batches = list(even_crops(tokens, n_batches=5, batch_size=2, block_size=10))
    starts = np.concatenate([x[:, 0] for x, _ in batches])
    assert starts.tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    for x, y in batches:
        assert x.shape == y.shape == (2, 10) and (np.diff(x, axis=1) == 1).all() and (y == x + 1).all()
    assert y[-1, -1] == 100
    with pytest.raises(UserError, match="block size"):
        next(even_crops(tokens[:10], 1, 1, 10))

import os

import numpy as np
import pytest

from npgpt.data.token_files import SETTINGS_FILE, TokenFile, index_file, load_token_files, write_documents
from npgpt.data.tokenizers import ByteTokenizer
from npgpt.errors import UserError


def test_token_files_are_little_endian_uint16(token_folder):
    train, val = load_token_files(token_folder)
    assert train[:].tolist() == [1, 2, 50256] and val[:].tolist() == [3]
    assert train.dtype == train[:].dtype == np.uint16 and len(train) == 3
    assert train[1:2].tolist() == [2] and train[-1:].tolist() == [50256] and train[2:9].tolist() == [50256]
    assert train[5:].size == 0


def test_token_files_that_are_wrong_are_named(token_folder):
    for content, said in ((b"\0" * 3, "has 3 bytes"), (b"", "has 0 bytes")):
        (token_folder / "val.bin").write_bytes(content)
        with pytest.raises(UserError, match=f"val.bin {said}"):
            load_token_files(token_folder)
    (token_folder / "val.bin").unlink()
    with pytest.raises(UserError, match="val.bin does not exist"):
        load_token_files(token_folder)
    with pytest.raises(UserError, match="is not a regular file"):
        TokenFile(os.devnull)


@pytest.fixture
def indexed(token_folder):
    """Token files of 2 and 3 documents, with indexes."""
    for split, starts in (("train", [0, 4]), ("val", [0, 2, 5])):
        np.arange(9, dtype="<u2").tofile(token_folder / f"{split}.bin")
        np.array(starts, "<u8").tofile(index_file(token_folder, split))
    return token_folder


def test_documents_are_also_a_stream(indexed):
    train, val = load_token_files(indexed)
    assert isinstance(train.tokens, TokenFile) and train.dtype == np.uint16 and len(train) == 9
    assert train[:].tolist() == list(range(9)) and train[-2:].tolist() == [7, 8]
    assert (train.starts.tolist(), train.lengths.tolist()) == ([0, 4], [4, 5])
    assert (val.starts.tolist(), val.lengths.tolist()) == ([0, 2, 5], [2, 3, 4])


def test_the_padding_is_optional_in_the_settings_and_an_id(indexed):
    (indexed / SETTINGS_FILE).write_text(old := '{"all_windows": true, "count_padding": false, "validation": true}')
    assert load_token_files(indexed)[0].pad_token_id is None
    for odd in ("null", "true", "-1", "65536", '"7"'):
        (indexed / SETTINGS_FILE).write_text(old.replace("}", f', "pad_token_id": {odd}}}'))
        with pytest.raises(UserError, match="pad_token_id in .*npgpt_data.json must be a whole number"):
            load_token_files(indexed)


def test_an_index_that_does_not_divide_the_tokens(indexed):
    """The last one wraps around in int64."""
    for starts in ([], [1, 4], [0, 4, 3], [0, 4, 5], [0, 8], [0, 2**63], [0, 2**62, 2**63, 2**64 - 1]):
        np.array(starts, "<u8").tofile(index_file(indexed, "val"))
        with pytest.raises(UserError, match="val.documents.bin is not an index of the documents in .*val.bin"):
            load_token_files(indexed)


def test_an_index_that_is_missing_cut_off_endless_or_no_file(indexed):
    index = index_file(indexed, "train")
    for size in (15, 1 << 40):          # the large one is sparse, and must not be read into memory
        os.truncate(index, size)
        with pytest.raises(UserError, match="train.documents.bin is not an index"):
            load_token_files(indexed)
    index.unlink()
    with pytest.raises(UserError, match="train.documents.bin cannot be read .*prepare the folder again"):
        load_token_files(indexed)
    index.mkdir()
    with pytest.raises(UserError, match="train.documents.bin is not an index .* is not a regular file"):
        load_token_files(indexed)


@pytest.mark.parametrize(("eos", "ending"), [(256, [256]), (None, list(b"--"))])
def test_write_documents(tmp_path, eos, ending):
    tokenizer, paths = ByteTokenizer(), (tmp_path / "train.bin", tmp_path / "train.documents.bin")
    tokenizer.eos_token_id = eos
    write_documents(iter(["abc", "", "d"]), tokenizer, "--", *paths)
    tokens, starts = np.fromfile(paths[0], "<u2").tolist(), np.fromfile(paths[1], "<u8").tolist()
    if eos:                                 # the empty text is one token
        assert tokens == [*b"abc", *ending, *b"d", *ending] and starts == [0, 4]
    else:
        assert tokens == [*b"abc", *ending, *ending, *b"d", *ending] and starts == [0, 5, 7]
    with pytest.raises(UserError, match="no document for other.bin has 2 tokens"):
        write_documents([""] * 3, tokenizer, "", tmp_path / "other.bin", tmp_path / "other.documents.bin")
    assert sorted(tmp_path.iterdir()) == sorted(paths)

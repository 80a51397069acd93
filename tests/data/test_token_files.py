import os

import numpy as np
import pytest

from npgpt.data.token_files import SETTINGS_FILE, TokenFile, index_file, load_token_files
from npgpt.errors import UserError


def test_token_files_are_little_endian_uint16(token_folder):
    train, val = load_token_files(token_folder)
    assert train[:].tolist() == [1, 2, 50256] and val[:].tolist() == [3]
    assert train.dtype == train[:].dtype == np.uint16 and len(train) == 3
    assert train[1:2].tolist() == [2] and train[-1:].tolist() == [50256] and train[2:9].tolist() == [50256]
    assert train[5:].size == 0


def test_token_files_that_are_wrong_are_named(token_folder):
    for name, size in (("val", 3), ("train", 0)):
        (token_folder / f"{name}.bin").write_bytes(bytes(size))
        with pytest.raises(UserError, match=f"{name}.bin has {size} bytes"):
            load_token_files(token_folder)
    np.zeros(2, "<u2").tofile(token_folder / "train.bin")
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


def test_settings_that_are_wrong(indexed):
    for content in ('{"pad_token_id": -1}', '{"pad_token_id": "7"}', '{"all_windows": true}', "[]"):
        (indexed / SETTINGS_FILE).write_text(content)
        with pytest.raises(UserError, match="npgpt_data.json .*prepare the folder again"):
            load_token_files(indexed)


def test_an_index_that_does_not_divide_the_tokens(indexed):
    """The last one wraps around in int64."""
    for starts in ([], [1, 4], [0, 4, 3], [0, 4, 5], [0, 8], [0, 2**63], [0, 2**62, 2**63, 2**64 - 1]):
        np.array(starts, "<u8").tofile(index_file(indexed, "val"))
        with pytest.raises(UserError, match="val.documents.bin and npgpt_data.json do not fit .*val.bin"):
            load_token_files(indexed)


def test_an_index_that_is_missing_cut_off_endless_or_no_file(indexed):
    index = index_file(indexed, "train")
    for size in (15, 1 << 40):          # the large one is sparse, and must not be read into memory
        os.truncate(index, size)
        with pytest.raises(UserError, match="train.documents.bin and npgpt_data.json do not fit"):
            load_token_files(indexed)
    index.unlink()
    with pytest.raises(UserError, match="train.documents.bin cannot be read .*prepare the folder again"):
        load_token_files(indexed)
    index.mkdir()
    with pytest.raises(UserError, match="train.documents.bin .* is not a regular file"):
        load_token_files(indexed)

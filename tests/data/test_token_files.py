import os

import numpy as np

from npgpt.data.corpora import read_text
from npgpt.data.token_files import TokenFile, load_token_files
from tests.helpers.runs import refusing


def test_token_files_are_little_endian_uint16(token_folder):
    train, val = load_token_files(token_folder)
    assert train[:].tolist() == [1, 2, 50256] and val[:].tolist() == [3]
    assert train.dtype == train[:].dtype == np.uint16 and len(train) == 3
    assert train[-1:].tolist() == train[2:9].tolist() == [50256] and train[5:].size == 0


def test_token_files_that_are_wrong_are_named(token_folder):
    for name, size in (("val", 3), ("train", 0)):
        (token_folder / f"{name}.bin").write_bytes(bytes(size))
        with refusing(f"{name}.bin has {size} bytes"):
            load_token_files(token_folder)
    np.zeros(2, "<u2").tofile(token_folder / "train.bin")
    (token_folder / "val.bin").unlink()
    with refusing("val.bin does not exist"):
        load_token_files(token_folder)
    with refusing("is not a regular file"):
        TokenFile(os.devnull)


def test_files_of_llm_c_and_of_earlier_versions(token_folder):
    """The header of llm.c's would be read as tokens. An index of documents is no longer needed."""
    (token_folder / "train.documents.bin").write_bytes(bytes(8))
    (token_folder / "npgpt_data.json").write_text('{"pad_token_id": 7}')
    assert load_token_files(token_folder)[0][:].tolist() == [1, 2, 50256]
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 2
    (token_folder / "train.bin").write_bytes(header.tobytes() + bytes([1, 0, 2, 0]))
    with refusing("train.bin cannot be read: it is a token file of llm.c: without its header"):
        load_token_files(token_folder)
    with refusing("it is a token file of llm.c"):
        read_text(token_folder / "train.bin")

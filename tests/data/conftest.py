"""What the tests of npgpt/data share: a machine without a network, and data that may be missing."""

import hashlib
import os
import socket
from pathlib import Path

import pytest

from npgpt.data.corpora import Corpus, data_dir, open_corpus, tinyshakespeare_path
from npgpt.data.tokenizers import GPT2Tokenizer


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Only 127.0.0.1 can be reached, by urllib and by the requests library behind tiktoken."""
    look_up = socket.getaddrinfo

    def guarded_look_up(host, *args, **kwargs):
        if host != "127.0.0.1":
            raise socket.gaierror(f"the tests have no network for {host}")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def shakespeare():
    if not tinyshakespeare_path(data_dir()).exists():
        pytest.skip("TinyShakespeare is missing: set NPGPT_DATA_DIR to the folder that has it")
    return open_corpus("tinyshakespeare")


@pytest.fixture
def gpt2():
    cached = hashlib.sha1(b"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe").hexdigest()
    if not Path(os.environ.get("TIKTOKEN_CACHE_DIR", ""), cached).exists():
        pytest.skip("GPT-2's vocabulary is missing: set TIKTOKEN_CACHE_DIR to the folder that has it")
    return GPT2Tokenizer()


@pytest.fixture
def poem():
    """A corpus of 100 characters, 5 of them different."""
    return Corpus("poem", "abcd " * 20, None, "a text of the tests")


@pytest.fixture
def token_folder(tmp_path):
    """A folder of nanoGPT: token files without a tokenizer."""
    (tmp_path / "train.bin").write_bytes(bytes([1, 0, 2, 0, 0x50, 0xC4]))
    (tmp_path / "val.bin").write_bytes(bytes([3, 0]))
    return tmp_path

"""What the tests of npgpt/data share: a machine without a network, and small data."""

import os
import socket

import pytest

from npgpt.data.corpora import Corpus


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
def poem():
    """A corpus of 100 characters, 5 of them different."""
    return Corpus("poem", "abcd " * 20, None, "a text of the tests")


@pytest.fixture
def token_folder(tmp_path):
    """A folder of nanoGPT: token files without a tokenizer."""
    (tmp_path / "train.bin").write_bytes(bytes([1, 0, 2, 0, 0x50, 0xC4]))
    (tmp_path / "val.bin").write_bytes(bytes([3, 0]))
    return tmp_path

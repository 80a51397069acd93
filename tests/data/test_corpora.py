import hashlib
import os
import shutil
from pathlib import Path

import pytest

from npgpt import UserError
from npgpt.data import corpora
from npgpt.data.corpora import Corpus, in_documents, open_corpus
from npgpt.files import cache_folder
from tests.helpers.hub_server import HubServer
from tests.helpers.runs import refusing

GOOD = b"First Citizen:\n" * 20_000


@pytest.fixture
def server(monkeypatch):
    """A server on this machine, with GOOD as TinyShakespeare."""
    with HubServer() as server:
        server.add("texts/tiny", {"input.txt": GOOD})
        url = f"{server.endpoint}/texts/tiny/resolve/main/input.txt"
        monkeypatch.setattr(
            corpora, "TINYSHAKESPEARE", (url, hashlib.sha256(GOOD).hexdigest(), len(GOOD))
        )
        yield server


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("fault", "limit", "seconds", "says"),
    [
        ("404", "STALL_SECONDS", 20, "404"),
        ("wrong bytes", "STALL_SECONDS", 20, "is not TinyShakespeare .300,000 bytes"),
        ("silent", "CONNECT_SECONDS", 0.3, "no answer within"),
        ("stalled", "STALL_SECONDS", 0.3, "timed out"),
    ],
)
def test_a_failed_download_says_so_and_changes_nothing(
    server, tmp_path, monkeypatch, fault, limit, seconds, says
):
    server.faults["input.txt"] = fault
    monkeypatch.setattr(f"npgpt.download.file.{limit}", seconds)
    with refusing(f"/texts/tiny/.*{says}"):
        open_corpus("tinyshakespeare", tmp_path)
    assert files_below(tmp_path) == []


def test_without_a_folder_it_is_downloaded_to_the_users_cache(server, tmp_path, monkeypatch):
    """A folder data that has it comes first, and NPGPT_DATA_DIR before both."""
    for name in ("NPGPT_DATA_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    cached = tmp_path / "home/.cache/npgpt/tinyshakespeare/input.txt"
    old = os.umask(0o002)
    try:
        assert f"downloaded to {cached}" in open_corpus("tinyshakespeare").reason
    finally:
        os.umask(old)
    server.stop()
    assert f"found at {cached}" in open_corpus().reason
    assert files_below(tmp_path) == [cached] and cached.parents[1].stat().st_mode & 0o77 == 0
    shutil.copytree(cached.parent, tmp_path / "data/tinyshakespeare")
    assert open_corpus().reason.endswith("found at data/tinyshakespeare/input.txt")
    shutil.copytree(cached.parent, tmp_path / "other/tinyshakespeare")
    monkeypatch.setenv("NPGPT_DATA_DIR", "other")
    assert open_corpus().reason.endswith("found at other/tinyshakespeare/input.txt")


@pytest.mark.parametrize(
    ("system", "variables", "says"),
    [
        ("linux", {"HOME": "/home/me"}, "/home/me/.cache/npgpt"),
        ("linux", {"HOME": "/home/me", "XDG_CACHE_HOME": "/big"}, "/big/npgpt"),
        ("linux", {"HOME": "/home/me", "XDG_CACHE_HOME": "relative"}, "/home/me/.cache/npgpt"),
        ("linux", {"HOME": "~"}, "None"),
        ("darwin", {"HOME": "/Users/me"}, "/Users/me/Library/Caches/npgpt"),
        ("win32", {"LOCALAPPDATA": "/C:/me/AppData/Local"}, "/C:/me/AppData/Local/npgpt"),
        ("win32", {}, "None"),
    ],
)
def test_where_each_system_has_its_cache(monkeypatch, system, variables, says):
    monkeypatch.setattr("npgpt.files.sys.platform", system)
    monkeypatch.setattr(Path, "mkdir", lambda *args, **options: None)
    for each in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(each, raising=False)
    for each, value in variables.items():
        monkeypatch.setenv(each, value)
    assert str(cache_folder()) == says


def test_a_file_that_is_not_tinyshakespeare_is_not_trained_on(tmp_path):
    path = tmp_path / "tinyshakespeare" / "input.txt"
    path.parent.mkdir()
    path.write_bytes(b"something else")
    for name in ("tinyshakespeare", None):
        digest = hashlib.sha256(b"something else").hexdigest()[:12]
        with refusing(f"input.txt .*{digest}.*delete"):
            open_corpus(name, tmp_path)


def test_without_a_network_only_the_default_is_replaced_by_pydocs(tmp_path):
    with refusing("no network.*put the file at"):
        open_corpus("tinyshakespeare", tmp_path)
    corpus, pydocs = open_corpus(None, tmp_path), open_corpus("pydocs")
    assert (corpus.name, corpus.text, corpus.folder) == ("pydocs", pydocs.text, None)
    assert "because" in corpus.reason and "no network" in corpus.reason
    assert files_below(tmp_path) == []
    assert 150_000 < len(pydocs.text) < 400_000  # enough to train on, in every version of Python
    assert pydocs.text.startswith("Assert statements are a convenient way to insert")


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_text_file(tmp_path, capsys, start, end):
    path = tmp_path / "poem.txt"
    path.write_bytes(start + f"naïve{end}lines\rof{end}".encode())
    for name in (path, str(path)):
        corpus = open_corpus(name)
        found = corpus.name, corpus.text, corpus.folder
        assert found == (str(path), "naïve\nlines\rof\n", None) and str(path) in corpus.reason
    err = capsys.readouterr().err
    assert err.count("Windows") == err.count("\n") == (end == "\r\n")  # it is said once
    assert open_corpus(path, raw=True).text == path.read_bytes().decode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xef\xbb\xbf", "is empty"),
        (b"\xff\xfeh\0i\0", "is not UTF-8 text .*convert it to UTF-8 .PowerShell writes UTF-16"),
        (b"caf\xe9", "is not UTF-8 text .byte 0xe9 at position 3.: convert"),
    ],
)
def test_a_file_that_is_no_text(tmp_path, content, said):
    (tmp_path / "poem.txt").write_bytes(content)
    with refusing(f"poem.txt {said}"):
        open_corpus(tmp_path / "poem.txt")


@pytest.mark.parametrize("separator", ["", "||", "tale"])
def test_a_text_without_documents(separator):
    corpus = Corpus("one", "tale one tale ", None, "a text of the tests")
    with pytest.raises(
        UserError,
        match="one does not contain two documents separated by '.*': give another separator",
    ):
        in_documents(corpus, separator)


@pytest.mark.parametrize("name", ["shakespeer", ".", "a text, not its name. " * 1000, "nul\0byte"])
def test_the_error_of_an_unknown_corpus_lists_the_known_ones(name):
    with refusing("tinyshakespeare, pydocs, a UTF-8 text file.*train.bin"):
        open_corpus(name)

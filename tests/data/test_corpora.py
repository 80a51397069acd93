import hashlib
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from npgpt.data import corpora
from npgpt.data.corpora import data_dir, download, open_corpus
from npgpt.errors import UserError

GOOD = b"First Citizen:\n" * 20_000
GOOD_SHA256 = hashlib.sha256(GOOD).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers /good, /cut-off and /stalled; anything else is a 404."""

    def do_GET(self):
        if self.path not in ("/good", "/cut-off", "/stalled"):
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(GOOD)))
        self.end_headers()
        self.wfile.write(GOOD if self.path == "/good" else GOOD[:100_000])
        if self.path == "/stalled":
            self.server.released.wait(20)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    """The address of a server on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.released = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hasty(monkeypatch):
    """Short time limits."""
    monkeypatch.setattr("npgpt.download.file.CONNECT_SECONDS", 1)
    monkeypatch.setattr("npgpt.download.file.STALL_SECONDS", 0.3)


@pytest.fixture
def served_shakespeare(monkeypatch, server):
    """As if the server had TinyShakespeare; the value is its text."""
    monkeypatch.setattr(corpora, "TINYSHAKESPEARE", {"url": f"{server}/good", "size": len(GOOD), "sha256": GOOD_SHA256})
    return GOOD.decode()


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("page", "sha256", "said"), [
    ("missing", GOOD_SHA256, "404"), ("cut-off", GOOD_SHA256, "100000 of 300000 bytes"),
    ("good", "0" * 64, f"{GOOD_SHA256[:12]}… instead of 000000000000…"), ("stalled", GOOD_SHA256, "timed out")])
def test_a_failed_download_says_so_and_changes_nothing(server, tmp_path, hasty, page, sha256, said):
    with pytest.raises(UserError, match=f"{server}/{page} .*{said}"):
        download(f"{server}/{page}", len(GOOD), sha256, tmp_path / "input.txt")
    assert files_below(tmp_path) == []


def test_a_dns_look_up_that_hangs_is_given_up(tmp_path, hasty, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: released.wait(20))
    start = time.perf_counter()
    with pytest.raises(UserError, match="no answer within 1 seconds"):
        download("http://hangs.invalid/", len(GOOD), GOOD_SHA256, tmp_path / "input.txt")
    assert time.perf_counter() - start < 5
    released.set()


def test_data_dir(monkeypatch, tmp_path):
    for value, expected in (("", "data"), (str(tmp_path), str(tmp_path))):
        monkeypatch.setenv("NPGPT_DATA_DIR", value)
        assert str(data_dir()) == expected and str(data_dir("given")) == "given"


@pytest.mark.parametrize("name", ["tinyshakespeare", None])
def test_tinyshakespeare_is_downloaded_once(served_shakespeare, tmp_path, monkeypatch, name):
    path = tmp_path / "tinyshakespeare" / "input.txt"
    for origin in ("downloaded to", "found at"):
        corpus = open_corpus(name, tmp_path)
        assert (corpus.name, corpus.text, corpus.folder) == ("tinyshakespeare", served_shakespeare, None)
        assert f"{origin} {path}" in corpus.reason
        monkeypatch.setattr(corpora, "download", None)


def test_a_file_that_is_not_tinyshakespeare_is_not_trained_on(tmp_path):
    path = tmp_path / "tinyshakespeare" / "input.txt"
    path.parent.mkdir()
    path.write_bytes(b"something else")
    for name in ("tinyshakespeare", None):
        digest = hashlib.sha256(b"something else").hexdigest()[:12]
        with pytest.raises(UserError, match=f"input.txt .*{digest}.*delete"):
            open_corpus(name, tmp_path)


def test_without_a_network_only_the_default_is_replaced_by_pydocs(tmp_path):
    with pytest.raises(UserError, match="no network.*put the file at"):
        open_corpus("tinyshakespeare", tmp_path)
    corpus, pydocs = open_corpus(None, tmp_path), open_corpus("pydocs")
    assert (corpus.name, corpus.text, corpus.folder) == ("pydocs", pydocs.text, None)
    assert "because" in corpus.reason and "no network" in corpus.reason and files_below(tmp_path) == []
    assert 150_000 < len(pydocs.text) < 400_000     # enough to train on, in every version of Python
    assert pydocs.text.startswith("Assert statements are a convenient way to insert")


def test_pydocs_is_prose():
    """No tables, grammars, rulers, footnote marks or emphasis, and no paragraph twice."""
    paragraphs = open_corpus("pydocs").text.removesuffix("\n").split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs) > 500
    for paragraph in paragraphs:
        assert paragraph[-1] in ".:" and len(paragraph.split()) > 8 and "  " not in paragraph
        assert max(map(len, paragraph.split("\n"))) <= 70 and not re.search(r'[+|*"~]|---|===|::=| \[\d+\]', paragraph)
    assert len(set("".join(paragraphs))) < 85


def test_a_text_file(tmp_path):
    path = tmp_path / "poem.txt"
    path.write_bytes("naïve\r\nlines".encode())
    for name in (path, str(path)):
        corpus = open_corpus(name)
        assert (corpus.name, corpus.text, corpus.folder) == (str(path), "naïve\r\nlines", None)
        assert str(path) in corpus.reason
    for content, said in ((b"", "is empty"), (b"caf\xe9", "is not UTF-8 text .byte 0xe9 at position 3.: convert")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"poem.txt {said}"):
            open_corpus(path)


def test_a_folder_of_token_files(tmp_path):
    for name in ("train.bin", "val.bin"):
        with pytest.raises(UserError, match="train.bin and val.bin"):
            open_corpus(tmp_path)
        (tmp_path / name).write_bytes(b"\0\0")
    corpus = open_corpus(str(tmp_path))
    assert (corpus.name, corpus.text, corpus.folder) == (str(tmp_path), None, tmp_path)
    assert str(tmp_path) in corpus.reason


@pytest.mark.parametrize("name", ["shakespeer", "a text, not its name. " * 1000, "nul\0byte"])
def test_the_error_of_an_unknown_corpus_lists_the_known_ones(name):
    with pytest.raises(UserError, match="tinyshakespeare, tinystories, pydocs, a UTF-8 text file.*train.bin"):
        open_corpus(name)

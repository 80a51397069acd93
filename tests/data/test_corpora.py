import hashlib
import os
import socket
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import npgpt.data.download
from npgpt.data import corpora
from npgpt.data.corpora import CORPORA, data_dir, download, list_corpora, open_corpus
from npgpt.deadline import call_within
from npgpt.errors import UserError

GOOD = b"First Citizen:\n" * 20_000  # several pieces of a download
GOOD_SHA256 = hashlib.sha256(GOOD).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers /good, /cut-off, /unannounced, /stalled and /silent; anything else is a 404."""

    def do_GET(self):
        page = self.path.rsplit("/", 1)[-1]  # a proxy is asked for the whole URL
        if page == "silent":
            self.server.released.wait(20)
        if page not in ("good", "cut-off", "unannounced", "stalled"):
            return self.send_error(404)
        self.send_response(200)
        if page != "unannounced":
            self.send_header("Content-Length", str(len(GOOD)))
        self.end_headers()
        self.wfile.write(GOOD if page in ("good", "unannounced") else GOOD[:100_000])
        if page == "stalled":
            self.wfile.flush()
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
    """Downloads that lose their patience at once."""
    monkeypatch.setattr(npgpt.data.download, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(npgpt.data.download, "STALL_SECONDS", 0.3)


@pytest.fixture
def served_shakespeare(monkeypatch, server):
    """As if the server had TinyShakespeare; the value is its text."""
    source = CORPORA["tinyshakespeare"]._replace(url=f"{server}/good", sha256=GOOD_SHA256)
    monkeypatch.setitem(CORPORA, "tinyshakespeare", source)
    return GOOD.decode()


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("page", ["good", "unannounced"])
def test_download(server, tmp_path, page, capsys):
    path = tmp_path / "new" / "folder" / "input.txt"
    download(f"{server}/{page}", GOOD_SHA256, path, progress=False)
    assert path.read_bytes() == GOOD
    assert files_below(tmp_path) == [path]
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_download_shows_its_progress(server, tmp_path, capsys):
    download(f"{server}/good", GOOD_SHA256, tmp_path / "input.txt")
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("page", "sha256", "said"),
    [
        ("missing", GOOD_SHA256, "404"),
        ("cut-off", GOOD_SHA256, "cut off after 100000 of 300000 bytes"),
        ("good", "0" * 64, f"{GOOD_SHA256[:12]}… instead of 000000000000…"),
        ("stalled", GOOD_SHA256, "timed out"),
        ("silent", GOOD_SHA256, "could not be downloaded"),
    ],
)
def test_a_download_that_fails_says_so_and_leaves_nothing(server, tmp_path, hasty, page, sha256, said):
    start = time.perf_counter()
    with pytest.raises(UserError, match=said) as caught:
        download(f"{server}/{page}", sha256, tmp_path / "sub" / "input.txt", progress=False)
    assert f"{server}/{page}" in str(caught.value) and "\n" not in str(caught.value)
    assert time.perf_counter() - start < 5
    assert files_below(tmp_path) == []


def test_a_failed_download_keeps_the_file_that_was_there(server, tmp_path):
    path = tmp_path / "input.txt"
    path.write_bytes(b"before")
    with pytest.raises(UserError):
        download(f"{server}/good", "0" * 64, path, progress=False)
    assert path.read_bytes() == b"before" and files_below(tmp_path) == [path]


def test_a_download_nobody_serves(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UserError, match="refused.*put the file at"):
        download(f"http://127.0.0.1:{port}/", GOOD_SHA256, tmp_path / "input.txt", progress=False)
    assert files_below(tmp_path) == []


def test_a_name_look_up_that_hangs_is_given_up(tmp_path, hasty, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: released.wait(20))
    start = time.perf_counter()
    with pytest.raises(UserError, match="no answer within 1 seconds"):
        download("http://hangs.invalid/", GOOD_SHA256, tmp_path / "input.txt", progress=False)
    assert time.perf_counter() - start < 5
    released.set()


def test_no_network_is_noticed_within_ten_seconds():
    assert npgpt.data.download.CONNECT_SECONDS < 10


def test_a_download_that_cannot_be_stored(server, tmp_path):
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(UserError, match="folder"):
        download(f"{server}/good", GOOD_SHA256, tmp_path / "file" / "input.txt", progress=False)


def test_a_proxy_of_the_environment_is_used(server, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", server)
    monkeypatch.setattr(urllib.request, "_opener", None)  # urllib reads the environment at its first request only
    download("http://behind-the-proxy.invalid/good", GOOD_SHA256, tmp_path / "input.txt", progress=False)
    assert (tmp_path / "input.txt").read_bytes() == GOOD


def test_call_within():
    assert call_within(5, divmod, 7, 2) == (3, 1)
    assert call_within(5, int, "11", base=2) == 3
    with pytest.raises(ZeroDivisionError):
        call_within(5, divmod, 7, 0)
    assert call_within(5, threading.current_thread).daemon  # or a hanging call would keep the program from ending


def test_data_dir(monkeypatch, tmp_path):
    monkeypatch.delenv("NPGPT_DATA_DIR", raising=False)
    assert str(data_dir()) == "data"
    monkeypatch.setenv("NPGPT_DATA_DIR", "")
    assert str(data_dir()) == "data"
    monkeypatch.setenv("NPGPT_DATA_DIR", str(tmp_path))
    assert data_dir() == tmp_path
    assert data_dir("given") == data_dir(data_dir("given")) != tmp_path


def test_tinyshakespeare_is_downloaded_once(served_shakespeare, tmp_path, monkeypatch, capsys):
    corpus = open_corpus("tinyshakespeare", tmp_path, progress=False)
    assert capsys.readouterr() == ("", "")
    path = tmp_path / "tinyshakespeare" / "input.txt"
    assert (corpus.name, corpus.text, corpus.folder) == ("tinyshakespeare", served_shakespeare, None)
    assert "downloaded" in corpus.reason and str(path) in corpus.reason
    monkeypatch.setattr(corpora, "download", None)
    again = open_corpus("tinyshakespeare", tmp_path)
    assert again.text == corpus.text
    assert "found" in again.reason and str(path) in again.reason


def test_tinyshakespeare_is_what_everybody_uses(shakespeare):
    assert len(shakespeare.text) == CORPORA["tinyshakespeare"].size == 1_115_394
    assert shakespeare.text.startswith("First Citizen:\nBefore we proceed")


@pytest.mark.parametrize("name", ["tinyshakespeare", None])
@pytest.mark.parametrize("content", [b"something else", b"", b"\xff"])
def test_a_file_that_is_not_tinyshakespeare_is_not_trained_on(tmp_path, name, content):
    path = tmp_path / "tinyshakespeare" / "input.txt"
    path.parent.mkdir()
    path.write_bytes(content)
    found, expected = hashlib.sha256(content).hexdigest()[:12], CORPORA["tinyshakespeare"].sha256[:12]
    with pytest.raises(UserError, match=f"{found}.*{expected}.*delete") as caught:
        open_corpus(name, tmp_path)
    assert str(path) in str(caught.value)


def test_tinyshakespeare_asked_for_by_name_is_not_replaced(tmp_path):
    with pytest.raises(UserError, match="no network.*put the file at"):
        open_corpus("tinyshakespeare", tmp_path, progress=False)


def test_the_default_is_tinyshakespeare(served_shakespeare, tmp_path):
    assert "downloaded" in open_corpus(None, tmp_path, progress=False).reason
    corpus = open_corpus(None, tmp_path)
    assert (corpus.name, corpus.text) == ("tinyshakespeare", served_shakespeare)
    assert "found" in corpus.reason


def test_the_default_without_a_network_is_pydocs(tmp_path):
    corpus = open_corpus(None, tmp_path, progress=False)
    assert corpus == corpora.Corpus("pydocs", open_corpus("pydocs").text, None, corpus.reason)
    assert "pydocs" in corpus.reason and "because" in corpus.reason and "no network" in corpus.reason
    assert "\n" not in corpus.reason
    assert files_below(tmp_path) == []


def test_pydocs():
    corpus = open_corpus("pydocs")
    assert (corpus.name, corpus.folder) == ("pydocs", None) and "pydocs" in corpus.reason
    assert len(corpus.text) > 300_000  # enough to train on, in every version of Python
    assert corpus.text.startswith('The "assert" statement')
    assert corpus.text.index('The "assert" statement') < corpus.text.index('The "with" statement')


def test_a_text_file(tmp_path):
    path = tmp_path / "poem.txt"
    path.write_bytes("naïve\r\nlines".encode())
    for name in (path, str(path)):
        corpus = open_corpus(name)
        assert (corpus.name, corpus.text, corpus.folder) == (str(path), "naïve\r\nlines", None)
        assert str(path) in corpus.reason


def test_a_text_file_that_is_empty(tmp_path):
    (tmp_path / "void.txt").touch()
    with pytest.raises(UserError, match="void.txt is empty"):
        open_corpus(tmp_path / "void.txt")


def test_a_text_file_that_is_not_utf8(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 noir")
    with pytest.raises(UserError, match="latin.txt is not UTF-8 text .byte 0xe9 at position 3.: convert"):
        open_corpus(tmp_path / "latin.txt")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind root, nor Windows")
def test_a_text_file_that_may_not_be_read(tmp_path):
    (tmp_path / "secret.txt").write_text("a")
    (tmp_path / "secret.txt").chmod(0)
    with pytest.raises(UserError, match="secret.txt cannot be read .Permission denied"):
        open_corpus(tmp_path / "secret.txt")


def test_a_folder_of_token_files(tmp_path):
    train, val = tmp_path / "train.bin", tmp_path / "val.bin"
    for present, absent in ((train, val), (val, train)):
        present.write_bytes(b"\0\0")
        absent.unlink(missing_ok=True)
        with pytest.raises(UserError, match="train.bin and val.bin"):
            open_corpus(tmp_path)
    train.write_bytes(b"\0\0")
    corpus = open_corpus(str(tmp_path))
    assert (corpus.name, corpus.text, corpus.folder) == (str(tmp_path), None, tmp_path)
    assert str(tmp_path) in corpus.reason


@pytest.mark.parametrize("name", ["shakespeer", "a text, not its name. " * 1000, "nul\0byte"])
def test_what_is_unknown_is_answered_with_what_is_known(name):
    with pytest.raises(UserError, match="tinyshakespeare, tinystories, pydocs, a UTF-8 text file.*train.bin"):
        open_corpus(name)


def test_list_corpora(served_shakespeare, tmp_path):
    def states():
        return {name: (state, size) for name, state, size, _ in list_corpora(tmp_path)}

    assert states() == {
        "tinyshakespeare": ("not downloaded", 1_115_394),
        "tinystories": ("not downloaded", None),
        "pydocs": ("built in", None),
    }
    open_corpus("tinyshakespeare", tmp_path, progress=False)
    assert states()["tinyshakespeare"][0] == "at hand"
    assert all(description for *_, description in list_corpora(tmp_path))

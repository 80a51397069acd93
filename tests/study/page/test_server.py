"""The server of the page: whom it answers, what it refuses, and how it ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from npgpt.errors import UserError
from npgpt.study.page.server import MOST_BODY, MOST_CONNECTIONS, Server

PATIENCE = 60.0         # seconds, for a busy machine


class Actions:
    """What the server under test can do; `most`: how many requests it has worked on at once."""

    def __init__(self):
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def echo(self, content):
        return content

    def slow(self, content):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.05)
        with self.lock:
            self.now -= 1
        return {}

    def refuse(self, content):
        raise UserError("this is not valid")

    def fail(self, content):
        raise RuntimeError("secret")


@pytest.fixture
def start():
    """start(**options) -> a `Server` with a page, and `actions`, that runs in a thread."""
    servers = []

    def start_(**options):
        own = Actions()
        server = Server({"/echo": own.echo, "/slow": own.slow, "/refuse": own.refuse, "/fail": own.fail}, **options)
        server.page, server.own, server.timeout = b"<p>the page</p>", own, 0.05
        server.thread = threading.Thread(target=server.run, daemon=True)
        server.thread.start()
        servers.append(server)
        return server

    yield start_
    for server in servers:
        server.idle = 0.0
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()


def connected(server):
    return socket.create_connection(server.server_address, timeout=PATIENCE)


def ask(server, method="POST", path="/echo", body=b"{}", left_out=(), **more):
    """(status, headers, body) of a raw request; more: other headers, a list for several of the same name."""
    headers = {"Host": server.hosts[0], "X_Npgpt_Token": server.token, "Content_Type": "application/json",
               "Content_Length": len(body)} | more
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{name.replace('_', '-')}: {each}" for name, value in headers.items() if name not in left_out
              for each in (value if isinstance(value, list) else [value])]
    with connected(server) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        client.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(client, method=method)
        response.begin()
        return response.status, response.headers, response.read()


def test_the_page_and_an_answer(start):
    server = start()
    status, headers, body = ask(server, "GET", f"/?token={server.token}", b"", ["X_Npgpt_Token"])
    assert (status, body) == (200, b"<p>the page</p>") and server.address.endswith(f"/?token={server.token}")
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer" and "Python" not in headers["Server"]
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    for more in ({}, {"Origin": f"http://{server.hosts[0]}"}, {"Host": server.hosts[1]},
                 {"Content_Type": "application/json; charset=utf-8"}):
        assert ask(server, body=b'{"a": [1, "\xc3\xa9"]}', **more)[::2] == (200, b'{"a": [1, "\\u00e9"]}')
    assert len({start().token for _ in range(3)}) == 3 and len(server.token) > 40


@pytest.mark.parametrize("status, request_", [
    (403, {"left_out": ["X_Npgpt_Token"]}),
    (403, {"X_Npgpt_Token": "wrong"}),
    (403, {"X_Npgpt_Token": ""}),
    (403, {"X_Npgpt_Token": "\xff"}),
    (403, {"path": "/echo?token={token}", "left_out": ["X_Npgpt_Token"]}),          # the page only
    (403, {"method": "GET", "path": "/?token=wrong", "left_out": ["X_Npgpt_Token"]}),
    (403, {"method": "GET", "path": "/?", "left_out": ["X_Npgpt_Token"]}),
    (403, {"method": "GET", "path": "/etc/passwd", "left_out": ["X_Npgpt_Token"]}),
    (403, {"method": "GET", "path": "//[?token={token}", "left_out": ["X_Npgpt_Token"]}),
    (403, {"left_out": ["Host"]}),
    (403, {"Host": "evil.example:{port}"}),         # DNS rebinding
    (403, {"Host": "127.0.0.1"}),
    (403, {"Host": "127.0.0.1:1"}),
    (403, {"Host": ["127.0.0.1:{port}", "evil.example"]}),
    (403, {"Host": "127.0.0.1:{port}.evil.example"}),
    (403, {"Origin": "https://evil.example"}),
    (403, {"Origin": "null"}),
    (403, {"Origin": "http://127.0.0.1:1"}),
    (403, {"Origin": "https://127.0.0.1:{port}"}),
    (403, {"Origin": "https://evil.example", "Content_Type": "application/x-www-form-urlencoded",      # a form
           "left_out": ["X_Npgpt_Token"], "body": b"layer=chain"}),
    (415, {"Content_Type": "application/x-www-form-urlencoded", "body": b"layer=chain"}),
    (415, {"Content_Type": "text/plain"}),
    (415, {"left_out": ["Content_Type"]}),
    (404, {"path": "/nothing"}),
    (404, {"path": "/../../etc/passwd"}),
    (404, {"path": "/echo/"}),
    (405, {"method": "GET", "body": b""}),
    (405, {"path": "/"}),
    (405, {"method": "PUT"}),
    (405, {"method": "OPTIONS"}),
    (405, {"method": "BREW"}),
    (411, {"left_out": ["Content_Length"]}),
    (411, {"Content_Length": "-1"}),
    (411, {"Content_Length": "2.0"}),
    (411, {"Content_Length": ["2", "2"]}),
    (411, {"Transfer_Encoding": "chunked"}),
    (413, {"Content_Length": MOST_BODY + 1}),
    (413, {"Content_Length": "9" * 5000}),
    (400, {"Content_Length": 100}),                 # more than there is
    (400, {"body": b"{"}),
    (400, {"body": b"[]"}),
    (400, {"body": b"\xff"}),
    (400, {"body": b'{"a": NaN}'}),
    (400, {"body": b"[" * 100000}),
    (400, {"path": "/refuse"}),
    (500, {"path": "/fail"}),
])
def test_what_is_refused(start, capfd, status, request_):
    server = start()
    names = {"port": server.server_address[1], "token": server.token}

    def filled(value):
        return [filled(each) for each in value] if isinstance(value, list) else \
            value.replace("{port}", str(names["port"])).replace("{token}", names["token"]) \
            if isinstance(value, str) else value

    given, headers, body = ask(server, **{name: filled(value) for name, value in request_.items()})
    assert given == status and headers["X-Content-Type-Options"] == "nosniff"
    error = json.loads(body)["error"]
    assert error and "secret" not in error and "\n" not in error
    assert ask(server)[0] == 200                    # it goes on
    assert capfd.readouterr() == ("", "")


def test_the_page_that_is_loaded_again(start):
    """Its token is out of the address bar: what comes then is neither the page nor anything secret."""
    server = start()
    status, headers, body = ask(server, "GET", "/", b"", ["X_Npgpt_Token"])
    assert status == 403 and server.token.encode() not in body and b"the page<" not in body
    assert b'sessionStorage.getItem("npgpt-token")' in body and headers["Content-Type"].startswith("text/html")


def test_what_is_no_http(start, capfd):
    server = start()
    for data in (b"", b"\r\n", b"\x16\x03\x01", b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"x" * 100_000 + b"\r\n",
                 b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n"):
        with connected(server) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            try:
                assert b"the page" not in client.makefile("rb").read()
            except ConnectionResetError:            # it has not read everything
                pass
    assert ask(server)[0] == 200 and capfd.readouterr() == ("", "")


def test_a_large_body_is_not_read(start):
    """The answer comes although not a byte of the body was sent."""
    server = start(patience=PATIENCE)
    with connected(server) as client:
        client.sendall(f"POST /echo HTTP/1.1\r\nHost: {server.hosts[0]}\r\nX-Npgpt-Token: {server.token}\r\n"
                       f"Content-Type: application/json\r\nContent-Length: {10 << 20}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.0 413 ")
    body = json.dumps({"a": "x" * (MOST_BODY - 9)}).encode()
    assert len(body) == MOST_BODY and ask(server, body=body)[0] == 200


def test_a_hundred_clients(start):
    server = start()
    with ThreadPoolExecutor(100) as pool:
        assert [status for status, _, _ in pool.map(lambda _: ask(server, path="/slow"), range(100))] == [200] * 100
    assert 1 < server.own.most <= MOST_CONNECTIONS


@pytest.mark.parametrize("drop", [b"", b"a"])
def test_slow_clients_are_left(start, drop, capfd):
    """As many as are answered at once; some send nothing, some a byte every now and then."""
    server = start(patience=0.5)
    clients = [connected(server) for _ in range(MOST_CONNECTIONS)]
    for client in clients:
        client.sendall(b"POST /echo HTTP/1.1\r\n")
    ended = threading.Event()

    def drip():
        while drop and not ended.wait(0.1):
            for client in clients:
                try:
                    client.sendall(drop)
                except OSError:
                    pass

    dripping = threading.Thread(target=drip)
    dripping.start()
    before = time.monotonic()
    assert ask(server)[0] == 200
    assert 0.3 < time.monotonic() - before < PATIENCE / 2
    ended.set()
    dripping.join()
    for client in clients:
        client.close()
    assert capfd.readouterr() == ("", "")


def test_a_client_that_does_not_read_is_left(start):
    server = start(patience=0.5)
    server.page = bytes(50 << 20)
    with connected(server) as client:
        client.sendall(f"GET /?token={server.token} HTTP/1.1\r\nHost: {server.hosts[0]}\r\n\r\n".encode())
        time.sleep(1.5)
        got = 0
        try:
            while data := client.recv(1 << 20):
                got += len(data)
        except ConnectionResetError:
            pass
        assert got < 50 << 20


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")
def test_it_listens_on_the_loopback_only(start):
    port = f"{start().server_address[1]:04X}"
    listening = [line.split()[1] for name in ("tcp", "tcp6") if Path(f"/proc/net/{name}").exists()
                 for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
                 if line.split()[1].endswith(f":{port}") and line.split()[3] == "0A"]
    assert listening == [f"0100007F:{port}"]


def test_it_ends_when_idle(start):
    """A request with the token makes it wait again, another one does not."""
    server = start(idle=2.0)
    before = time.monotonic()
    while time.monotonic() - before < 1.5:
        ask(server)
        time.sleep(0.1)
    last = time.monotonic()
    while server.thread.is_alive():
        assert time.monotonic() - last < PATIENCE
        try:
            ask(server, X_Npgpt_Token="wrong")
        except OSError:
            pass
        time.sleep(0.05)
    assert 1.5 < time.monotonic() - last < 10.0
    with pytest.raises(OSError):
        connected(server)


@pytest.mark.usefixtures("ctrl_c")
def test_the_command(tmp_path):
    """It writes no page, prints its address, answers there, and ends with Ctrl-C."""
    for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
        pytest.importorskip(module, reason="makes the study page")
    import npgpt
    environment = {**os.environ, "PYTHONPATH": str(Path(npgpt.__file__).parents[1]), "BROWSER": "true"}
    process = subprocess.Popen([sys.executable, "-m", "npgpt.cli", "study", "chain", "--open", "--exercises", "mine"],
                               cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address, _, how = process.stdout.readline().strip().partition(" ")
        host, token = address.removeprefix("http://").split("/?token=")
        connection = http.client.HTTPConnection(host, timeout=PATIENCE)
        connection.request("GET", f"/?token={token}")
        assert f'"live":{{"token":"{token}","exercises":"mine"}}' in connection.getresponse().read().decode()
        solution = json.dumps({"layer": "chain", "level": 1, "edits": {"29": "du = dv * np.cos(u)"}})
        connection.request("POST", "/check", solution, {"X-Npgpt-Token": token, "Content-Type": "application/json"})
        assert json.loads(connection.getresponse().read())["solved"] == "chain level 1"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, how, out, err) == (0, "(Ctrl-C ends it)", "ended\n", "")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["chain-level1.py", "mine", "progress.json"]

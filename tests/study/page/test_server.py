"""The server of the live page: whose requests it answers, what it rejects, and how it stops."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from npgpt.errors import UserError
from npgpt.study.gradcheck.source import read_source
from npgpt.study.lessons.table import lesson_named
from npgpt.study.page.server import MOST_BODY, Server

PATIENCE = 60.0  # seconds, for a busy machine


def refuse(content):
    raise UserError("this is not valid")


@pytest.fixture
def server():
    """A `Server` that runs in a thread."""
    server = Server(
        {
            "/echo": lambda content: content,
            "/refuse": refuse,
            "/fail": lambda content: content["secret"],
        }
    )
    server.thread = threading.Thread(target=server.serve, args=[b"<p>the page</p>"], daemon=True)
    server.thread.start()
    yield server
    server.shutdown()


def ask(server, method="POST", path="/echo", body=b"{}", left_out=(), **more):
    """(status, headers, body) of a raw request; more: other headers, a list for several with the
    same name.
    """
    headers = {
        "Host": server.hosts[0],
        "X_Npgpt_Token": server.token,
        "Content_Type": "application/json",
        "Content_Length": len(body),
    } | more
    known = {"token": server.token, "code": server.code, "port": server.server_address[1]}
    connection = http.client.HTTPConnection(*server.server_address, timeout=PATIENCE)
    with contextlib.closing(connection):
        path = path.format(**known)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name in headers.keys() - {*left_out}:
            value = headers[name]
            for each in value if isinstance(value, list) else [value]:
                connection.putheader(name.replace("_", "-"), str(each).format(**known))
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def ask_page(server, path):
    """(status, headers, body) of a GET without the token's header."""
    return ask(server, "GET", path, b"", ["X_Npgpt_Token"])


def test_the_page_and_an_answer(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"
    status, headers, body = ask_page(server, "/?token={token}")
    assert (status, body) == (200, b"<p>the page</p>")
    assert server.address.endswith(f"/?token={server.token}")
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "frame-ancestors" in headers["Content-Security-Policy"]
    for more in ({}, {"Origin": f"http://{server.hosts[0]}"}, {"Host": server.hosts[1]}):
        status, _, body = ask(server, body=b'{"a": [1, "\xc3\xa9"]}', **more)
        assert (status, body) == (200, b'{"a": [1, "\\u00e9"]}')
    with Server({}) as other:
        secrets = {server.token, server.code, other.token, other.code}
    assert len(secrets) == 4 and len(server.token) > 40


@pytest.mark.parametrize(
    "status, request_",
    [
        (403, {"left_out": ["X_Npgpt_Token"]}),
        (403, {"X_Npgpt_Token": "\xff"}),
        (403, {"path": "/echo?token={token}", "left_out": ["X_Npgpt_Token"]}),  # the page only
        (403, {"Host": "evil.example:{port}"}),  # DNS rebinding
        (403, {"Host": ["127.0.0.1:{port}", "evil.example"]}),
        (403, {"Origin": "https://evil.example"}),
        (
            415,
            {"Content_Type": "application/x-www-form-urlencoded", "body": b"layer=chain"},
        ),  # a form
        (404, {"path": "/../../etc/passwd"}),
        (400, {"Content_Length": "-1"}),
        (400, {"Content_Length": MOST_BODY + 1}),
        (400, {"body": b"[]"}),
        (400, {"path": "/refuse"}),
        (500, {"path": "/fail"}),
    ],
)
def test_requests_that_are_rejected(server, capfd, status, request_):
    given, headers, body = ask(server, **request_)
    assert given == status and headers["X-Content-Type-Options"] == "nosniff"
    error = json.loads(body)["error"]
    assert error and "secret" not in error and "\n" not in error
    assert ask(server)[0] == 200  # the server is still there, and the code unused
    pages = [ask_page(server, "/?code={code}")[0] for _ in range(2)]
    assert pages == [200, 403]
    assert capfd.readouterr() == ("", "")


def test_a_reload_has_no_token(server):
    """Neither the page nor a secret is sent, only a script that asks with the token."""
    status, headers, body = ask_page(server, "/")
    assert status == 403 and server.token.encode() not in body and b"the page<" not in body
    assert b'sessionStorage.getItem("npgpt-token")' in body
    assert headers["Content-Type"].startswith("text/html")
    assert ask(server, "GET", "/", b"")[::2] == (200, b"<p>the page</p>")


@pytest.mark.usefixtures("ctrl_c")
def test_the_command(tmp_path):
    """It answers at the address that it prints. The browser's argument is a private file, deleted
    at the end.
    """
    pytest.importorskip("jinja2", reason="makes the study page")
    (tmp_path / "home").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "npgpt", "study", "chain", "--open"],
        cwd=tmp_path,
        env=os.environ | {"BROWSER": "echo %s", "HOME": str(tmp_path / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address, _, how = process.stdout.readline().strip().partition(" ")
        host, token = address.removeprefix("http://").split("/?token=")
        line = process.stdout.readline()  # what the browser, echo, got
        file = Path(line.strip().removeprefix("file://"))
        assert [oct(path.stat().st_mode) for path in (file, file.parent)] == ["0o100600", "0o40700"]
        code = file.read_text().partition(f"http://{host}/?code=")[2].partition('"')[0]
        assert len(code) > 40 and code not in str(file) and token not in file.read_text()
        page = urlopen(f"http://{host}/?code={code}", timeout=PATIENCE).read().decode()
        assert f'"live":{{"token":"{token}"}}' in page
        backward = read_source(lesson_named("chain").backward)
        [du] = [each for each in backward.statements if each.targets == ("du",)]
        solution = json.dumps({"layer": "chain", "edits": {f"b{du.first}": du.text}})
        headers = {"X-Npgpt-Token": token, "Content-Type": "application/json"}
        check = Request(f"http://{host}/check", solution.encode(), headers)
        assert json.loads(urlopen(check, timeout=PATIENCE).read())["verdict"] == "right"
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, how, out, err) == (0, "(press Ctrl-C to stop)", "stopped\n", "")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["home"]

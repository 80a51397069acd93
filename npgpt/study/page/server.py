"""The server of the live page: on 127.0.0.1, for requests that carry its token.

Any program on this machine, and any web page in the user's browser, can send requests to it. So
every request needs the token, Host and Origin must be the server's own, and the size of a body is
limited. A header carries the token: a cookie would also reach other ports of 127.0.0.1. Other users
can read a browser's command line, so a file, private to the user, opens the page with a code that
is valid once. The server serves no files: the page is in memory, and everything else is an action
that takes and returns JSON.
"""

import contextlib
import hmac
import http.server
import json
import os
import secrets
import socketserver
import tempfile
import threading
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qsl

from npgpt.errors import UserError, one_line

HOST = "127.0.0.1"
MOST_BODY = 1 << 20  # bytes
HEADERS = {  # more policies are in the page itself
    "Content-Security-Policy": "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# The page removes token and code from the address bar. When it is reloaded, this script asks for it
# with the token.
RELOAD = b"""<!DOCTYPE html><html lang="en"><title>npgpt</title><script type="module">
const token = sessionStorage.getItem("npgpt-token");
const response = token && await fetch("/", {headers: {"X-Npgpt-Token": token}});
if (response?.ok) document.write(await response.text()), document.close();
</script><p>Open the address that npgpt study printed."""
REDIRECT = """<!DOCTYPE html><html lang="en"><title>npgpt</title>
<meta http-equiv="refresh" content="0; url={}">
<p>If no page opens, open the address that npgpt study printed."""


class Refused(Exception):
    """A rejected request. args: an HTTPStatus, and a sentence."""


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves a page until Ctrl-C.

    token: for the page
    code: opens the page once
    address: for the user, with the token
    actions: path -> function from a request's JSON object to the answer's; it raises UserError for
        invalid content
    """

    daemon_threads = True

    def __init__(self, actions):
        self.actions = actions
        self.token = secrets.token_urlsafe(32)
        self.code = secrets.token_urlsafe(32)
        self.unspent = threading.Lock()
        super().__init__((HOST, 0), Handler)
        port = self.server_address[1]
        self.hosts = [f"{HOST}:{port}", f"localhost:{port}"]
        self.address = f"http://{self.hosts[0]}/?token={self.token}"

    @contextlib.contextmanager
    def opener(self):
        """Yield the URL of a file, readable by this user only, that opens the page once."""
        # browsers in a sandbox (snap) read neither /tmp nor hidden folders
        home = os.path.expanduser("~")
        where = home if os.access(home, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="npgpt-", dir=where) as folder:
            file = Path(folder).resolve() / "open.html"
            file.touch(0o600)
            file.write_text(REDIRECT.format(f"http://{self.hosts[0]}/?code={self.code}"))
            yield file.as_uri()

    def serve(self, page):
        """Serve a page, bytes, until Ctrl-C."""
        self.page = page
        with self, contextlib.suppress(KeyboardInterrupt):
            self.serve_forever()

    def handle_error(self, request, client_address):
        """Ignore the error, because the client is gone or too slow."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    timeout = 10.0  # seconds for each read and write
    server_version = "npgpt"
    sys_version = ""

    def do_GET(self):
        if self.path == "/" and "X-Npgpt-Token" not in self.headers:
            self.send(HTTPStatus.FORBIDDEN, RELOAD, "text/html")
        else:
            self.answer(lambda: (self.server.page, "text/html"))

    def do_POST(self):
        def content():
            return json.dumps(self.result(), allow_nan=False).encode(), "application/json"

        self.answer(content)

    def answer(self, content):
        """Send what content() returns, bytes and their type; or any error."""
        try:
            self.authorise()
            data, kind = content()
        except Refused as refusal:
            self.refuse(*refusal.args)
        except (UserError, OSError) as error:
            self.refuse(HTTPStatus.BAD_REQUEST, one_line(error))
        except Exception:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed")
        else:
            self.send(HTTPStatus.OK, data, kind)

    def refuse(self, status, message):
        self.send(status, json.dumps({"error": message}).encode(), "application/json")

    def send(self, status, data, kind):
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def authorise(self):
        """Raise Refused unless the page sends the request or it opens the page, at a known path."""
        server = self.server
        path, _, query = self.path.partition("?")
        if self.headers.get_all("Host", []) not in [[host] for host in server.hosts]:
            raise Refused(HTTPStatus.FORBIDDEN, "wrong Host header")
        if self.headers.get("Origin") not in [None, *(f"http://{host}" for host in server.hosts)]:
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from another site")
        opens = self.command == "GET" and path == "/"
        fields = dict(parse_qsl(query)) if opens else {}
        token = self.headers.get("X-Npgpt-Token") or fields.get("token", "")
        has_code = is_same(fields.get("code", ""), server.code)
        has_code = has_code and server.unspent.acquire(blocking=False)  # only once
        if not is_same(token, server.token) and not has_code:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "wrong token, or used code: open the address that npgpt study printed",
            )
        if not opens and not (self.command == "POST" and path in server.actions):
            raise Refused(HTTPStatus.NOT_FOUND, "no such page")

    def result(self):
        """Run the action that a POST asks for, and return its result."""
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be JSON")
        try:
            length = int(self.headers.get("Content-Length", ""))
            content = json.loads(self.rfile.read(length)) if 0 <= length <= MOST_BODY else None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise UserError(f"the body must be a JSON object of at most {MOST_BODY:,} bytes")
        return self.server.actions[self.path](content)

    def log_message(self, *arguments):
        """Log nothing."""


def is_same(given, secret):
    """Return whether a text is a secret, in a time that does not depend on it."""
    return hmac.compare_digest(given.encode(errors="replace"), secret.encode())

"""The server of the page in which one edits: on 127.0.0.1 only, for those who know its token.

Any program of this machine, and any web page in the user's browser, can send requests to it. So each request needs the
token; Host and Origin are checked, against pages of other sites; size, time and number of requests are limited. It
serves no files: the page is in memory, and everything else is an action that takes and returns JSON.
"""

import contextlib
import hmac
import http.server
import json
import secrets
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from urllib.parse import parse_qs

from npgpt.errors import UserError, one_line
from npgpt.files import parse_json

HOST = "127.0.0.1"
MOST_BODY = 1 << 20         # bytes
MOST_CONNECTIONS = 16       # that are answered at once; more wait
PATIENCE = 10.0             # seconds that a client has to send its request, and to take the answer
IDLE = 3600.0               # seconds without a request after which the server ends
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                               "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                               "frame-ancestors 'none'",
    "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff"}
# The page takes the token out of the address bar. When it is loaded again, this brings it back.
AGAIN = b"""<!DOCTYPE html><html lang="en"><title>npgpt</title><script>
const token = sessionStorage.getItem("npgpt-token");
if (token) location.replace(`/?token=${token}`);
</script><p>The page is at the address that npgpt study has printed."""


class Refused(Exception):
    """A request that is not answered. status: an HTTPStatus; message: a sentence."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves a page until Ctrl-C, or until no request came for `idle` seconds.

    actions: path -> function from the JSON object of a request to that of the answer; it raises UserError for content
    that is not valid. token: for the page; address: what the browser opens.
    """

    daemon_threads = True
    request_queue_size = 128
    timeout = 0.5           # of handle_request

    def __init__(self, actions, idle=IDLE, patience=PATIENCE):
        self.actions, self.idle, self.patience, self.page = actions, idle, patience, b""
        self.token = secrets.token_urlsafe(32)
        self.slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.last = time.monotonic()            # when the last request came that had the token
        super().__init__((HOST, 0), Handler)
        port = self.server_address[1]
        self.hosts = [f"{HOST}:{port}", f"localhost:{port}"]
        self.address = f"http://{self.hosts[0]}/?token={self.token}"

    def show(self, page):
        """Serve this page, bytes."""
        self.page = page

    def run(self):
        """Answer requests. Returns when the server was idle for long enough, and after Ctrl-C."""
        self.last = time.monotonic()
        with self, contextlib.suppress(KeyboardInterrupt):
            while time.monotonic() - self.last < self.idle:
                self.handle_request()

    def process_request(self, request, client_address):
        self.slots.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request, client_address):
        """Say nothing: the client has gone, or is too slow."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server_version, sys_version = "npgpt", ""

    def setup(self):
        self.timeout = self.server.patience     # of each read, and of a whole write
        super().setup()
        self.too_late = threading.Timer(self.server.patience, self.hang_up)         # for all reads together
        self.too_late.daemon = True
        self.too_late.start()

    def finish(self):
        self.too_late.cancel()
        super().finish()

    def hang_up(self):
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self):
        if self.path == "/":
            self.send(HTTPStatus.FORBIDDEN, AGAIN, "text/html")
        else:
            self.answer(lambda: (self.server.page, "text/html"))

    def do_POST(self):
        self.answer(lambda: (json.dumps(self.result(), allow_nan=False).encode(), "application/json"))

    def answer(self, content):
        """Send what content() returns, bytes and their type; or an error, whatever goes wrong."""
        try:
            self.check()
            status, (data, kind) = HTTPStatus.OK, content()
        except Exception as error:
            status = HTTPStatus.BAD_REQUEST if isinstance(error, UserError | OSError) else \
                getattr(error, "status", HTTPStatus.INTERNAL_SERVER_ERROR)
            message = "the server failed" if status == HTTPStatus.INTERNAL_SERVER_ERROR else one_line(error)
            data, kind = json.dumps({"error": message}).encode(), "application/json"
        self.send(status, data, kind)

    def send(self, status, data, kind):
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": len(data)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def check(self):
        """Raise Refused unless the request comes from the page, or opens it, and is for something that exists."""
        path, _, query = self.path.partition("?")
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            raise Refused(HTTPStatus.FORBIDDEN, "another host is meant")
        if self.headers.get_all("Origin", []) not in [[], *([f"http://{host}"] for host in self.server.hosts)]:
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from another site")
        given = self.headers.get("X-Npgpt-Token", "")
        if self.command == "GET" and path == "/" and not given:
            given = parse_qs(query).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(errors="replace"), self.server.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "the token is wrong: open the address that npgpt study has printed")
        self.server.last = time.monotonic()
        methods = {"/": "GET", **dict.fromkeys(self.server.actions, "POST")}
        if path not in methods:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        if methods[path] != self.command:
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"this page takes {methods[path]} only")

    def result(self):
        """What the action that a POST asks for returns."""
        lengths = self.headers.get_all("Content-Length", [])
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be JSON")
        if len(lengths) != 1 or not (lengths[0].isascii() and lengths[0].isdigit()) or "Transfer-Encoding" in \
                self.headers:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length must be one number")
        if len(lengths[0]) > 9 or int(lengths[0]) > MOST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MOST_BODY:,} bytes")
        data = self.rfile.read(int(lengths[0]))
        self.too_late.cancel()
        try:
            content = parse_json(data)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or len(data) < int(lengths[0]):
            raise UserError("the body must be a JSON object")
        return self.server.actions[self.path.partition("?")[0]](content)

    def send_error(self, code, message=None, explain=None):
        """Answer what `BaseHTTPRequestHandler` refuses by itself; it calls an unknown method 501."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == 501 else HTTPStatus(code)
        self.send(status, json.dumps({"error": status.phrase}).encode(), "application/json")

    def log_message(self, *arguments):
        """Log nothing."""

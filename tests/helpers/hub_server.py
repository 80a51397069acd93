"""A hub on 127.0.0.1, which answers what the Hugging Face hub answers to a client that downloads
files.
"""

import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class HubServer:
    """Repositories in memory. `faults`: file name, or "listing" -> "silent", "stalled", "wrong
    bytes", "not a hub" or a status.
    """

    def __init__(self):
        self.commits = {}  # (repository path, branch or commit) -> (commit, {file name: bytes})
        self.faults = {}
        self.requests = []  # (method, path)
        self.stopping = threading.Event()

    def add(self, repo_id, files, revision="main", repo_type="model"):
        """Make `files`, a mapping of names to bytes, the newest commit of a branch or tag, and
        return the commit.
        """
        repository = f"datasets/{repo_id}" if repo_type == "dataset" else repo_id
        commit = hashlib.sha1(repr((repository, sorted(files.items()))).encode()).hexdigest()
        self.commits[repository, revision] = self.commits[repository, commit] = commit, files
        return commit

    def downloads(self):
        """The names of the files that were sent, in the order of the requests."""
        return [
            path.rsplit("/", 1)[-1]
            for method, path in self.requests
            if method == "GET" and "/resolve/" in path
        ]

    def __enter__(self):
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": self})
        )
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,)).start()
        return self

    def stop(self):
        """Take the hub off the network: connections are refused from now on."""
        if not self.stopping.is_set():
            self.stopping.set()
            self.server.shutdown()
            self.server.server_close()

    def __exit__(self, *exception):
        self.stop()


class HubHandler(BaseHTTPRequestHandler):
    """Answers /api/models/NAME/revision/REVISION (a listing) and /NAME/resolve/REVISION/FILE."""

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        listing = path.startswith("/api/")
        place = re.fullmatch("(?:/api/models|/api)?/(.*?)(?:/(tree|revision|resolve)/(.*))?", path)
        repository, kind, rest = place.groups()
        revision, _, name = (rest or "main").partition("/")
        fault = self.hub.faults.get("listing" if listing else name, "")
        if fault == "silent":
            self.hub.stopping.wait()
        elif fault.isdigit():
            self.send(int(fault), {"X-Error-Code": "Fault"})
        elif fault == "not a hub":
            self.send(200, {}, b"<html>Welcome to our hotel</html>")
        elif repository not in {known for known, _ in self.hub.commits}:
            # The hub does not say if it is missing or private.
            self.send(401, {"X-Error-Code": "RepoNotFound"})
        elif (repository, revision) not in self.hub.commits:
            self.send(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            commit, files = self.hub.commits[repository, revision]
            if listing:
                listed = [entry(name, data) for name, data in files.items()]
                answer = {"id": repository, "sha": commit, "siblings": listed}
                self.send(200, {}, json.dumps(listed if kind == "tree" else answer).encode())
            elif name not in files:
                self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            else:
                headers = {"X-Repo-Commit": commit, "ETag": hashlib.sha256(files[name]).hexdigest()}
                wrong = bytes(255 - byte for byte in files[name])
                self.send(200, headers, wrong if fault == "wrong bytes" else files[name], fault)

    do_HEAD = do_GET

    def send(self, status, headers, body=b"", fault=""):
        self.send_response(status)
        for header, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:9] if fault == "stalled" else body)
        if fault == "stalled":
            self.hub.stopping.wait()

    def log_message(self, format, *args):
        """Print nothing: the requests are in hub.requests."""


def entry(name, data):
    """What a listing says of a file."""
    digest = hashlib.sha256(data).hexdigest()
    lfs = {"size": len(data), "pointerSize": 0, "oid": digest, "sha256": digest}
    return {
        **{"type": "file", "path": name, "rfilename": name, "size": len(data)},
        **{"oid": hashlib.sha1(data).hexdigest(), "lfs": None if "json" in name else lfs},
    }


def point_client_at(hub, home, monkeypatch):
    """Make the huggingface_hub of this process use the hub on 127.0.0.1 and a cache in `home`,
    until the test ends.

    It reads its settings from the environment when it is imported, which may have happened before.
    """
    from huggingface_hub import close_session, constants

    for name in [name for name in os.environ if name.upper().startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "*")
    for name, value in {
        "ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_TOKEN_PATH": str(home / "token"),
        "AGENT_HARNESSES_PATH": str(home / "agents"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value, raising=False)
    close_session()  # its open connections and proxies are those of another test

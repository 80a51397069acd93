"""A hub on loopback: what the Hugging Face hub answers to a client that downloads files, and how that can go wrong.

    with HubServer() as hub:
        hub.add("owner/name", {"config.json": b"{}", "model.safetensors": weights})
        hub.faults["model.safetensors"] = "cut once"
        point_client_at(hub, tmp_path, monkeypatch)         # the huggingface_hub of this process
        subprocess.run(command, env=hub.environment(tmp_path))  # or one of another process
"""

import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class HubServer:
    """Repositories in memory, served on a free port of 127.0.0.1 from `with` to the end of the block or `stop()`.

    `faults` says which files go wrong, and how:
    "cut once"         the first answer ends in the middle; the rest can be had by asking for it
    "cut"              every answer ends in the middle of the file, or before its first byte
    "stall"            the answer stays open in the middle of the file
    "wrong bytes"      as many bytes as there should be, but others
    "short"            half of the file, said to be all of it
    "status 500"       this status (or 401, 403, 429, ...) instead of the file and of its headers
    "status 500 late"  the headers are answered, but not the file
    "silent"           the connection is accepted, and nothing comes
    "not a hub"        a page of another server, without the hub's headers
    """

    def __init__(self):
        self.commits = {}       # (repository path, commit) -> {file name: bytes}
        self.revisions = {}     # (repository path, branch or tag) -> commit
        self.faults = {}        # file name -> one of the above
        self.gated = set()      # repository paths that only `token` opens
        self.token = "hf_loopback"
        self.requests = []      # (method, path, Range header) of every request for a file
        self.tokens = []        # (path, Authorization header) of the same requests
        self.stopping = threading.Event()

    def add(self, repo_id, files, revision="main", repo_type="model"):
        """Make `files`, a mapping of names to bytes, the newest commit of a branch or tag, and return the commit."""
        repository = f"datasets/{repo_id}" if repo_type == "dataset" else repo_id
        commit = hashlib.sha1(repr((repository, sorted(files.items()))).encode()).hexdigest()
        self.commits[repository, commit] = dict(files)
        self.revisions[repository, revision] = commit
        return commit

    def environment(self, home):
        """The variables with which another process finds this hub, keeps its cache in `home`, and asks nobody else."""
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(("HF_", "HUGGING"))}
        return {**kept, "HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1",
                "NO_PROXY": "*", "no_proxy": "*"}

    def downloads(self):
        """The names of the files that were sent, or begun to be, in the order of the requests."""
        return [path.rsplit("/", 1)[-1] for method, path, _ in self.requests if method == "GET"]

    def __enter__(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": self}))
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        return self

    def stop(self):
        """Take the hub off the network: connections are refused from now on."""
        self.stopping.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def __exit__(self, *exception):
        if not self.stopping.is_set():
            self.stop()


class HubHandler(BaseHTTPRequestHandler):
    """Answers HEAD and GET of /OWNER/NAME/resolve/REVISION/FILE, and of the /cdn/ that large files are sent from."""

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        if "/resolve/" in path:     # and not what the client asks for its own purposes
            hub.requests.append((self.command, path, self.headers["Range"]))
            hub.tokens.append((path, self.headers["Authorization"]))
        on_cdn = path.startswith("/cdn/")
        repository, resolve, rest = path.removeprefix("/cdn").strip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        fault = hub.faults.get(name)
        if fault == "silent":
            hub.stopping.wait()
        elif (fault or "").startswith("status") and (self.command == "GET" or not fault.endswith("late")):
            self.refuse(int(fault.split()[1]), "Fault")
        elif fault == "not a hub":
            self.send(200, {"Content-Length": "5"}, b"Hello")
        elif not resolve or repository not in {known for known, _ in hub.commits}:
            # Without a token the hub does not tell whether a repository is missing or private.
            self.refuse(404 if self.headers["Authorization"] else 401, "RepoNotFound")
        elif repository in hub.gated and not on_cdn and self.headers["Authorization"] != f"Bearer {hub.token}":
            self.refuse(403 if self.headers["Authorization"] else 401, "GatedRepo")
        else:
            commit = hub.revisions.get((repository, revision), revision)
            files = hub.commits.get((repository, commit))
            if files is None:
                self.refuse(404, "RevisionNotFound")
            elif name not in files:
                self.refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
            else:
                self.send_file(path, name, files[name], commit, on_cdn)

    def send_file(self, path, name, data, commit, on_cdn):
        """A small file itself, or the address of a large one (kept in Git LFS: all but JSON and merges.txt)."""
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if name.endswith(".json") or name == "merges.txt":
            headers["ETag"] = '"' + hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() + '"'
        else:
            headers["X-Linked-ETag"] = '"' + hashlib.sha256(data).hexdigest() + '"'
            headers["X-Linked-Size"] = str(len(data))
            if not on_cdn:
                # Another host name for the same machine: the client has to see that it leaves the hub.
                headers |= {"Location": f"http://localhost:{self.hub.port}/cdn{path}", "Content-Length": "0"}
                return self.send(302, headers, b"")
        if self.headers["Range"]:
            start = int(self.headers["Range"].removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            status = 206
        else:
            start, status = 0, 200
        body = self.spoil(name, data, start)
        headers["Content-Length"] = str(len(body) if self.hub.faults.get(name) == "short" else len(data) - start)
        self.send(status, headers, body)

    def spoil(self, name, data, start):
        """The bytes of `data` from `start` on, as far and as well as the file's fault allows."""
        fault = self.hub.faults.get(name)
        if fault == "wrong bytes":
            return bytes(255 - byte for byte in data[start:])
        if fault in ("cut", "cut once", "stall", "short") and self.command == "GET":
            if fault == "cut once":
                del self.hub.faults[name]
            return data[start:len(data) // 2]
        return data[start:]

    def refuse(self, status, code, headers=None):
        self.send(status, {"X-Error-Code": code, "Content-Length": "0", **(headers or {})}, b"")

    def send(self, status, headers, body):
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
            if self.hub.faults.get(self.path.rsplit("/", 1)[-1]) == "stall":
                self.wfile.flush()
                self.hub.stopping.wait()

    def log_message(self, format, *args):
        """Print nothing: the requests are in hub.requests."""


def point_client_at(hub, home, monkeypatch):
    """Make the huggingface_hub of this process use the loopback hub and a cache in `home`, until the test ends.

    It reads its settings from the environment when it is imported, which other tests may long have done.
    """
    from huggingface_hub import close_session, constants

    for name in [name for name in os.environ if name.upper().startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "*")
    for name, value in {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "AGENT_HARNESSES_PATH": str(home / "agents"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    close_session()     # its open connections and proxies are those of another test

"""A hub on this machine for pushes: the few addresses that huggingface_hub calls to make a repository and to upload a
folder, over git-lfs' batch protocol (https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md)."""

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_RightTokenForTheTests"
COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: int = 0


class Hub:
    """`refuse` names addresses that are answered with a status instead; `cut` uploads so many large files only."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clear()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    def clear(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.tokens: set[str] = set()
        self.refuse: dict[str, int] = {}
        self.cut = -1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        """The lines of a commit: small files as they are, large ones by their sum."""
        found = self.repositories[repo]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                found.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                found.files[value["path"]] = self.large[value["oid"]]
        found.commits += 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def do_PUT(self) -> None:
        self.answer("PUT")

    def answer(self, method: str) -> None:
        body = self.body()
        path = self.path.split("?")[0]
        if path != "/healthz":  # another test's pages may still ask for a server that had this port before
            self.hub.calls.append(f"{method} {path}")
        if method == "PUT":  # to an address that the batch named, which needs no token
            return self.store(path.rpartition("/")[2], body)
        self.hub.tokens.add(self.headers.get("Authorization", ""))
        refused = next((status for part, status in self.hub.refuse.items() if part in path), None)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.send(401, {"error": "Invalid credentials in Authorization header"})
        if refused:
            return self.send(refused, {"error": "refused"})
        return self.route(path, body)

    def route(self, path: str, body: bytes) -> None:
        parts = path.removeprefix("/api/models/").split("/")
        repo = "/".join(parts[:2])
        if path == "/api/repos/create":
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.send(200, {"errors": [], "warnings": []})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.send(200, {"transfer": "basic", "objects": [self.wanted(one) for one in json.loads(body)["objects"]]})
        elif repo not in self.hub.repositories:
            self.send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif "/preupload/" in path:
            self.send(200, {"files": [self.mode(one) for one in json.loads(body)["files"]]})
        elif "/commit/" in path:
            self.hub.commit(repo, [json.loads(line) for line in body.splitlines()])
            self.send(200, {"commitUrl": f"{self.hub.url}/{repo}/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.send(200, {"id": repo, "sha": COMMIT, "private": self.hub.repositories[repo].private, "tags": []})

    def create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        status = 409 if repo in self.hub.repositories else 200
        private = asked.get("visibility") == "private" or asked.get("private") is True
        self.hub.repositories.setdefault(repo, Repository(private))
        self.send(status, {"url": f"{self.hub.url}/{repo}", "name": repo})

    def wanted(self, one: dict[str, Any]) -> dict[str, Any]:
        """Whether the content of a large file is still to be sent."""
        if one["oid"] in self.hub.large:
            return one
        return {**one, "actions": {"upload": {"href": f"{self.hub.url}/large/{one['oid']}"}}}

    def mode(self, one: dict[str, Any]) -> dict[str, Any]:
        large = one["path"].endswith((".safetensors", ".pt"))
        return {"path": one["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}

    def store(self, oid: str, body: bytes) -> None:
        whole = hashlib.sha256(body).hexdigest() == oid
        with self.hub.lock:  # large files come at the same moment
            stored = whole and self.hub.cut != 0
            if stored:
                self.hub.cut -= 1
                self.hub.large[oid] = body
        return self.send(200, {}) if stored else self.send(400, {"error": "not stored"})

    def body(self) -> bytes:
        """By its length, or in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        read = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            read += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return read

    def send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        for key, text in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(key, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass

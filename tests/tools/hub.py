"""A local hub for pushes: the endpoints that huggingface_hub calls to create a repository and to upload a folder, with
the batch protocol of git-lfs (https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md)."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.tools.local_server import Handler, serving

TOKEN = "hf_RightTokenForTheTests"
COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: int = 0


class Hub:
    """The server. `refuse`: {part of a path: error status}; `cut`: number of large files to accept, -1 for all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clear()
        self.url = ""

    def clear(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.tokens: set[str] = set()
        self.refuse: dict[str, int] = {}
        self.cut = -1

    def commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        """Apply the lines of a commit, which contain small files and the checksums of large ones."""
        repository = self.repositories[repo]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.large[value["oid"]]
        repository.commits += 1


@contextmanager
def serving_hub() -> Iterator[Hub]:
    """Run a hub for the duration of the block."""
    hub = Hub()
    with serving(type("Bound", (HubHandler,), {"hub": hub})) as hub.url:
        yield hub


class HubHandler(Handler):
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
        if path != "/healthz":  # pages of another test may still poll an earlier server on this port
            self.hub.calls.append(f"{method} {path}")
        if method == "PUT":  # to a URL of the batch response, which needs no token
            return self.store(path.rpartition("/")[2], body)
        self.hub.tokens.add(self.headers.get("Authorization", ""))
        refused = next((status for part, status in self.hub.refuse.items() if part in path), None)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.send_json(401, {"error": "Invalid credentials in Authorization header"})
        if refused:
            return self.send_json(refused, {"error": "refused"})
        return self.route(path, body)

    def route(self, path: str, body: bytes) -> None:
        parts = path.removeprefix("/api/models/").split("/")
        repo = "/".join(parts[:2])
        if path == "/api/repos/create":
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.send_json(200, {"errors": [], "warnings": []})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.send_json(
                200, {"transfer": "basic", "objects": [self.entry(obj) for obj in json.loads(body)["objects"]]}
            )
        elif repo not in self.hub.repositories:
            self.send_json(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif "/preupload/" in path:
            self.send_json(200, {"files": [self.mode(file) for file in json.loads(body)["files"]]})
        elif "/commit/" in path:
            self.hub.commit(repo, [json.loads(line) for line in body.splitlines()])
            self.send_json(200, {"commitUrl": f"{self.hub.url}/{repo}/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.send_json(200, {"id": repo, "sha": COMMIT, "private": self.hub.repositories[repo].private, "tags": []})

    def create(self, fields: dict[str, Any]) -> None:
        repo = f"{fields['organization']}/{fields['name']}"
        status = 409 if repo in self.hub.repositories else 200
        private = fields.get("visibility") == "private" or fields.get("private") is True
        self.hub.repositories.setdefault(repo, Repository(private))
        self.send_json(status, {"url": f"{self.hub.url}/{repo}", "name": repo})

    def entry(self, obj: dict[str, Any]) -> dict[str, Any]:
        """The batch entry of a large file, with an upload action if its content is missing."""
        if obj["oid"] in self.hub.large:
            return obj
        return {**obj, "actions": {"upload": {"href": f"{self.hub.url}/large/{obj['oid']}"}}}

    def mode(self, file: dict[str, Any]) -> dict[str, Any]:
        large = file["path"].endswith((".safetensors", ".pt"))
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}

    def store(self, oid: str, body: bytes) -> None:
        complete = hashlib.sha256(body).hexdigest() == oid
        with self.hub.lock:  # large files are uploaded in parallel
            stored = complete and self.hub.cut != 0
            if stored:
                self.hub.cut -= 1
                self.hub.large[oid] = body
        return self.send_json(200, {}) if stored else self.send_json(400, {"error": "not stored"})

    def body(self) -> bytes:
        """Read the request body, of a given length or chunked."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

"""A process that speaks as much of the hub's protocol as a model download needs: hub_server.py PORT_FILE MODEL_FOLDER.

tests/tiny is the model; tests/gated wants a token; tests/pickles has no safetensors; tests/damaged lies about a hash.
"""

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git_sha1(path: Path) -> str:
    data = path.read_bytes()
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def siblings(name: str) -> list[dict]:
    if name == "tests/pickles":
        return [{"rfilename": "pytorch_model.bin", "size": 10}, {"rfilename": "config.json", "size": 10}]
    made = [{"rfilename": "modeling_evil.py", "size": 9}, {"rfilename": "original/consolidated.pth", "size": 9}]
    for path in sorted(FOLDER.iterdir()):
        entry = {"rfilename": path.name, "size": path.stat().st_size, "blobId": git_sha1(path)}
        if path.suffix == ".safetensors":
            digest = "0" * 64 if name == "tests/damaged" else sha256(path)
            entry["lfs"] = {"sha256": digest, "size": path.stat().st_size, "pointerSize": 130}
        made.append(entry)
    return made


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        name = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        if name == "tests/gated" and self.headers.get("Authorization") != "Bearer hf_right":
            self.send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        elif name not in ("tests/tiny", "tests/gated", "tests/pickles", "tests/damaged"):
            self.send(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif "/tree/" in path:
            self.json([tree_entry(entry) for entry in siblings(name)])
        elif path.startswith("/api/models/"):
            self.json({"id": name, "sha": COMMIT, "private": False, "siblings": siblings(name), "tags": []})
        else:
            self.file(FOLDER / path.split("/")[-1])

    def json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def file(self, path: Path) -> None:
        if not path.is_file():
            self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        etag = sha256(path) if path.suffix == ".safetensors" else git_sha1(path)
        self.send(200, path.read_bytes(), {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        if "--verbose" in sys.argv:
            print(args, file=sys.stderr)


def tree_entry(entry: dict) -> dict:
    made = {"type": "file", "path": entry["rfilename"], "size": entry["size"], "oid": entry.get("blobId", "0" * 40)}
    if "lfs" in entry:
        made["lfs"] = {"oid": entry["lfs"]["sha256"], "size": entry["size"], "pointerSize": 130}
    return made


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    temporary = Path(sys.argv[1] + ".part")
    temporary.write_text(str(server.server_port))
    temporary.rename(sys.argv[1])
    server.serve_forever()

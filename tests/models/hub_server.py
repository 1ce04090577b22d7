"""A process that implements the part of the hub's protocol that downloads need:
python -m tests.models.hub_server PORT_FILE MODEL_FOLDER.

Models: tests/tiny; tests/gated, which needs a token; tests/pickles, without safetensors files; tests/others, with
neither format; tests/damaged, which reports a wrong sha256.
Datasets: tests/chats (two shards of JSONL, a test split, code), tests/tables (parquet), tests/private (needs a token),
tests/long (6 MB of JSONL), tests/scripts (code only), tests/parts (two sets of splits), tests/torn (reports a wrong
sha256), tests/strange (a malformed file list), slow/drip and slow/silent (never end), ill/torn, ill/deep, ill/huge and
ill/down (no valid response); of the suites, MT-Bench under its hub id and GSM8K without its file.
"""

import hashlib
import io
import json
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from tests.tools.local_server import Handler, serve_process

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()


CODE = b"raise SystemExit('run')"


def chat(number: int) -> dict:
    return {
        "messages": [{"role": "user", "content": f"ask {number}"}, {"role": "assistant", "content": f"say {number}"}]
    }


def jsonl(*numbers: int) -> bytes:
    return "".join(json.dumps(chat(number)) + "\n" for number in numbers).encode()


def parquet(*numbers: int) -> bytes:
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([chat(number) for number in numbers]), buffer)
    return buffer.getvalue()


@cache
def data_sets() -> dict[str, dict[str, bytes]]:
    """{dataset: {file: its bytes}}."""
    chats = {"data/train-00000-of-00002.jsonl": jsonl(1, 2, 3), "data/train-00001-of-00002.jsonl": jsonl(4, 5)}
    chats |= {"data/test-00000-of-00001.jsonl": jsonl(6), "chats.py": CODE, "README.md": b"# chats"}
    tables = {"data/train-00000-of-00001-0a1b2c3d4e5f6071.parquet": parquet(1, 2), "dataset_infos.json": b"{}"}
    parts = {f"{part}/{split}/0000.parquet": parquet(1) for part in ("easy", "hard") for split in ("train", "test")}
    private = {"rows.jsonl": jsonl(7), "loader.py": CODE}
    long = jsonl(1) + b" " * 70_000 + b"\n" + jsonl(*range(2, 60_000))
    own_sets = {
        "long": {"rows.jsonl": long},
        "chats": chats,
        "tables": tables,
        "parts": parts,
        "private": private,
        "scripts": {"load.py": CODE},
    }
    prefixed = {f"tests/{name}": files for name, files in {**own_sets, "torn": tables}.items()}
    question = {"question_id": 81, "category": "writing", "turns": ["Write a letter.", "Now shorter."]}
    suite = {"raw/question.jsonl": json.dumps(question).encode(), "raw/other.jsonl": b"{}"}
    return {**prefixed, "HuggingFaceH4/mt_bench_prompts": suite, "openai/gsm8k": {"moved.parquet": b""}}


def entries(name: str) -> list[dict]:
    """The hub's list of a dataset's files; large files have a sha256."""
    listing = []
    for file, content in data_sets()[name].items():
        entry = {"rfilename": file, "size": len(content), "blobId": hashlib.sha1(content).hexdigest()}
        if file.endswith(".parquet"):
            digest = "0" * 64 if name == "tests/torn" else hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
        listing.append(entry)
    return listing


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git_sha1(path: Path) -> str:
    data = path.read_bytes()
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def siblings(name: str) -> list[dict]:
    if name == "tests/pickles":
        paths = [path for path in sorted(FOLDER.iterdir()) if path.suffix != ".safetensors"]
        return [{"rfilename": path.name, "size": path.stat().st_size, "blobId": git_sha1(path)} for path in paths]
    if name == "tests/others":
        return [{"rfilename": "tf_model.h5", "size": 10}, {"rfilename": "config.json", "size": 10}]
    listing = [{"rfilename": "modeling_evil.py", "size": 9}, {"rfilename": "original/consolidated.pth", "size": 9}]
    for path in sorted(FOLDER.iterdir()):
        entry = {"rfilename": path.name, "size": path.stat().st_size, "blobId": git_sha1(path)}
        if path.suffix == ".safetensors":
            digest = "0" * 64 if name == "tests/damaged" else sha256(path)
            entry["lfs"] = {"sha256": digest, "size": path.stat().st_size, "pointerSize": 130}
        listing.append(entry)
    return listing


class HubHandler(Handler):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(self.path.split("?")[0])
        if path.startswith(("/api/datasets/", "/datasets/")):
            self.data_set(*path.removeprefix("/api").removeprefix("/datasets/").split("/", 2))
            return
        name = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        if name == "tests/gated" and self.headers.get("Authorization") != "Bearer hf_right":
            self.send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        elif name not in ("tests/tiny", "tests/gated", "tests/pickles", "tests/others", "tests/damaged"):
            self.send(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif "/tree/" in path:
            self.send_json(200, [tree_entry(entry) for entry in siblings(name)])
        elif path.startswith("/api/models/"):
            self.send_json(200, {"id": name, "sha": COMMIT, "private": False, "siblings": siblings(name), "tags": []})
        else:
            self.file(FOLDER / path.split("/")[-1])

    def drip(self, with_spaces: bool) -> None:
        """Send a response that takes a minute: a space now and then, or nothing at all."""
        if with_spaces:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
        with suppress(OSError):
            for _ in range(1200):
                time.sleep(0.05)
                self.wfile.write(b" " if with_spaces else b"")
        self.close_connection = True

    def data_set(self, owner: str, name: str, rest: str = "") -> None:
        """`rest` is empty or `revision/…` for the list of files, `resolve/REVISION/FILE` for a file."""
        name = f"{owner}/{name}"
        if owner == "slow":
            return self.drip(name == "slow/drip")
        if owner == "ill":
            bodies = {"ill/torn": b'{"id": "ill/to', "ill/deep": b"[" * 1_000_000, "ill/huge": b"[" + b" " * (16 << 20)}
            return self.send(200, bodies[name], {}) if name in bodies else self.send(503, b"<html>", {})
        if name == "tests/strange":
            return self.send_json(200, {"id": name, "siblings": [{"rfilename": "rows.jsonl", "size": "many"}, 7]})
        if (
            name not in data_sets()
            or name == "tests/private"
            and self.headers.get("Authorization") != "Bearer hf_right"
        ):
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        if not rest.startswith("resolve/"):
            info = {"id": name, "sha": COMMIT, "private": False, "siblings": entries(name), "tags": [], "downloads": 0}
            return self.send_json(200, info)
        content = data_sets()[name].get(rest.split("/", 2)[2])
        if content is None or rest.endswith(".py"):
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self.send(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT})

    def file(self, path: Path) -> None:
        if not path.is_file():
            self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        etag = sha256(path) if path.suffix == ".safetensors" else git_sha1(path)
        self.send(200, path.read_bytes(), {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})


def tree_entry(entry: dict) -> dict:
    result = {"type": "file", "path": entry["rfilename"], "size": entry["size"], "oid": entry.get("blobId", "0" * 40)}
    if "lfs" in entry:
        result["lfs"] = {"oid": entry["lfs"]["sha256"], "size": entry["size"], "pointerSize": 130}
    return result


if __name__ == "__main__":
    serve_process(HubHandler)

"""Remove identical conversations from a data set folder; the first of each stays."""

import hashlib
import json
from collections import Counter
from pathlib import Path

from corpus.shards import shard_files, write_sums
from speculoos.checksums import file_sha256
from speculoos.files import new_path


def remove_duplicates(folder: Path) -> Counter[str]:
    """{shard: removed rows} of the changed shards, which are rewritten with their checksums. Memory: a few dozen bytes
    per row, and the lines of one shard."""
    seen: set[bytes] = set()
    removed: Counter[str] = Counter()
    for file in shard_files(folder):
        lines = [line for line in file.read_bytes().splitlines(keepends=True) if line.strip()]
        first = [line for line in lines if _is_new(line, seen)]
        if len(first) < len(lines):
            with new_path(file) as temporary, open(temporary, "wb") as out:
                out.writelines(first)
            removed[file.name] = len(lines) - len(first)
    if removed:
        write_sums(folder, {name: file_sha256(folder / name) for name in removed}, more=True)
    return removed


def _is_new(line: bytes, seen: set[bytes]) -> bool:
    """Whether the row's messages are not in `seen`; adds them."""
    messages = json.dumps(json.loads(line)["messages"], sort_keys=True).encode()
    digest = hashlib.blake2b(messages, digest_size=16).digest()
    new = digest not in seen
    seen.add(digest)
    return new

"""Conversations that are equal word for word, taken out of a data set's folder: of each the first stays."""

import hashlib
import json
from collections import Counter
from pathlib import Path

from corpus.shards import shard_files, write_sums
from speculoos.files import new_path
from speculoos.sums import file_sha256


def remove_duplicates(folder: Path) -> Counter[str]:
    """{shard: rows taken out of it}, of the shards that had any; those are written anew, with their sums. Holds a few
    dozen bytes a row and one shard's lines."""
    seen: set[bytes] = set()
    taken: Counter[str] = Counter()
    for file in shard_files(folder):
        lines = [line for line in file.read_bytes().splitlines(keepends=True) if line.strip()]
        first = [line for line in lines if _is_new(line, seen)]
        if len(first) < len(lines):
            with new_path(file) as temporary, open(temporary, "wb") as out:
                out.writelines(first)
            taken[file.name] = len(lines) - len(first)
    if taken:
        write_sums(folder, {name: file_sha256(folder / name) for name in taken}, more=True)
    return taken


def _is_new(line: bytes, seen: set[bytes]) -> bool:
    """Whether the messages of this row were not seen before; they are from now on."""
    said = json.dumps(json.loads(line)["messages"], sort_keys=True).encode()
    digest = hashlib.blake2b(said, digest_size=16).digest()
    new = digest not in seen
    seen.add(digest)
    return new

"""The files of a dataset folder: numbered JSONL shards, written atomically, their SHA256SUMS, and `dataset.json`.

Rows may be written in any order; finished rows are identified by id, so an interrupted generation can continue.
"""

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from models.damage import check_dataset
from models.identity import read_json
from speculoos.checksums import CHECKSUM_FILE, file_sha256, find_changed_files, format_checksums, read_checksums
from speculoos.errors import BadInput, Damaged, NotFound
from speculoos.files import new_file, write_json

ROWS_PER_SHARD = 2000
SUMMARY = "dataset.json"
MAX_COUNTED_ROWS = 100_000
"""Maximum rows whose length is counted: enough for the distribution, and fast for millions of rows."""
log = logging.getLogger(__name__)


class ShardWriter:
    """Collects rows and writes a shard after `rows` rows or `seconds` since the last shard.

    A context manager: pending rows are written on exit, also after an error. Existing shards are kept, and rows with an
    existing id are skipped. In an unfinished dataset, shards with a wrong checksum are removed, so that their rows are
    generated again.
    """

    def __init__(self, folder: str | Path, rows: int = ROWS_PER_SHARD, seconds: float = float("inf")):
        self.folder, self.rows, self.seconds = Path(folder), rows, seconds
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checksums = _undamaged_shards(self.folder)
        self.done = done_ids(self.folder)
        self.pending: list[str] = []
        files = shard_files(self.folder)
        self.number = int(files[-1].stem.split("-")[1]) + 1 if files else 0
        self.last_flush = time.monotonic()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_error: object) -> None:
        self.flush()

    def add(self, row: dict[str, Any]) -> bool:
        """Add a row; False if a row with its id exists."""
        if row["id"] in self.done:
            return False
        self.done.add(row["id"])
        self.pending.append(json.dumps(row, ensure_ascii=False))
        if len(self.pending) >= self.rows or time.monotonic() - self.last_flush > self.seconds:
            self.flush()
        return True

    def flush(self) -> None:
        self.last_flush = time.monotonic()
        if not self.pending:
            return
        name, text = f"shard-{self.number:05d}.jsonl", "".join(line + "\n" for line in self.pending)
        with new_file(self.folder / name) as handle:
            handle.write(text)
        self.checksums[name] = hashlib.sha256(text.encode()).hexdigest()
        write_checksums(self.folder, self.checksums)
        self.number, self.pending = self.number + 1, []


def shard_files(folder: str | Path) -> list[Path]:
    """The shards of a dataset, in order."""
    return sorted(Path(folder).glob("shard-*.jsonl"))


def read_rows(folder: str | Path, limit: int | None = None, first: int = 0) -> Iterator[dict[str, Any]]:
    """At most `limit` rows of a dataset from index `first` on; earlier ones are not parsed. Raises NotFound for a
    folder without shards, Damaged when checksums or counts do not match, BadInput for a broken line."""
    for line in islice(read_lines(folder), first, None if limit is None else first + limit):
        yield _parsed(*line)


def read_lines(folder: str | Path) -> Iterator[tuple[Path, int, bytes]]:
    """(shard, 1-based line, bytes) of all rows, in order. Raises NotFound and Damaged like `read_rows`."""
    files = shard_files(folder)
    if not files:
        raise NotFound(f"{folder}: no dataset here (no shard-*.jsonl).")
    check_dataset(folder)
    for file in files:
        yield from _lines_of(file)


def count_rows(folder: str | Path) -> int:
    """Number of rows in all shards, without parsing them."""
    return sum(1 for file in shard_files(folder) for _ in _lines_of(file))


def done_ids(folder: str | Path) -> set[str]:
    """Ids of all rows in the folder."""
    return {_parsed(*line)["id"] for file in shard_files(folder) for line in _lines_of(file)}


def write_summary(folder: str | Path, **values: Any) -> dict[str, Any]:
    """Write `dataset.json`: `kind` (prompts or conversations), counts, and the checksums of base and tokenizer."""
    write_json(Path(folder) / SUMMARY, values)
    return values


def read_summary(folder: str | Path) -> dict[str, Any]:
    """The content of `dataset.json`, {} while the dataset is unfinished."""
    return read_json(Path(folder) / SUMMARY)


def _lines_of(file: Path) -> Iterator[tuple[Path, int, bytes]]:
    with open(file, "rb") as handle:
        yield from ((file, number, line) for number, line in enumerate(handle, 1) if line.strip())


def _parsed(file: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError:
        raise BadInput(f"{file.name}, line {number}: invalid JSON; delete this dataset and create it again.") from None


def _undamaged_shards(folder: Path) -> dict[str, str]:
    """{shard: sha256}; computed for shards without a recorded checksum (killed writer, earlier version)."""
    damaged = {} if (folder / SUMMARY).exists() else find_changed_files(folder)
    for name, problem in damaged.items():
        log.warning("%s %s: its rows are generated again", folder / name, problem)
        (folder / name).unlink(missing_ok=True)
    recorded = _recorded_checksums(folder)
    checksums = {path.name: recorded.get(path.name) or file_sha256(path) for path in shard_files(folder)}
    if checksums != recorded:
        write_checksums(folder, checksums)
    return checksums


def write_checksums(folder: Path, checksums: Mapping[str, str], keep_existing: bool = False) -> None:
    """Write SHA256SUMS from {file name: sha256}; with `keep_existing`, existing entries are kept."""
    recorded = _recorded_checksums(folder) if keep_existing else {}
    with new_file(folder / CHECKSUM_FILE) as handle:
        handle.write(format_checksums({**recorded, **checksums}))


def _recorded_checksums(folder: Path) -> dict[str, str]:
    try:
        return read_checksums(folder)
    except Damaged:
        return {}


def count_lengths(folder: str | Path) -> dict[str, Any]:
    """`lengths` ([max tokens, rows] by powers of two; empty if rows have no token ids) and `cut_answers`."""
    lengths, truncated = Counter[int](), 0
    for _, _, line in islice(read_lines(folder), MAX_COUNTED_ROWS):
        row = json.loads(line)
        truncated += list(row.get("finish") or ()).count("length")
        if ids := row.get("token_ids"):
            lengths[length_bucket(len(ids))] += 1
    return {"lengths": sorted(lengths.items()), "cut_answers": truncated}


def length_bucket(length: int) -> int:
    """The smallest power of two that is at least `length`, for histograms."""
    return 1 << max(length - 1, 0).bit_length()

"""The files of a data set folder: numbered shards of JSON lines, each written whole or not at all, and `dataset.json`.

Rows may come in any order; what is finished is known by row id, so generation goes on where it stopped.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.files import new_file, write_json
from models.identity import read_json
from speculoos.errors import BadInput, NotFound

ROWS_PER_SHARD = 2000
SUMMARY = "dataset.json"


class ShardWriter:
    """Collects rows and writes a shard when `rows` are there or `seconds` have passed since the last one.

    Use as a context manager: what is left is written on leaving, also after an error, so finished work is kept.
    A folder that has shards already is continued; a row whose id is there already is left out.
    """

    def __init__(self, folder: str | Path, rows: int = ROWS_PER_SHARD, seconds: float = float("inf")):
        self.folder, self.rows, self.seconds = Path(folder), rows, seconds
        self.folder.mkdir(parents=True, exist_ok=True)
        self.done = done_ids(self.folder)
        self.pending: list[str] = []
        self.number = _next_number(self.folder)
        self.last = time.monotonic()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_error: object) -> None:
        self.flush()

    def add(self, row: dict[str, Any]) -> bool:
        """Take a row; False when one with its id was taken before."""
        if row["id"] in self.done:
            return False
        self.done.add(row["id"])
        self.pending.append(json.dumps(row, ensure_ascii=False))
        if len(self.pending) >= self.rows or time.monotonic() - self.last > self.seconds:
            self.flush()
        return True

    def flush(self) -> None:
        """Write what is pending as one shard."""
        self.last = time.monotonic()
        if not self.pending:
            return
        with new_file(self.folder / f"shard-{self.number:05d}.jsonl") as handle:
            handle.writelines(line + "\n" for line in self.pending)
        self.number, self.pending = self.number + 1, []


def shard_files(folder: str | Path) -> list[Path]:
    """The shards of a data set, in order."""
    return sorted(Path(folder).glob("shard-*.jsonl"))


def read_rows(folder: str | Path, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Rows of a data set, at most `limit`. Raises NotFound for a folder without shards, BadInput for a broken line."""
    files = shard_files(folder)
    if not files:
        raise NotFound(f"{folder}: no data set here (no shard-*.jsonl).")
    taken = 0
    for file in files:
        for row in _rows_of(file):
            if limit is not None and taken >= limit:
                return
            taken += 1
            yield row


def count_rows(folder: str | Path) -> int:
    """Rows in all shards, without parsing them."""
    return sum(_count(file) for file in shard_files(folder))


def done_ids(folder: str | Path) -> set[str]:
    """Ids of the rows that are in the folder already."""
    return {row["id"] for file in shard_files(folder) for row in _rows_of(file)}


def write_summary(folder: str | Path, **values: Any) -> dict[str, Any]:
    """Write `dataset.json`: `kind` (prompts or conversations), counts, and whose tokens they are."""
    write_json(Path(folder) / SUMMARY, values)
    return values


def read_summary(folder: str | Path) -> dict[str, Any]:
    """`dataset.json`, {} while the data set is not finished."""
    return read_json(Path(folder) / SUMMARY)


def _rows_of(file: Path) -> Iterator[dict[str, Any]]:
    with open(file, encoding="utf-8") as handle:
        for number, line in enumerate(handle, 1):
            try:
                yield json.loads(line)
            except ValueError:
                raise BadInput(f"{file.name}, line {number}: broken; remove this data set and make it again.") from None


def _count(file: Path) -> int:
    with open(file, "rb") as handle:
        return sum(1 for line in handle if line.strip())


def _next_number(folder: Path) -> int:
    files = shard_files(folder)
    return int(files[-1].stem.removeprefix("shard-")) + 1 if files else 0

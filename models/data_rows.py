"""Read rows of a dataset: a few at a time from its shards, and the loss masks of the first rows from `preview.json` if
a job wrote one.

Reads bounded amounts of JSON and needs no tokenizer. Missing or broken files give no rows.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LONGEST_LINE = 1 << 21
LONGEST_FILE = 1 << 25
ROWS = 8
MOST_READ = 64 << 20
"""Maximum number of bytes read per request; a search with too few results continues from there."""


@dataclass(frozen=True)
class PreviewRows:
    """Some rows, and the position after them (`shard:byte`, "" at the end). `whole` is False if MOST_READ ended the
    search."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    next: str = ""
    whole: bool = True


def masked_rows(folder: str | Path) -> dict[str, dict[str, Any]]:
    """id → row as {"pieces": [{"text", "in_loss"}], "tokens", "loss_tokens", "mask_source", "problem"}."""
    path = Path(folder) / "preview.json"
    try:
        if path.stat().st_size > LONGEST_FILE:
            return {}
        rows = json.loads(path.read_text(encoding="utf-8")).get("rows", [])
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return {str(row["id"]): row for row in rows if isinstance(row, dict) and row.get("id")}


def rows_from(folder: str | Path, position: str = "", search: str = "", count: int = ROWS) -> PreviewRows:
    """Up to `count` rows with `messages` from `position` on that contain all words of `search`."""
    rows: list[dict[str, Any]] = []
    words = search.casefold().split()
    shard, start = _parse_position(position)
    read, after = 0, ""
    for number, offset, line in _lines(folder, shard, start):
        if len(rows) == count or read > MOST_READ:
            return PreviewRows(rows, after, len(rows) == count)
        read, after = read + len(line), f"{number}:{offset}"
        if row := _row(line, words):
            rows.append(row)
    return PreviewRows(rows)


def _lines(folder: str | Path, shard: int, start: int) -> Iterator[tuple[int, int, bytes]]:
    """(shard, byte position after the line, bytes) of each line from a position on."""
    for number, path in enumerate(sorted(Path(folder).glob("shard-*.jsonl"))):
        if number < shard:
            continue
        try:
            with path.open("rb") as handle:
                handle.seek(start if number == shard else 0)
                while line := handle.readline(LONGEST_LINE):
                    yield number, handle.tell(), line
        except OSError:
            return


def _row(line: bytes, words: list[str]) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
        return None
    contents = (m.get("content") for m in row["messages"] if isinstance(m, dict))
    text = "\n".join([str(row.get("id", "")), str(row.get("category", "")), *map(str, contents)]).casefold()
    return row if all(word in text for word in words) else None


def _parse_position(text: str) -> tuple[int, int]:
    """(shard, byte) of `shard:byte`; (0, 0) for an invalid position."""
    shard, _, start = text.partition(":")
    digits = all(part.isascii() and part.isdigit() and len(part) < 19 for part in (shard, start))
    return (int(shard), int(start)) if digits else (0, 0)

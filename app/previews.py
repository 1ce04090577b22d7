"""The first rows of a data set for its page: from `preview.json` where a job made one, else from the shards themselves.

Reads bounded amounts of JSON; knows no tokenizer. Files that are missing or broken give an empty list.
"""

import json
from itertools import islice
from pathlib import Path
from typing import Any

LONGEST_LINE = 1 << 21
LONGEST_FILE = 1 << 25
ROWS = 8


def masked_rows(folder: str | Path) -> list[dict[str, Any]]:
    """Rows as {"pieces": [{"text", "in_loss"}], "tokens", "loss_tokens", "mask_source", "problem"}."""
    path = Path(folder) / "preview.json"
    try:
        if path.stat().st_size > LONGEST_FILE:
            return []
        rows = json.loads(path.read_text(encoding="utf-8")).get("rows", [])
    except (OSError, ValueError, AttributeError):
        return []
    return [row for row in rows if isinstance(row, dict)][:ROWS]


def message_rows(folder: str | Path, count: int = ROWS) -> list[dict[str, Any]]:
    """The first rows of the shards, each with `messages`."""
    rows: list[dict[str, Any]] = []
    for shard in sorted(Path(folder).glob("shard-*.jsonl")):
        rows += _rows(shard, count - len(rows))
        if len(rows) >= count:
            break
    return rows


def _rows(shard: Path, count: int) -> list[dict[str, Any]]:
    try:
        with shard.open(encoding="utf-8") as handle:
            lines = [line for line in islice(iter(lambda: handle.readline(LONGEST_LINE), ""), count)]
        rows = [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("messages"), list)]

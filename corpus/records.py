"""What a reader gives: a record with the line it came from, or why there is none."""

from dataclasses import dataclass
from typing import Any

MAX_ROW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """One record: `line` is 1-based (the row number in parquet), `value` what the file holds there."""

    line: int
    value: Any


@dataclass(frozen=True, slots=True)
class Broken:
    """A record that could not be read, and why."""

    line: int
    reason: str

"""Results of the file readers: a record with its line, or an error."""

from dataclasses import dataclass
from typing import Any

MAX_ROW_BYTES = 1 << 20


def too_long() -> str:
    """The reason for a record longer than MAX_ROW_BYTES."""
    return f"longer than {MAX_ROW_BYTES >> 20} MiB"


@dataclass(frozen=True, slots=True)
class Record:
    """One record: 1-based `line` (the row number in parquet) and parsed `value`. `part` numbers the records of one
    line, since JSON arrays are often written without line breaks."""

    line: int
    value: Any
    part: int = 0


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """An unreadable record and the reason."""

    line: int
    reason: str

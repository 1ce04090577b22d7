"""What a reader gives: a record with the line it came from, or why there is none."""

from dataclasses import dataclass
from typing import Any

MAX_ROW_BYTES = 1 << 20


def too_long() -> str:
    """The reason of a record that is longer than MAX_ROW_BYTES."""
    return f"longer than {MAX_ROW_BYTES >> 20} MiB"


@dataclass(frozen=True, slots=True)
class Record:
    """One record: `line` is 1-based (the row number in parquet), `value` what the file holds there.

    `part` tells records of one line apart: an array is often written without any line break.
    """

    line: int
    value: Any
    part: int = 0


@dataclass(frozen=True, slots=True)
class Broken:
    """A record that could not be read, and why."""

    line: int
    reason: str

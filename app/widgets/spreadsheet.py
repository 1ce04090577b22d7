"""Tables taken away as CSV, which a spreadsheet may open."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet, unless an apostrophe stands before it."""


def as_csv(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """The records as CSV, with a head. A text that a spreadsheet would run as a formula has an apostrophe before it."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([harmless(column) for column in columns])
    writer.writerows([[harmless(record.get(column)) for column in columns] for record in records])
    return out.getvalue()


def harmless(value: Any) -> Any:
    """A text that no spreadsheet obeys; other values as they are."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value

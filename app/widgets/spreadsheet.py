"""Tables as CSV that is safe to open in a spreadsheet."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheets run a text that starts with one of these as a formula, unless an apostrophe precedes it."""


def as_csv(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """The records as CSV with a header row. Texts that a spreadsheet would run as formulas get an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([escape_formula(column) for column in columns])
    writer.writerows([[escape_formula(record.get(column)) for column in columns] for record in records])
    return out.getvalue()


def escape_formula(value: Any) -> Any:
    """`value`, with an apostrophe before a text that a spreadsheet would run as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value

"""The first rows of a file as an import would read them, and the columns it has. For a limited child
(speculoos.limited): foreign files are read here before anybody asked for the import."""

from itertools import islice
from pathlib import Path
from typing import Any

from corpus import answered, prompts
from corpus.answered import ANSWERED_FIELDS
from corpus.mapping import mapped_rows
from corpus.readers import read_records
from corpus.records import Broken
from corpus.rows import BadRow
from corpus.shapes import FIELDS

LONGEST = 2_000
"""Characters of a message that are shown."""
COLUMNS = 60
ROWS = 5
SEARCHED = 10_000


def look(path: str, with_answers: bool, mapping: dict[str, str]) -> dict[str, Any]:
    """{"columns": names, "rows": [{"line", "messages"} or {"line", "reason"}]} of the first rows.

    Raises BadInput where the file cannot be read at all.
    """
    parse, fields = (answered.parse, ANSWERED_FIELDS) if with_answers else (prompts.parse, FIELDS)
    read = islice(mapped_rows(Path(path), parse, fields, mapping, max_rows=10**9), ROWS)
    return {"columns": columns(path), "rows": [_shown(row) for row in read]}


def nothing_kept(path: str, with_answers: bool, mapping: dict[str, str]) -> str:
    """Why an import would drop every row of a file: what is wrong with the first; "" where it keeps one. Of a longer
    file the first SEARCHED rows count.

    Raises BadInput where the file cannot be read at all.
    """
    parse, fields = (answered.parse, ANSWERED_FIELDS) if with_answers else (prompts.parse, FIELDS)
    first = None
    for row in islice(mapped_rows(Path(path), parse, fields, mapping, max_rows=10**9), SEARCHED):
        if not isinstance(row, BadRow):
            return ""
        first = first or row
    return f"line {first.line}: {first.reason}" if first else ""


def columns(path: str) -> list[str]:
    """Names of the fields of the first records, as they are written there, in the order in which they come."""
    names: dict[str, None] = {}
    for record in islice(read_records(path), ROWS):
        if not isinstance(record, Broken) and isinstance(record.value, dict):
            names |= dict.fromkeys(str(name)[:200] for name in record.value)
    return list(names)[:COLUMNS]


def _shown(row: Any) -> dict[str, Any]:
    if isinstance(row, BadRow):
        return {"line": row.line, "reason": row.reason}
    messages = [{"role": m["role"], "content": m["content"][:LONGEST]} for m in _with_references(row)]
    return {"line": row.line, "messages": messages, "category": row.category}


def _with_references(row: Any) -> list[dict[str, Any]]:
    """Of a prompt, the answers that came along after the turns they answer."""
    given = list(getattr(row, "reference", ()))
    found: list[dict[str, Any]] = []
    for message in row.messages:
        found.append(message)
        if message["role"] == "user" and given and (text := given.pop(0)):
            found.append({"role": "reference", "content": text})
    return found

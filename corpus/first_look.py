"""Preview of an import: the first rows and the columns of a file. Runs in a child process with limits
(speculoos.limited), since it reads untrusted files."""

from itertools import islice
from pathlib import Path
from typing import Any

from corpus import answered, prompts
from corpus.answered import ANSWERED_FIELDS
from corpus.mapping import mapped_rows
from corpus.readers import read_records
from corpus.records import UnreadableRecord
from corpus.rows import BadRow
from corpus.shapes import FIELDS

LONGEST = 2_000
"""Maximum characters of a message that are shown."""
COLUMNS = 60
ROWS = 5
SEARCHED = 10_000


def look(path: str, with_answers: bool, mapping: dict[str, str]) -> dict[str, Any]:
    """{"columns": names, "rows": [{"line", "messages"} or {"line", "reason"}]} of the first rows. Raises BadInput when
    the file cannot be read."""
    parse, fields = (answered.parse_answered, ANSWERED_FIELDS) if with_answers else (prompts.parse_prompt, FIELDS)
    read = islice(mapped_rows(Path(path), parse, fields, mapping, max_rows=10**9), ROWS)
    return {"columns": columns(path), "rows": [_display(row) for row in read]}


def nothing_kept(path: str, with_answers: bool, mapping: dict[str, str]) -> str:
    """The reason why an import would drop all rows (of the first SEARCHED ones): the error of the first row; "" if any
    row is good. Raises BadInput when the file cannot be read."""
    parse, fields = (answered.parse_answered, ANSWERED_FIELDS) if with_answers else (prompts.parse_prompt, FIELDS)
    first = None
    for row in islice(mapped_rows(Path(path), parse, fields, mapping, max_rows=10**9), SEARCHED):
        if not isinstance(row, BadRow):
            return ""
        first = first or row
    return f"line {first.line}: {first.reason}" if first else ""


def columns(path: str) -> list[str]:
    """Field names of the first records, unchanged and in order of appearance."""
    names: dict[str, None] = {}
    for record in islice(read_records(path), ROWS):
        if not isinstance(record, UnreadableRecord) and isinstance(record.value, dict):
            names |= dict.fromkeys(str(name)[:200] for name in record.value)
    return list(names)[:COLUMNS]


def _display(row: Any) -> dict[str, Any]:
    if isinstance(row, BadRow):
        return {"line": row.line, "reason": row.reason}
    messages = [{"role": m["role"], "content": m["content"][:LONGEST]} for m in _with_references(row)]
    return {"line": row.line, "messages": messages, "category": row.category}


def _with_references(row: Any) -> list[dict[str, Any]]:
    """The row's messages, with reference answers after the user turns they belong to."""
    references = list(getattr(row, "reference", ()))
    messages: list[dict[str, Any]] = []
    for message in row.messages:
        messages.append(message)
        if message["role"] == "user" and references and (text := references.pop(0)):
            messages.append({"role": "reference", "content": text})
    return messages

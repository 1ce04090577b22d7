"""Fields that a file calls otherwise: which of its columns is the prompt, the answer, the list of messages.

What is mapped decides: of the record's own fields only labels are kept beside it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from corpus.fields import BadRecord, filled
from corpus.rows import DEFAULT_MAX_ROWS, Files, parsed_rows
from corpus.shapes import record_of
from speculoos.errors import BadInput

READ_AS = {
    "prompt": "prompt",
    "answer": "output",
    "messages": "messages",
    "system": "system",
    "category": "category",
}
"""What a column may be said to be, and the field it is then read as (`corpus.shapes`)."""
LABELS = (
    *("category", "id", "question_id", "conversation_id", "dataset", "source", "system"),
    *("tools", "truncated", "finish", "finish_reason"),
)
Parse = Callable[[int, Any], Any]


def check_mapping(mapping: Mapping[str, str]) -> dict[str, str]:
    """What it is → the column, in lower case. Raises BadInput for what cannot be read so."""
    if unknown := [name for name in mapping if name not in READ_AS]:
        raise BadInput(f"Fields: {unknown[0]!r} is none of {', '.join(READ_AS)}.")
    found = {name: str(column).strip().lower() for name, column in mapping.items() if str(column).strip()}
    if found and not ({"prompt", "messages"} & set(found)):
        raise BadInput("Fields: say which one holds the prompt, or the messages.")
    return found


def parse_mapping(pairs: Iterable[str]) -> dict[str, str]:
    """`["prompt=Frage", …]` as a mapping. Raises BadInput."""
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if bad := next((name for name, column in found.items() if not column.strip()), None):
        raise BadInput(f"--field {bad}: expected NAME=COLUMN, such as prompt=text.")
    return check_mapping(found)


def mapped_rows(
    files: Files,
    parse: Parse,
    fields: Collection[str],
    mapping: Mapping[str, str] | None = None,
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
) -> Iterator[Any]:
    """As `corpus.rows.parsed_rows`, of files that call their fields as `mapping` says."""
    if not (known := check_mapping(mapping or {})):
        return parsed_rows(files, parse, fields, limit, max_rows)

    def parse_renamed(line: int, value: Any) -> Any:
        return parse(line, renamed(record_of(value), known))

    return parsed_rows(files, parse_renamed, {*fields, *known.values()}, limit, max_rows)


def renamed(record: Mapping[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    """The record as `corpus.shapes` knows it. Raises BadRecord where it has none of the columns that count."""
    said = {READ_AS[name]: record[column] for name, column in mapping.items() if filled(record.get(column))}
    if not {"prompt", "messages"} & set(said):
        columns = " and ".join(repr(mapping[name]) for name in ("prompt", "messages") if name in mapping)
        raise BadRecord(f"no prompt: {columns} is missing or empty")
    return {name: record[name] for name in LABELS if name in record} | said

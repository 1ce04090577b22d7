"""Column mappings: which columns of a file are the prompt, the answer, the list of messages.

With a mapping, all other fields of a record except labels are ignored.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from corpus.fields import BadRecord, is_filled
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
"""{role of a column in a mapping: field it is read as (`corpus.shapes`)}."""
LABELS = (
    *("category", "id", "question_id", "conversation_id", "dataset", "source", "system"),
    *("tools", "truncated", "finish", "finish_reason"),
)
Parse = Callable[[int, Any], Any]


def check_mapping(mapping: Mapping[str, str]) -> dict[str, str]:
    """{role: column in lower case}. Raises BadInput for an invalid mapping."""
    if unknown := [name for name in mapping if name not in READ_AS]:
        raise BadInput(f"Fields: {unknown[0]!r} is none of {', '.join(READ_AS)}.")
    columns = {name: str(column).strip().lower() for name, column in mapping.items() if str(column).strip()}
    if columns and not ({"prompt", "messages"} & set(columns)):
        raise BadInput("Fields: say which one holds the prompt, or the messages.")
    return columns


def parse_mapping(pairs: Iterable[str]) -> dict[str, str]:
    """`["prompt=Frage", …]` as a mapping. Raises BadInput."""
    columns = dict(pair.partition("=")[::2] for pair in pairs)
    if bad := next((name for name, column in columns.items() if not column.strip()), None):
        raise BadInput(f"--field {bad}: expected NAME=COLUMN, such as prompt=text.")
    return check_mapping(columns)


def mapped_rows(
    files: Files,
    parse: Parse,
    fields: Collection[str],
    mapping: Mapping[str, str] | None = None,
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
) -> Iterator[Any]:
    """`corpus.rows.parsed_rows` with columns renamed according to `mapping`."""
    if not (renames := check_mapping(mapping or {})):
        return parsed_rows(files, parse, fields, limit, max_rows)

    def parse_renamed(line: int, value: Any) -> Any:
        return parse(line, renamed(record_of(value), renames))

    return parsed_rows(files, parse_renamed, {*fields, *renames.values()}, limit, max_rows)


def renamed(record: Mapping[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    """The record with fields named as in `corpus.shapes`. Raises BadRecord without a prompt or messages column."""
    mapped = {READ_AS[name]: record[column] for name, column in mapping.items() if is_filled(record.get(column))}
    if not {"prompt", "messages"} & set(mapped):
        columns = " and ".join(repr(mapping[name]) for name in ("prompt", "messages") if name in mapping)
        raise BadRecord(f"no prompt: {columns} is missing or empty")
    return {name: record[name] for name in LABELS if name in record} | mapped

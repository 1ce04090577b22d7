"""From the records of files to rows, good or bad, in order: common formats of conversations, and column mappings.

| key | format |
| --- | --- |
| `conversations`, `conversation`, `messages` | list of {from, value} or {role, content}; roles in any case |
| `turns` | list of user turns (MT-Bench); `reference` lists the answers |
| `instruction` (+ `input`, `output`) | Alpaca |
| `prompt`, `question` | a text, a list of texts, or a list of messages |
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corpus.readers import MAX_ROW_BYTES, Records, UnreadableRecord, read_records, too_long
from speculoos.errors import BadInput

Files = str | Path | Iterable[Path]
"""One file, or several that are read in order; an iterable is consumed lazily."""
Message = dict[str, Any]
MessageReader = Callable[[Any, str], Message]
"""(item of a list of messages, its path for errors) → {"role", "content", …}; raises BadRecord."""
DEFAULT_MAX_ROWS = 1_000_000
MAX_TURNS = 200
MAX_FIELD_CHARS = 200
"""Maximum characters of a category and of origin fields."""
ANSWER_KEYS = ("output", "response", "answer", "completion", "reference", "chosen")
ORIGIN_KEYS = ("id", "question_id", "conversation_id", "dataset", "source")
FIELDS = frozenset(
    (
        *("conversations", "conversation", "messages", "turns", "instruction", "input", "prompt", "question"),
        *("system", "category", *ORIGIN_KEYS, *ANSWER_KEYS),
    )
)
"""All keys that are used, in lower case; other columns are not read."""
READ_AS = {
    "prompt": "prompt",
    "answer": "output",
    "messages": "messages",
    "system": "system",
    "category": "category",
}
"""{role of a column in a mapping: field it is read as}."""
UNMAPPED_FIELDS = ("category", *ORIGIN_KEYS, "system", "tools", "truncated", "finish", "finish_reason")
"""Fields that are also read with a mapping; all others are ignored then."""
TYPES = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


class BadRecord(Exception):
    """The record is unusable; the message is the reason."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """An omitted row: its line and the reason."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """A prompt, with `reference` answers ("" if none) to its user turns, or an answered conversation, with the `finish`
    of each answer, "length" (truncated) or "stop", and its tokens once it is tokenized."""

    line: int
    messages: list[Message]
    category: str = ""
    source: dict[str, Any] = field(default_factory=dict)
    reference: list[str] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    loss_spans: list[tuple[int, int]] = field(default_factory=list)
    mask_source: str = ""

    @property
    def cut(self) -> int:
        """Number of truncated answers."""
        return self.finish.count("length")

    def to_json(self) -> dict[str, Any]:
        optional = {
            "finish": self.finish,
            "tools": self.tools,
            "category": self.category,
            "reference": self.reference,
            "source": {"line": self.line, **self.source},
            "token_ids": self.token_ids,
            "loss_spans": self.loss_spans,
        }
        row = {"id": row_id(self.line), "messages": self.messages}
        return row | {key: value for key, value in optional.items() if value}


def row_id(line: int) -> str:
    """A row's id in its dataset."""
    return f"line-{line:07d}"


def parsed_rows(
    files: Files,
    parse: Callable[[int, Any], Any],
    fields: Collection[str],
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
    mapping: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """`parse(line, record)` of every record, or a BadRow; stops after `limit` good rows. Line numbers continue across
    files. With a `mapping`, columns are renamed according to it.

    `parse` raises BadRecord for an unusable record; of columnar files only `fields` are read. Raises BadInput when a
    file is unreadable, or for more than `max_rows` rows without a `limit`.
    """
    good, renames = 0, check_mapping(mapping or {})
    for count, record in enumerate(_records(files, {*fields, *renames.values()}), 1):
        if limit is not None and good >= limit:
            return
        if count > max_rows:
            subject = f"{Path(files).name}: has" if isinstance(files, str | Path) else "The files have"
            raise BadInput(
                f"{subject} more than {max_rows:,} rows; set a limit, or raise what may be read from one file "
                "(SPECULOOS_MAX_ROWS)."
            )
        if isinstance(record, UnreadableRecord):
            yield BadRow(record.line, record.reason)
            continue
        try:
            value = record_of(record.value)
            yield parse(record.line, renamed(value, renames) if renames else value)
            good += 1
        except BadRecord as bad:
            yield BadRow(record.line, str(bad))


def _records(files: Files, fields: Collection[str]) -> Records:
    if isinstance(files, str | Path):
        yield from read_records(files, fields)
        return
    offset = 0
    for path in files:
        last = offset
        for record in read_records(path, fields):
            last = offset + record.line
            yield replace(record, line=last)
        offset = last


def check_mapping(mapping: Mapping[str, str]) -> dict[str, str]:
    """{role: column in lower case}. Raises BadInput for an invalid mapping."""
    if unknown := [name for name in mapping if name not in READ_AS]:
        raise BadInput(f"Fields: {unknown[0]!r} is none of {', '.join(READ_AS)}.")
    columns = {name: str(column).strip().lower() for name, column in mapping.items() if str(column).strip()}
    if columns and not ({"prompt", "messages"} & set(columns)):
        raise BadInput("Fields: choose the column of the prompt or of the messages.")
    return columns


def parse_mapping(pairs: Iterable[str]) -> dict[str, str]:
    """`["prompt=Frage", …]` as a mapping. Raises BadInput."""
    columns = dict(pair.partition("=")[::2] for pair in pairs)
    if bad := next((name for name, column in columns.items() if not column.strip()), None):
        raise BadInput(f"--field {bad}: expected NAME=COLUMN, such as prompt=text.")
    return check_mapping(columns)


def renamed(record: Mapping[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    """The record with its fields under our names. Raises BadRecord without a prompt or messages column."""
    mapped = {READ_AS[name]: record[column] for name, column in mapping.items() if is_filled(record.get(column))}
    if not {"prompt", "messages"} & set(mapped):
        columns = " and ".join(repr(mapping[name]) for name in ("prompt", "messages") if name in mapping)
        raise BadRecord(f"no prompt: {columns} is missing or empty")
    return {name: record[name] for name in UNMAPPED_FIELDS if name in record} | mapped


def record_of(value: Any) -> dict[str, Any]:
    """A record with its keys in lower case; a plain text is a prompt. Raises BadRecord for other values."""
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise BadRecord(f"expected an object, found {kind_of(value)}")
    return {str(key).strip().lower(): item for key, item in value.items()}


def messages_of(record: dict[str, Any], read: MessageReader) -> list[Message]:
    """The record's messages as [{"role", "content", …}, …]. Raises BadRecord when there are none."""
    for key in ("conversations", "conversation", "messages"):
        if is_filled(record.get(key)):
            return _chat(list_of(record[key], key), key, read)
    if is_filled(record.get("turns")):
        return _turns(list_of(record["turns"], "turns"), record, read)
    if is_filled(record.get("instruction")):
        text = text_of(record["instruction"], "instruction")
        if is_filled(record.get("input")):
            text = f"{text}\n\n{text_of(record['input'], 'input')}"
        return _question(text, record)
    for key in ("prompt", "question"):
        if is_filled(value := record.get(key)):
            return _turns(value, record, read) if isinstance(value, list) else _question(text_of(value, key), record)
    raise BadRecord("no prompt: conversations, messages, turns, instruction, prompt and question are missing or empty")


def _chat(items: list[Any], key: str, read: MessageReader) -> list[Message]:
    return [read(item, f"{key}[{number}]") for number, item in enumerate(items)]


def _turns(items: list[Any], record: dict[str, Any], read: MessageReader) -> list[Message]:
    if items and isinstance(items[0], dict):
        return _chat(items, "turns", read)
    answers = record.get("reference")
    answers = answers if isinstance(answers, list) else []
    messages = []
    for number, item in enumerate(items):
        messages.append({"role": "user", "content": text_of(item, f"turns[{number}]")})
        if number < len(answers) and isinstance(answers[number], str):
            messages.append({"role": "assistant", "content": answers[number]})
    return messages


def _question(text: str, record: dict[str, Any]) -> list[Message]:
    answer = next((record[key] for key in ANSWER_KEYS if isinstance(record.get(key), str) and record[key]), None)
    return [{"role": "user", "content": text}, *([{"role": "assistant", "content": answer}] if answer else [])]


def checked(row: ImportedRow) -> ImportedRow:
    """The row. Raises BadRecord if it has too many turns, is too long, or cannot be written as UTF-8 JSON. Prompts are
    checked by `text_of`, with the field."""
    turns = sum(message["role"] == "user" for message in row.messages)
    if turns > MAX_TURNS:
        raise BadRecord(f"{turns} user turns; at most {MAX_TURNS} are allowed")
    texts = (message["content"] + message.get("reasoning_content", "") for message in row.messages)
    if sum(map(len, (*texts, *row.reference))) > MAX_ROW_BYTES:
        raise BadRecord(too_long())
    try:
        json.dumps(row.to_json(), ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise BadRecord("an answer, the category or the origin contains an unpaired surrogate") from None
    except RecursionError:
        raise BadRecord("nested too deeply") from None
    return row


def text_of(value: Any, where: str) -> str:
    """A text, or the joined texts of a list of parts."""
    if isinstance(value, list):
        value = "".join(_part(part, where) for part in value)
    if not isinstance(value, str):
        raise BadRecord(f"{where}: expected text, found {kind_of(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRecord(f"{where}: contains an unpaired surrogate") from None
    return value


def _part(part: Any, where: str) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return part["text"]
    raise BadRecord(f"{where}: only text parts can be used, found {kind_of(part)}")


def list_of(value: Any, key: str) -> list[Any]:
    """A list, or its JSON text, as in CSV cells; any other text becomes one user message."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"{key}: invalid JSON in this cell ({type(error).__name__})") from None
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise BadRecord(f"{key}: expected a list, found {kind_of(value)}")
    return value


def category_of(record: dict[str, Any]) -> str:
    """The category by which figures are grouped, "" if none."""
    return str(record["category"])[:MAX_FIELD_CHARS] if is_filled(record.get("category")) else ""


def origin_of(record: dict[str, Any]) -> dict[str, Any]:
    """The origin of a row: its own id and dataset, if present."""
    origin = {k: record[k] for k in ORIGIN_KEYS if isinstance(record.get(k), str | int) and is_filled(record[k])}
    return {k: value[:MAX_FIELD_CHARS] if isinstance(value, str) else value for k, value in origin.items()}


def is_filled(value: Any) -> bool:
    """Whether a field is neither None nor an empty text or list."""
    return value is not None and value != "" and value != []


def kind_of(value: Any) -> str:
    """The type of a JSON value, for error messages."""
    return TYPES.get(type(value), "nothing" if value is None else type(value).__name__)

"""Read recorded prompts and outputs of a model, to evaluate drafts without running it. Supported sources:

- A dataset folder: conversations, with their `token_ids` and `loss_spans` if present.
- JSONL, JSON, CSV, parquet: conversations, or prompt and answer (`corpus.answered`).

A record may have `prompt_ids`, `token_ids` (of the output) and `raw` (the prompt is plain text to continue, not a
chat).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from corpus.answered import ANSWERED_FIELDS, parse_answered
from corpus.rows import BadRecord, BadRow, Message, is_filled, parsed_rows, row_id, text_of
from corpus.shards import read_rows

RECORDING_FIELDS = ANSWERED_FIELDS | {"prompt_ids", "token_ids", "raw"}
MAX_ID = 1 << 31


@dataclass(frozen=True, slots=True)
class Recording:
    """One output. `messages` are the prompt (for `raw`, a single user turn with the text); ids are None if not
    recorded."""

    id: str
    messages: list[Message]
    output: str = ""
    prompt_ids: list[int] | None = None
    token_ids: list[int] | None = None
    finish: str = "length"
    raw: bool = False

    @property
    def prompt(self) -> str:
        """The last user message."""
        return next((m["content"] for m in reversed(self.messages) if m["role"] == "user"), "")


def read_recordings(path: str | Path, limit: int | None = None, raw: bool = False) -> Iterator[Recording | BadRow]:
    """The recordings of a file or dataset folder, at most `limit`, and the bad rows; `raw`: continue all prompts as
    plain text. Raises BadInput for an unreadable file."""
    path = Path(path)
    if path.is_dir():
        return islice((r for row in read_rows(path) for r in _of_row(row)), limit)
    return parsed_rows(path, lambda line, record: _record(line, record, raw), RECORDING_FIELDS, limit)


def _record(line: int, record: dict[str, Any], raw: bool) -> Recording:
    messages, output, finish = _messages_and_output(line, record)
    prompt_ids, ids = _ids(record, "prompt_ids"), _ids(record, "token_ids")
    name = str(record.get("id") or row_id(line))[:200]
    return Recording(name, messages, output, prompt_ids, ids, finish, raw or record.get("raw") is True)


def _messages_and_output(line: int, record: dict[str, Any]) -> tuple[list[Message], str, str]:
    """(prompt messages, output, finish reason); token ids may replace either text."""
    try:
        row = parse_answered(line, record)
    except BadRecord:
        if not is_filled(record.get("token_ids")):
            raise
        if not is_filled(record.get("prompt")) and not is_filled(record.get("prompt_ids")):
            raise BadRecord("token_ids without a prompt or prompt_ids") from None
        return [{"role": "user", "content": text_of(record.get("prompt") or "", "prompt")}], "", "length"
    return row.messages[:-1], row.messages[-1]["content"], row.finish[-1]


def _ids(record: dict[str, Any], key: str) -> list[int] | None:
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not value or any(type(i) is not int or not 0 <= i < MAX_ID for i in value):
        raise BadRecord(f"{key}: expected a list of token ids")
    return value


def _of_row(row: dict[str, Any]) -> Iterator[Recording]:
    ids, spans = row.get("token_ids"), row.get("loss_spans") or []
    answers = [number for number, message in enumerate(row["messages"]) if message["role"] == "assistant"]
    finish = row.get("finish") or []
    for number, index in enumerate(answers):
        has_ids = ids is not None and len(spans) == len(answers)
        start, end = spans[number] if has_ids else (0, 0)
        yield Recording(
            id=row["id"] + (f"-{number}" if number else ""),
            messages=row["messages"][:index],
            output=row["messages"][index]["content"],
            prompt_ids=ids[:start] if has_ids else None,
            token_ids=ids[start:end] if has_ids else None,
            finish=finish[number] if number < len(finish) else "stop",
        )

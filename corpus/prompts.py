"""Prompts out of records, in the shapes people have them.

| key | shape |
| --- | --- |
| `conversations`, `conversation`, `messages` | list of {from, value} or {role, content}; roles in any case |
| `turns` | list of user turns (MT-Bench); `reference` lists the answers |
| `instruction` (+ `input`, `output`) | Alpaca |
| `prompt`, `question` | a text, a list of texts, or a list of messages |

A `system` field goes first. Answers that came along are kept as `reference`, one for each user turn.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corpus.readers import read_records
from corpus.records import MAX_ROW_BYTES, Broken, Record, too_long
from speculoos.errors import BadInput

ROLES = {
    **dict.fromkeys(("user", "human", "prompter", "instruction"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "bard", "bing", "model", "ai"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
}
ANSWER_KEYS = ("output", "response", "answer", "completion", "reference", "chosen")
FIELDS = frozenset(
    (
        *("conversations", "conversation", "messages", "turns", "instruction", "input", "prompt", "question"),
        *("system", "category", "id", "question_id", "conversation_id", "dataset", "source", *ANSWER_KEYS),
    )
)
"""Every key that is looked at, in lower case: what a file of columns holds besides is never read."""
MAX_TURNS = 200
MAX_LABEL = 200
"""Most characters of a category, and of what says where a row came from."""
DEFAULT_MAX_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt: user turns (after an optional system message), and `reference` with an answer or "" for each."""

    line: int
    messages: list[dict[str, str]]
    reference: list[str] = field(default_factory=list)
    category: str = ""
    source: dict[str, Any] = field(default_factory=dict)
    part: int = 0

    @property
    def id(self) -> str:
        return f"line-{self.line:07d}" + (f"-{self.part}" if self.part else "")

    def to_json(self) -> dict[str, Any]:
        """The line of a data set folder."""
        made = {"id": self.id, "messages": self.messages}
        extra = {"category": self.category, "reference": self.reference, "source": {"line": self.line, **self.source}}
        return made | {key: value for key, value in extra.items() if value}


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was left out: where it stands and why."""

    line: int
    reason: str


class _Bad(Exception):
    """Why the record at hand is no prompt."""


def read_prompts(
    path: str | Path, limit: int | None = None, max_rows: int = DEFAULT_MAX_ROWS
) -> Iterator[Row | BadRow]:
    """Every row of a prompt file, good or bad, in order; stops after `limit` good ones.

    Raises BadInput when the file cannot be read at all, or has more than `max_rows` rows and no `limit` was given.
    """
    good = 0
    for count, record in enumerate(read_records(path, FIELDS), 1):
        if limit is not None and good >= limit:
            return
        if count > max_rows:
            raise BadInput(
                f"{Path(path).name}: has more than {max_rows:,} rows; set a limit or raise SPECULOOS_MAX_ROWS."
            )
        row = _row(record)
        good += isinstance(row, Row)
        yield row


def _row(record: Record | Broken) -> Row | BadRow:
    if isinstance(record, Broken):
        return BadRow(record.line, record.reason)
    try:
        return replace(parse(record.line, record.value), part=record.part)
    except _Bad as bad:
        return BadRow(record.line, str(bad))


def parse(line: int, value: Any) -> Row:
    """The Row of one record. Raises an error whose text is the reason when it holds no prompt."""
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise _Bad(f"expected an object, found {_kind(value)}")
    record = {str(key).strip().lower(): item for key, item in value.items()}
    turns, answers = _pair(_messages(record))
    system = [_text(record["system"], "system")] if _filled(record.get("system")) else []
    system = [m["content"] for m in turns if m["role"] == "system"] or system
    users = [m["content"] for m in turns if m["role"] == "user"]
    _check_size(users, answers, system)
    messages = [{"role": "system", "content": s} for s in system[:1] if s.strip()]
    messages += [{"role": "user", "content": u} for u in users]
    category = record.get("category")
    row = Row(line, messages, answers, str(category)[:MAX_LABEL] if _filled(category) else "", _origin(record))
    _check_text(row)
    return row


def _check_text(row: Row) -> None:
    """Prompts were looked at with their place; answers, category and origin must be text that can be written too."""
    try:
        json.dumps(row.to_json(), ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _Bad("an answer, the category or the origin holds half of a character (a lone surrogate)") from None


def _messages(record: dict[str, Any]) -> list[dict[str, str]]:
    """The record's messages in one form: [{"role", "content"}, …]."""
    for key in ("conversations", "conversation", "messages"):
        if _filled(record.get(key)):
            return _chat(_list(record[key], key), key)
    if _filled(record.get("turns")):
        return _turns(_list(record["turns"], "turns"), record)
    if _filled(record.get("instruction")):
        return _alpaca(record)
    for key in ("prompt", "question"):
        if _filled(record.get(key)):
            return _prompt(record[key], record, key)
    raise _Bad("no prompt: none of conversations, messages, turns, instruction, prompt is there and filled")


def _chat(items: list[Any], key: str) -> list[dict[str, str]]:
    return [_message(item, f"{key}[{number}]") for number, item in enumerate(items)]


def _message(item: Any, where: str) -> dict[str, str]:
    if not isinstance(item, dict):
        raise _Bad(f"{where}: expected a message, found {_kind(item)}")
    name = item.get("role") or item.get("from")
    role = ROLES.get(str(name).strip().lower())
    if role is None:
        raise _Bad(f"{where}: role {str(name)[:40]!r} is not user, assistant or system")
    return {"role": role, "content": _text(item.get("content", item.get("value")), where)}


def _turns(items: list[Any], record: dict[str, Any]) -> list[dict[str, str]]:
    if items and isinstance(items[0], dict):
        return _chat(items, "turns")
    answers = record.get("reference")
    answers = answers if isinstance(answers, list) else []
    made = []
    for number, item in enumerate(items):
        made.append({"role": "user", "content": _text(item, f"turns[{number}]")})
        if number < len(answers) and isinstance(answers[number], str):
            made.append({"role": "assistant", "content": answers[number]})
    return made


def _alpaca(record: dict[str, Any]) -> list[dict[str, str]]:
    text = _text(record["instruction"], "instruction")
    if _filled(record.get("input")):
        text = f"{text}\n\n{_text(record['input'], 'input')}"
    return [{"role": "user", "content": text}, *_answer(record)]


def _prompt(value: Any, record: dict[str, Any], key: str) -> list[dict[str, str]]:
    if isinstance(value, list):
        return _turns(value, record)
    return [{"role": "user", "content": _text(value, key)}, *_answer(record)]


def _answer(record: dict[str, Any]) -> list[dict[str, str]]:
    found = next((record[key] for key in ANSWER_KEYS if isinstance(record.get(key), str) and record[key]), None)
    return [{"role": "assistant", "content": found}] if found else []


def _pair(messages: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[str]]:
    """System and user messages as they are, and the answer ("" if none) after each user turn.

    A leading answer has no question; what a chat begins with there is a greeting, so it is left out.
    """
    kept = [m for m in messages if m["role"] != "assistant"]
    answers: list[str] = []
    for message in messages:
        if message["role"] == "user":
            if not message["content"].strip():
                raise _Bad("no prompt: a user turn is empty")
            answers.append("")
        elif message["role"] == "assistant" and answers:
            answers[-1] += message["content"]
    if not answers:
        raise _Bad("no prompt: there is no user turn")
    return kept, answers if any(answers) else []


def _text(value: Any, where: str) -> str:
    if isinstance(value, list):
        value = "".join(_part(part, where) for part in value)
    if not isinstance(value, str):
        raise _Bad(f"{where}: expected text, found {_kind(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _Bad(f"{where}: holds half of a character (a lone surrogate)") from None
    return value


def _part(part: Any, where: str) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return part["text"]
    raise _Bad(f"{where}: only text parts can be used, found {_kind(part)}")


def _list(value: Any, key: str) -> list[Any]:
    """A list, or the JSON text of one, as CSV cells hold them."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _Bad(f"{key}: broken JSON in this cell ({type(error).__name__})") from None
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise _Bad(f"{key}: expected a list, found {_kind(value)}")
    return value


def _check_size(*texts: list[str]) -> None:
    if len(texts[0]) > MAX_TURNS:
        raise _Bad(f"{len(texts[0])} user turns; at most {MAX_TURNS} are taken")
    if sum(len(text) for group in texts for text in group) > MAX_ROW_BYTES:
        raise _Bad(too_long())


def _origin(record: dict[str, Any]) -> dict[str, Any]:
    """Where the row came from, as far as it says: its own id and data set."""
    keys = ("id", "question_id", "conversation_id", "dataset", "source")
    found = {k: record[k] for k in keys if isinstance(record.get(k), str | int) and _filled(record[k])}
    return {k: value[:MAX_LABEL] if isinstance(value, str) else value for k, value in found.items()}


def _filled(value: Any) -> bool:
    return value is not None and value != "" and value != []


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "nothing" if value is None else type(value).__name__)

"""Parse prompts from records (formats: `corpus.rows`).

A `system` field becomes the first message. Answers in the record are kept as `reference`, one per user turn.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from corpus.rows import (
    DEFAULT_MAX_ROWS,
    FIELDS,
    BadRecord,
    BadRow,
    Files,
    ImportedRow,
    Message,
    category_of,
    checked,
    is_filled,
    kind_of,
    messages_of,
    origin_of,
    parsed_rows,
    text_of,
)

ROLES = {
    **dict.fromkeys(("user", "human", "prompter", "instruction"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "bard", "bing", "model", "ai"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
}


def read_prompts(
    files: Files,
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
    mapping: Mapping[str, str] | None = None,
) -> Iterator[ImportedRow | BadRow]:
    """All rows, good or bad, of prompt files, in order: see `corpus.rows.parsed_rows`."""
    return parsed_rows(files, parse_prompt, FIELDS, limit, max_rows, mapping)


def parse_prompt(line: int, record: dict[str, Any]) -> ImportedRow:
    """The prompt of one record. Raises BadRecord when it has none."""
    turns = messages_of(record, _message)
    answers = _answers(turns)
    system = [text_of(record["system"], "system")] if is_filled(record.get("system")) else []
    system = [m["content"] for m in turns if m["role"] == "system"] or system
    messages = [{"role": "system", "content": s} for s in system[:1] if s.strip()]
    messages += [{"role": "user", "content": m["content"]} for m in turns if m["role"] == "user"]
    return checked(ImportedRow(line, messages, category_of(record), origin_of(record), reference=answers))


def _message(item: Any, where: str) -> Message:
    return {"role": role_of(item, where, ROLES), "content": text_of(item.get("content", item.get("value")), where)}


def role_of(item: Any, where: str, roles: Mapping[str, str]) -> str:
    """The role of a message, which is an object. Raises BadRecord for one that is none, and for an unknown role."""
    if not isinstance(item, dict):
        raise BadRecord(f"{where}: expected a message, found {kind_of(item)}")
    name = str(item.get("role") or item.get("from")).strip().lower()
    if name not in roles:
        *some, last = dict.fromkeys(roles.values())
        raise BadRecord(f"{where}: role {name[:40]!r} is not {', '.join(some)} or {last}")
    return roles[name]


def _answers(messages: list[Message]) -> list[str]:
    """The answer ("" if none) to each user turn, [] if there is none at all. An answer before the first question (a
    greeting) is dropped."""
    answers: list[str] = []
    for message in messages:
        if message["role"] == "user":
            if not message["content"].strip():
                raise BadRecord("no prompt: a user turn is empty")
            answers.append("")
        elif message["role"] == "assistant" and answers:
            answers[-1] += message["content"]
    if not answers:
        raise BadRecord("no prompt: there is no user turn")
    return answers if any(answers) else []

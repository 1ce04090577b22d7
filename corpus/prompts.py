"""Parse prompts from records (formats: `corpus.shapes`).

A `system` field becomes the first message. Answers in the record are kept as `reference`, one per user turn.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from corpus.fields import BadRecord, category_of, check_size, check_text, is_filled, kind_of, origin_of, text_of
from corpus.mapping import mapped_rows
from corpus.rows import DEFAULT_MAX_ROWS, BadRow, Files, row_id
from corpus.shapes import FIELDS, messages_of, record_of

ROLES = {
    **dict.fromkeys(("user", "human", "prompter", "instruction"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "bard", "bing", "model", "ai"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
}


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt: an optional system message, user turns, and `reference` with an answer or "" for each turn."""

    line: int
    messages: list[dict[str, str]]
    reference: list[str] = field(default_factory=list)
    category: str = ""
    source: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        row = {"id": row_id(self.line), "messages": self.messages}
        extra = {"category": self.category, "reference": self.reference, "source": {"line": self.line, **self.source}}
        return row | {key: value for key, value in extra.items() if value}


def read_prompts(
    files: Files,
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
    mapping: Mapping[str, str] | None = None,
) -> Iterator[PromptRow | BadRow]:
    """All rows, good or bad, of prompt files, in order: see `corpus.mapping.mapped_rows`."""
    return mapped_rows(files, parse_prompt, FIELDS, mapping, limit, max_rows)


def parse_prompt(line: int, value: Any) -> PromptRow:
    """The prompt of one record. Raises BadRecord when it has none."""
    record = record_of(value)
    turns, answers = _pair(messages_of(record, _message))
    system = [text_of(record["system"], "system")] if is_filled(record.get("system")) else []
    system = [m["content"] for m in turns if m["role"] == "system"] or system
    users = [m["content"] for m in turns if m["role"] == "user"]
    check_size(users, answers, system)
    messages = [{"role": "system", "content": s} for s in system[:1] if s.strip()]
    messages += [{"role": "user", "content": u} for u in users]
    row = PromptRow(line, messages, answers, category_of(record), origin_of(record))
    check_text(row.to_json())
    return row


def _message(item: Any, where: str) -> dict[str, str]:
    if not isinstance(item, dict):
        raise BadRecord(f"{where}: expected a message, found {kind_of(item)}")
    name = item.get("role") or item.get("from")
    role = ROLES.get(str(name).strip().lower())
    if role is None:
        raise BadRecord(f"{where}: role {str(name)[:40]!r} is not user, assistant or system")
    return {"role": role, "content": text_of(item.get("content", item.get("value")), where)}


def _pair(messages: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[str]]:
    """System and user messages, and the answer ("" if none) to each user turn. An answer before the first question (a
    greeting) is dropped."""
    questions = [m for m in messages if m["role"] != "assistant"]
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
    return questions, answers if any(answers) else []

"""Convert conversations in common formats to a uniform list of messages. The caller parses the single messages.

| key | format |
| --- | --- |
| `conversations`, `conversation`, `messages` | list of {from, value} or {role, content}; roles in any case |
| `turns` | list of user turns (MT-Bench); `reference` lists the answers |
| `instruction` (+ `input`, `output`) | Alpaca |
| `prompt`, `question` | a text, a list of texts, or a list of messages |
"""

from collections.abc import Callable
from typing import Any

from corpus.fields import BadRecord, is_filled, kind_of, list_of, text_of

ANSWER_KEYS = ("output", "response", "answer", "completion", "reference", "chosen")
FIELDS = frozenset(
    (
        *("conversations", "conversation", "messages", "turns", "instruction", "input", "prompt", "question"),
        *("system", "category", "id", "question_id", "conversation_id", "dataset", "source", *ANSWER_KEYS),
    )
)
"""All keys that are used, in lower case; other columns are not read."""
Message = dict[str, Any]
MessageReader = Callable[[Any, str], Message]
"""(item of a list of messages, its path for errors) → {"role", "content", …}; raises BadRecord."""


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
        return _alpaca(record)
    for key in ("prompt", "question"):
        if is_filled(record.get(key)):
            return _prompt(record[key], record, key, read)
    raise BadRecord(
        "no prompt: none of conversations, messages, turns, instruction, prompt, question is there and filled"
    )


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


def _alpaca(record: dict[str, Any]) -> list[Message]:
    text = text_of(record["instruction"], "instruction")
    if is_filled(record.get("input")):
        text = f"{text}\n\n{text_of(record['input'], 'input')}"
    return [{"role": "user", "content": text}, *_answer(record)]


def _prompt(value: Any, record: dict[str, Any], key: str, read: MessageReader) -> list[Message]:
    if isinstance(value, list):
        return _turns(value, record, read)
    return [{"role": "user", "content": text_of(value, key)}, *_answer(record)]


def _answer(record: dict[str, Any]) -> list[Message]:
    answer = next((record[key] for key in ANSWER_KEYS if isinstance(record.get(key), str) and record[key]), None)
    return [{"role": "assistant", "content": answer}] if answer else []

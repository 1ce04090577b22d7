"""Parse answered conversations, ready for training, from records (formats: `corpus.shapes`).

System turns, tool messages, tool calls, declared tools and reasoning are kept, under the names that chat templates use.
A greeting before the first question and questions after the last answer are dropped. The finish reason of an answer may
be `finish` or `finish_reason` in its message or in the row (a list has one per answer, a string is the last answer's),
or ModelOpt's `truncated` in the row.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from corpus.fields import (
    BadRecord,
    category_of,
    check_size,
    check_text,
    is_filled,
    kind_of,
    list_of,
    origin_of,
    text_of,
)
from corpus.mapping import mapped_rows
from corpus.prompts import ROLES
from corpus.rows import DEFAULT_MAX_ROWS, BadRow, Files, row_id
from corpus.shapes import FIELDS, Message, messages_of, record_of

TOOL = dict.fromkeys(("tool", "function", "observation", "function_response", "ipython"), "tool")
CALL = dict.fromkeys(("function_call", "tool_call"), "assistant")
ALL_ROLES = ROLES | TOOL | CALL
REASONING = ("reasoning_content", "reasoning", "thinking")
FINISH = ("finish", "finish_reason")
CUT = ("length", "max_tokens", "max_length", "model_length")
"""Finish reasons of truncated answers."""
ANSWERED_FIELDS = FIELDS | {"tools", "truncated", *FINISH}


class AnsweredTokens(Protocol):
    """Token ids of a conversation, half-open spans of those in the loss, and the source of the mask."""

    token_ids: Sequence[int]
    source: str

    @property
    def spans(self) -> Sequence[tuple[int, int]]: ...


@dataclass(frozen=True, slots=True)
class AnsweredRow:
    """One conversation that ends with an answer. `finish` of each answer: "length" (truncated) or "stop"; `masked`: its
    tokens, once tokenised."""

    line: int
    messages: list[Message]
    finish: list[str]
    tools: list[Any] = field(default_factory=list)
    category: str = ""
    source: dict[str, Any] = field(default_factory=dict)
    masked: AnsweredTokens | None = None

    @property
    def cut(self) -> int:
        """Number of truncated answers."""
        return self.finish.count("length")

    def to_json(self) -> dict[str, Any]:
        row = {"id": row_id(self.line), "messages": self.messages, "finish": self.finish}
        extra = {"tools": self.tools, "category": self.category, "source": {"line": self.line, **self.source}}
        if self.masked:
            extra |= {"token_ids": self.masked.token_ids, "loss_spans": self.masked.spans}
        return row | {key: value for key, value in extra.items() if value}


def read_answered(
    files: Files, max_rows: int = DEFAULT_MAX_ROWS, mapping: Mapping[str, str] | None = None
) -> Iterator[AnsweredRow | BadRow]:
    """All rows, good or bad, of files of answered conversations, in order: see `corpus.mapping.mapped_rows`."""
    return mapped_rows(files, parse_answered, ANSWERED_FIELDS, mapping, max_rows=max_rows)


def parse_answered(line: int, value: Any) -> AnsweredRow:
    """The conversation of one record. Raises BadRecord when it has none to learn from."""
    record = record_of(value)
    turns = messages_of(record, _message)
    endings = _endings(record, turns)
    messages, finish = _trimmed(turns, endings)
    _check(messages)
    if is_filled(record.get("system")) and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": text_of(record["system"], "system")})
    tools = _tools(record["tools"]) if is_filled(record.get("tools")) else []
    row = AnsweredRow(line, messages, finish, tools, category_of(record), origin_of(record))
    check_text(row.to_json())
    return row


def _message(item: Any, where: str) -> Message:
    """One message with all fields that chat templates use, and `finish`, which `_endings` removes."""
    if not isinstance(item, dict):
        raise BadRecord(f"{where}: expected a message, found {kind_of(item)}")
    name = str(item.get("role") or item.get("from")).strip().lower()
    if name not in ALL_ROLES:
        raise BadRecord(f"{where}: role {name[:40]!r} is not user, assistant, system or tool")
    content = item.get("content", item.get("value"))
    message: Message = {"role": ALL_ROLES[name], "content": "" if content is None else text_of(content, where)}
    for key in ("name", "tool_call_id"):
        if isinstance(item.get(key), str) and item[key]:
            message[key] = item[key]
    if message["role"] == "assistant":
        message |= _answer_fields(item, where)
    return message


def _answer_fields(item: Mapping[str, Any], where: str) -> Message:
    fields: Message = {}
    if reasoning := next((item[key] for key in REASONING if is_filled(item.get(key))), None):
        fields["reasoning_content"] = text_of(reasoning, where)
    if is_filled(item.get("tool_calls")):
        fields["tool_calls"] = [_call(call, where) for call in list_of(item["tool_calls"], f"{where}.tool_calls")]
    if ending := next((item[key] for key in FINISH if isinstance(item.get(key), str)), ""):
        fields["finish"] = ending
    return fields


def _tools(value: Any) -> list[dict[str, Any]]:
    tools = list_of(value, "tools") if not isinstance(value, str) or value.lstrip().startswith("[") else None
    if tools is None or not all(isinstance(tool, dict) for tool in tools):
        raise BadRecord("tools: expected a list of objects")
    return tools


def _call(call: Any, where: str) -> dict[str, Any]:
    """A tool call with its arguments as an object, since templates serialise them to JSON."""
    if not isinstance(call, dict):
        raise BadRecord(f"{where}: expected a tool call, found {kind_of(call)}")
    function = call.get("function") if isinstance(call.get("function"), dict) else call
    arguments = function.get("arguments")
    with suppress(ValueError, RecursionError):  # arguments that are not JSON remain a string
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    signature = {"name": str(function.get("name", "")), "arguments": arguments}
    return {"type": "function", "function": signature} | ({"id": call["id"]} if isinstance(call.get("id"), str) else {})


def _endings(record: Mapping[str, Any], turns: list[Message]) -> list[str]:
    endings = [turn.pop("finish", "") for turn in turns if turn["role"] == "assistant"]
    value = next((record[key] for key in FINISH if is_filled(record.get(key))), None)
    if isinstance(value, list):
        first = max(len(endings) - len(value), 0)  # the list may have no entry for a greeting
        endings[first:] = [str(ending) for ending in value[: len(endings)]]
    elif endings and (value in CUT or record.get("truncated") is True):
        endings[-1] = "length"
    return endings


def _trimmed(turns: list[Message], endings: list[str]) -> tuple[list[Message], list[str]]:
    """The system turns and everything from the first question to the last answer, and its finish reasons."""
    first = next((i for i, turn in enumerate(turns) if turn["role"] in ("user", "tool")), len(turns))
    last = max((i for i, turn in enumerate(turns) if turn["role"] == "assistant"), default=-1)
    if last < first:
        raise BadRecord("no answer: no assistant turn follows a question")
    greetings = sum(turn["role"] == "assistant" for turn in turns[:first])
    conversation = [turn for turn in turns[:first] if turn["role"] == "system"] + turns[first : last + 1]
    return conversation, ["length" if ending in CUT else "stop" for ending in endings[greetings:]]


def _check(messages: list[Message]) -> None:
    """Raise BadRecord for empty turns and oversized rows."""
    for message in messages:
        role, content = message["role"], message["content"].strip()
        if role == "user" and not content:
            raise BadRecord("a user turn is empty")
        if role == "assistant" and not (content or message.get("reasoning_content") or message.get("tool_calls")):
            raise BadRecord("no answer: an assistant turn is empty")
    users = [message["content"] for message in messages if message["role"] == "user"]
    others = [m["content"] + m.get("reasoning_content", "") for m in messages if m["role"] != "user"]
    check_size(users, others)

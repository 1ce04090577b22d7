"""Parse answered conversations, ready for training, from records (formats: `corpus.rows`).

System turns, tool messages, tool calls, declared tools and reasoning are kept, under the names that chat templates use.
A greeting before the first question and questions after the last answer are dropped. The finish reason of an answer may
be `finish` or `finish_reason` in its message or in the row (a list has one per answer, a string is the last answer's),
or ModelOpt's `truncated` in the row.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from corpus.prompts import ROLES, role_of
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
    list_of,
    messages_of,
    origin_of,
    parsed_rows,
    text_of,
)
from speculoos.errors import BadInput
from training.masks import MaskedTokens

TOOL = dict.fromkeys(("tool", "function", "observation", "function_response", "ipython"), "tool")
CALL = dict.fromkeys(("function_call", "tool_call"), "assistant")
ALL_ROLES = ROLES | TOOL | CALL
REASONING = ("reasoning_content", "reasoning", "thinking")
FINISH = ("finish", "finish_reason")
CUT = ("length", "max_tokens", "max_length", "model_length")
"""Finish reasons of truncated answers."""
ANSWERED_FIELDS = FIELDS | {"tools", "truncated", *FINISH}


Masking = Callable[[dict[str, Any]], MaskedTokens]
"""(row with `messages` and `finish`) → its tokens; raises BadInput, without naming the row, for an unusable one."""


def read_answered(
    files: Files,
    max_rows: int = DEFAULT_MAX_ROWS,
    mapping: Mapping[str, str] | None = None,
    limit: int | None = None,
    masking: Masking | None = None,
) -> Iterator[ImportedRow | BadRow]:
    """All rows, good or bad, of files of answered conversations, in order: see `corpus.rows.parsed_rows`. With a
    `masking` they have their tokens, and a row that it rejects, or without tokens in the loss, is a bad one."""

    def parse(line: int, record: dict[str, Any]) -> ImportedRow:
        row = parse_answered(line, record)
        return _tokenized(row, masking) if masking else row

    return parsed_rows(files, parse, ANSWERED_FIELDS, limit, max_rows, mapping)


def _tokenized(row: ImportedRow, masking: Masking) -> ImportedRow:
    try:
        masked = masking(row.to_json())
    except BadInput as error:
        raise BadRecord(str(error)) from None
    if not (spans := masked.spans):
        raise BadRecord("no tokens to train on: the chat template changes the answers, or the only answer is truncated")
    return replace(row, token_ids=masked.token_ids, loss_spans=spans, mask_source=masked.source)


def parse_answered(line: int, record: dict[str, Any]) -> ImportedRow:
    """The conversation of one record. Raises BadRecord when it has none to learn from."""
    turns = messages_of(record, _message)
    messages, finish = _trimmed(turns, _endings(record, turns))
    _check_turns(messages)
    if is_filled(record.get("system")) and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": text_of(record["system"], "system")})
    tools = _tools(record["tools"]) if is_filled(record.get("tools")) else []
    return checked(ImportedRow(line, messages, category_of(record), origin_of(record), finish=finish, tools=tools))


def _message(item: Any, where: str) -> Message:
    """One message with all fields that chat templates use, and `finish`, which `_endings` removes."""
    role = role_of(item, where, ALL_ROLES)
    content = item.get("content", item.get("value"))
    message: Message = {"role": role, "content": "" if content is None else text_of(content, where)}
    for key in ("name", "tool_call_id"):
        if isinstance(item.get(key), str) and item[key]:
            message[key] = item[key]
    return message | _answer_fields(item, where) if role == "assistant" else message


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
    """A tool call with its arguments as an object, since templates serialize them to JSON."""
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


def _check_turns(messages: list[Message]) -> None:
    for message in messages:
        role, content = message["role"], message["content"].strip()
        if role == "user" and not content:
            raise BadRecord("a user turn is empty")
        if role == "assistant" and not (content or message.get("reasoning_content") or message.get("tool_calls")):
            raise BadRecord("no answer: an assistant turn is empty")

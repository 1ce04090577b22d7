"""Validated access to the fields of a record: texts, lists, labels. Raises BadRecord with the reason."""

import json
from typing import Any

from corpus.readers import MAX_ROW_BYTES, too_long

MAX_TURNS = 200
MAX_LABEL = 200
"""Maximum characters of a category and of origin fields."""


class BadRecord(Exception):
    """The record is unusable; the message is the reason."""


def check_text(row: dict[str, Any]) -> None:
    """Raise BadRecord when a row cannot be written as UTF-8 JSON. Prompts are checked by `text_of`, with the field."""
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise BadRecord("an answer, the category or the origin holds half of a character (a lone surrogate)") from None
    except RecursionError:
        raise BadRecord("nested too deeply") from None


def text_of(value: Any, where: str) -> str:
    """A text, or the joined texts of a list of parts."""
    if isinstance(value, list):
        value = "".join(_part(part, where) for part in value)
    if not isinstance(value, str):
        raise BadRecord(f"{where}: expected text, found {kind_of(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRecord(f"{where}: holds half of a character (a lone surrogate)") from None
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
            raise BadRecord(f"{key}: broken JSON in this cell ({type(error).__name__})") from None
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise BadRecord(f"{key}: expected a list, found {kind_of(value)}")
    return value


def check_size(*texts: list[str]) -> None:
    """Raise BadRecord for too many turns (the first list) or a too long row (all lists)."""
    if len(texts[0]) > MAX_TURNS:
        raise BadRecord(f"{len(texts[0])} user turns; at most {MAX_TURNS} are taken")
    if sum(len(text) for group in texts for text in group) > MAX_ROW_BYTES:
        raise BadRecord(too_long())


def category_of(record: dict[str, Any]) -> str:
    """The category by which figures are grouped, "" if none."""
    return str(record["category"])[:MAX_LABEL] if is_filled(record.get("category")) else ""


def origin_of(record: dict[str, Any]) -> dict[str, Any]:
    """The origin of a row: its own id and data set, if present."""
    keys = ("id", "question_id", "conversation_id", "dataset", "source")
    labels = {k: record[k] for k in keys if isinstance(record.get(k), str | int) and is_filled(record[k])}
    return {k: value[:MAX_LABEL] if isinstance(value, str) else value for k, value in labels.items()}


def is_filled(value: Any) -> bool:
    """Whether a field is neither None nor an empty text or list."""
    return value is not None and value != "" and value != []


def kind_of(value: Any) -> str:
    """The type of a JSON value, for error messages."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "nothing" if value is None else type(value).__name__)

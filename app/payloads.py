"""Validates the body of events. Gradio treats `{"path", "meta"}` anywhere in an input as a file to copy, so only file
inputs may contain one, and only a file that this session uploaded.

The body is rebuilt from the checked fields, so Gradio never sees unchecked data.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from speculoos.errors import BadInput

FILES = (gr.File,)
"""Components whose value is a file."""
TABLES = (gr.JSON,)
"""Components whose value is an object or a list; others have a string, a number, a boolean or a list of these."""
IDS = ("fn_index", "trigger_id")
FILE_DATA = {"_type": "gradio.FileData"}
DEEPEST = 20
MOST_FILES = 64


def checked_event(body: bytes, blocks: gr.Blocks, is_own: Callable[[str], bool]) -> bytes:
    """The checked event of `body` for Gradio. `is_own(path)`: whether a path is an upload of this session.

    Raises BadInput for an invalid event.
    """
    event = _read(body)
    inputs = _inputs(event.get("fn_index"), blocks)
    data = event.get("data")
    if not isinstance(data, list) or len(data) > len(inputs):
        raise BadInput("The event does not match its inputs; reload the page.")
    clean = {"data": [_value(kind, value, is_own) for kind, value in zip(inputs, data, strict=False)]}
    clean |= {key: _whole(event.get(key), key) for key in IDS}
    clean["session_hash"] = _text(event.get("session_hash"))
    if event.get("event_data") is not None and not _repeats_files(clean["trigger_id"], blocks):
        clean["event_data"] = _without_files(event["event_data"])
    return json.dumps(clean).encode()


def _repeats_files(trigger: int | None, blocks: gr.Blocks) -> bool:
    """Whether the event comes from a file component, which repeats its files in the event data: that part is dropped,
    since no handler reads it."""
    return isinstance(blocks.blocks.get(trigger), FILES)


def _read(body: bytes) -> dict[str, Any]:
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise BadInput("The event is not a JSON object; reload the page.")
    return event


def _inputs(index: Any, blocks: gr.Blocks) -> list[Any]:
    """The input components of an event."""
    function = blocks.fns.get(index) if type(index) is int else None
    if function is None or function.fn is None:  # events without a function run in the browser
        raise BadInput("There is no such event; reload the page.")
    return list(function.inputs)


def _value(component: Any, value: Any, is_own: Callable[[str], bool]) -> Any:
    if isinstance(component, FILES):
        return _files(value, is_own) if component.file_count == "multiple" else _file(value, is_own)
    if isinstance(component, TABLES):
        if isinstance(value, dict | list | None):  # no string: Gradio would parse it as JSON
            return _without_files(value)
    elif _is_plain(value) or isinstance(value, list) and all(_is_plain(item) for item in value):
        return value
    raise BadInput(f"The {type(component).__name__} input of this event does not accept this value; reload the page.")


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _files(value: Any, is_own: Callable[[str], bool]) -> list[dict[str, Any] | None] | None:
    """The files of an input for several files."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MOST_FILES or None in value:
        raise BadInput(f"This input of the event takes a list of at most {MOST_FILES} files; reload the page.")
    return [_file(item, is_own) for item in value]


def _file(value: Any, is_own: Callable[[str], bool]) -> dict[str, Any] | None:
    """An upload of this session, without the fields that would make the server load another file (`url`,
    `is_stream`)."""
    if value is None:
        return None
    path = value.get("path") if isinstance(value, dict) else None
    if not isinstance(path, str) or not is_own(path):
        raise BadInput("This file was not uploaded from this browser session; upload it again.")
    name, size = value.get("orig_name"), value.get("size")
    facts = {"orig_name": name if isinstance(name, str) else None, "size": size if type(size) is int else None}
    return {"path": path, **facts, "meta": FILE_DATA}


def _without_files(value: Any, depth: int = 0) -> Any:
    """`value`. Raises BadInput if it contains a file object at any depth."""
    if depth > DEEPEST:
        raise BadInput("The event is nested too deeply; reload the page.")
    if isinstance(value, Mapping):
        if "path" in value or "_type" in value:
            raise BadInput("This input of the event does not accept files; reload the page.")
        return {key: _without_files(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_files(item, depth + 1) for item in value]
    return value


def _whole(value: Any, key: str) -> int | None:
    if value is None or type(value) is int:
        return value
    raise BadInput(f"The event's {key} is not a whole number; reload the page.")


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str) and len(value) <= 100:
        return value
    raise BadInput("The event's session is not a short string; reload the page.")

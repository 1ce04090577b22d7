"""Validates the body of events. Gradio treats `{"path", "meta"}` anywhere in an input as a file to copy, so only file
inputs may contain one, and only a file that this session uploaded.

The body is rebuilt from the checked fields, so Gradio never sees unchecked data.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import gradio as gr
from pydantic import BaseModel, Field

from speculoos.errors import BadInput

FILES = (gr.File,)  # components whose value is a file; of others it is plain, or a list of plain values
FILE_DATA = {"_type": "gradio.FileData"}
DEEPEST = 20
MOST_FILES = 64


class Event(BaseModel, strict=True):
    """The fields of an event that Gradio gets."""

    data: list[Any]
    fn_index: int
    trigger_id: int | None = None
    session_hash: Annotated[str, Field(max_length=100)] | None = None
    event_data: Any = None


def checked_event(body: bytes, blocks: gr.Blocks, is_own: Callable[[str], bool]) -> bytes:
    """The checked event of `body` for Gradio. `is_own(path)`: whether a path is an upload of this session.

    Raises BadInput for an invalid event.
    """
    try:
        event = Event.model_validate(json.loads(body))
    except (ValueError, RecursionError):
        raise BadInput("The event is not a JSON object with the fields of an event; reload the page.") from None
    function = blocks.fns.get(event.fn_index)
    if function is None or function.fn is None:  # events without a function run in the browser
        raise BadInput("There is no such event; reload the page.")
    if len(event.data) > len(function.inputs):
        raise BadInput("The event does not match its inputs; reload the page.")
    event.data = [_value(kind, value, is_own) for kind, value in zip(function.inputs, event.data, strict=False)]
    # a file component repeats its files in the event data: that part is dropped, since no handler reads it
    has_files = isinstance(blocks.blocks.get(event.trigger_id), FILES)
    event.event_data = None if has_files else _without_files(event.event_data)
    return json.dumps(event.model_dump(exclude=set() if event.event_data is not None else {"event_data"})).encode()


def _value(component: Any, value: Any, is_own: Callable[[str], bool]) -> Any:
    if isinstance(component, FILES):
        return _files(value, is_own) if component.file_count == "multiple" else _file(value, is_own)
    if _is_plain(value) or isinstance(value, list) and all(_is_plain(item) for item in value):
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

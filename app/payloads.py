"""What an event of the pages may carry. Gradio treats `{"path", "meta"}` anywhere in an input as a file to copy, so
only an input that takes a file may hold one, and only one that this session uploaded.

The body is written anew from what was looked at: Gradio sees nothing that this has not.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from speculoos.errors import BadInput

FILES = (gr.File,)
"""Components whose value is a file."""
TABLES = (gr.JSON,)
"""Components whose value is a table or a list; all others hold a text, a number, a truth value or a list of them."""
IDS = ("fn_index", "trigger_id")
FILE_DATA = {"_type": "gradio.FileData"}
DEEPEST = 20
MOST_FILES = 64


def checked(body: bytes, blocks: gr.Blocks, is_own: Callable[[str], bool]) -> bytes:
    """The event in `body` as Gradio may have it. `is_own` says whether a path is an upload of this session.

    Raises BadInput for anything else.
    """
    event = _read(body)
    inputs = _inputs(event.get("fn_index"), blocks)
    data = event.get("data")
    if not isinstance(data, list) or len(data) > len(inputs):
        raise BadInput("The event does not fit its inputs; reload the page.")
    clean = {"data": [_value(kind, value, is_own) for kind, value in zip(inputs, data, strict=False)]}
    clean |= {key: _whole(event.get(key), key) for key in IDS}
    clean["session_hash"] = _text(event.get("session_hash"))
    if event.get("event_data") is not None and not _tells_files(clean["trigger_id"], blocks):
        clean["event_data"] = _without_files(event["event_data"])
    return json.dumps(clean).encode()


def _tells_files(trigger: int | None, blocks: gr.Blocks) -> bool:
    """Whether the event comes from a box of files, which says once more what is in it: no handler asks for that, so it
    is left out."""
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
    """The components an event reads."""
    function = blocks.fns.get(index) if type(index) is int else None
    if function is None or function.fn is None:  # the browser itself handles events without a function
        raise BadInput("There is no such event; reload the page.")
    return list(function.inputs)


def _value(component: Any, value: Any, is_own: Callable[[str], bool]) -> Any:
    if isinstance(component, FILES):
        return _files(value, is_own) if component.file_count == "multiple" else _file(value, is_own)
    if isinstance(component, TABLES):
        if isinstance(value, dict | list | None):  # no text: Gradio would read one as JSON
            return _without_files(value)
    elif _is_plain(value) or isinstance(value, list) and all(_is_plain(item) for item in value):
        return value
    raise BadInput(f"The {type(component).__name__} input of this event takes no such value; reload the page.")


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _files(value: Any, is_own: Callable[[str], bool]) -> list[dict[str, Any] | None] | None:
    """Of an input that takes several."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MOST_FILES or None in value:
        raise BadInput(f"This input of the event takes a list of at most {MOST_FILES} files; reload the page.")
    return [_file(item, is_own) for item in value]


def _file(value: Any, is_own: Callable[[str], bool]) -> dict[str, Any] | None:
    """An upload of this session, without what would make the server look elsewhere (`url`, `is_stream`)."""
    if value is None:
        return None
    path = value.get("path") if isinstance(value, dict) else None
    if not isinstance(path, str) or not is_own(path):
        raise BadInput("This file was not uploaded from this browser session; upload it again.")
    name, size = value.get("orig_name"), value.get("size")
    facts = {"orig_name": name if isinstance(name, str) else None, "size": size if type(size) is int else None}
    return {"path": path, **facts, "meta": FILE_DATA}


def _without_files(value: Any, depth: int = 0) -> Any:
    """`value`, which must not hold anything that reads like a file at any depth."""
    if depth > DEEPEST:
        raise BadInput("The event is nested too deeply; reload the page.")
    if isinstance(value, Mapping):
        if "path" in value or "_type" in value:
            raise BadInput("This input of the event takes no file; reload the page.")
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
    raise BadInput("The event's session is not a short text; reload the page.")

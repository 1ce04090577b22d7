"""Export a dataset as JSONL in the formats `messages` and `conversations` (ShareGPT). No torch."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from models.damage import check_dataset
from speculoos.errors import BadInput, NotFound
from speculoos.files import new_path, portable_name

EXPORTED_FIELDS = ("category", "finish", "tools")
"""Exported fields of a row; token ids and masks are not, since they are specific to one base."""
SHAREGPT = {"user": "human", "assistant": "gpt"}
CHUNK = 1 << 18


def export_lines(folder: str | Path, form: str = "messages") -> Iterator[bytes]:
    """Each row of the dataset in `folder` as a line of JSON: `messages` has {role, content} turns, `conversations`
    {from, value} turns. Reference answers follow the user messages they belong to. Raises BadInput for another form,
    NotFound for a folder without rows and Damaged for wrong checksums, all before the first line; BadInput for a line
    that is not JSON."""
    write = find_row_converter(form)
    shards = sorted(Path(folder).glob("shard-*.jsonl"))
    if not shards:
        raise NotFound(f"{folder}: this dataset has no rows (no shard-*.jsonl).")
    check_dataset(folder)
    return _lines(shards, write)


def find_row_converter(form: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    if form not in ROW_CONVERTERS:
        raise BadInput(f"Unknown dataset format {form!r}; choose {' or '.join(ROW_CONVERTERS)}.")
    return ROW_CONVERTERS[form]


def export_file(folder: str | Path, target: Path, form: str = "messages") -> int:
    """Write `export_lines` to `target` atomically; returns the number of rows. Raises the same errors."""
    lines = export_lines(folder, form)
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_path(target) as temporary, open(temporary, "wb") as handle:
        return sum(handle.write(line) > 0 for line in lines)


def export_shards(folder: str | Path, target: Path, rows: int, form: str = "messages") -> list[Path]:
    """Write `export_lines` to files of `rows` rows each in the folder `target`. Raises the same errors, and BadInput
    when `target` has JSONL files already, which would be mixed with the new ones."""
    lines = export_lines(folder, form)
    if next(target.glob("*.jsonl"), None):
        raise BadInput(f"{target}: this folder has .jsonl files already; name an empty or a new one.")
    target.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    while part := list(islice(lines, rows)):
        files.append(target / f"shard-{len(files):05d}.jsonl")
        with new_path(files[-1]) as temporary, open(temporary, "wb") as handle:
            handle.writelines(part)
    return files


def file_name(name: str) -> str:
    return (portable_name(name) or "data") + ".jsonl"


def chunks(lines: Iterator[bytes], size: int = CHUNK) -> Iterator[bytes]:
    """Lines joined to chunks of about `size` bytes, for an HTTP response."""
    pending = bytearray()
    for line in lines:
        pending += line
        if len(pending) >= size:
            yield bytes(pending)
            pending.clear()
    yield bytes(pending)


def _lines(shards: list[Path], write: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[bytes]:
    for shard in shards:
        with open(shard, "rb") as handle:
            for number, line in enumerate(handle, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError:
                    message = f"{shard.name}, line {number}: invalid JSON; delete this dataset and create it again."
                    raise BadInput(message) from None
                yield json.dumps(write(row), ensure_ascii=False).encode() + b"\n"


def _messages(row: dict[str, Any]) -> dict[str, Any]:
    answers, messages = iter(row.get("reference") or ()), []
    for message in row["messages"]:
        messages.append(message)
        if message["role"] == "user" and (answer := next(answers, "")):
            messages.append({"role": "assistant", "content": answer})
    return {"id": row["id"], "messages": messages} | {key: row[key] for key in EXPORTED_FIELDS if row.get(key)}


def _conversations(row: dict[str, Any]) -> dict[str, Any]:
    record, turns = _messages(row), []
    for message in record.pop("messages"):
        role, content = message.pop("role"), message.pop("content", "")
        turns.append({"from": SHAREGPT.get(role, role), "value": content, **message})
    return {"id": record.pop("id"), "conversations": turns} | record


ROW_CONVERTERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "messages": _messages,
    "conversations": _conversations,
}

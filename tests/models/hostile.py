"""Model folders made malicious or broken."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% set x = a * b * c %}{% endfor %}{% endfor %}{% endfor %}{{ messages[0]['content'] }}"
)


def copy(folder: Path, to: Path) -> Path:
    """A copy of `folder`, for tests to modify."""
    return shutil.copytree(folder, to)


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file: `change` returns the new value, or changes what it gets and returns None."""
    value = json.loads(path.read_text()) if path.exists() else {}
    changed = change(value)
    path.write_text(json.dumps(value if changed is None else changed))


def put(folder: Path, name: str, **values: Any) -> Path:
    """Set keys of a JSON file."""
    edit(folder / name, lambda value: value.update(values))
    return folder


def split_by(folder: Path, pattern: str) -> Path:
    """Give the tokenizer another pattern to split by."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return put(folder, "tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level]})


def pad_to(folder: Path, length: int) -> Path:
    """Let the tokenizer pad every text."""
    padding = {"strategy": {"Fixed": length}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    return put(folder, "tokenizer.json", padding={**padding, "pad_type_id": 0, "pad_token": "<|endoftext|>"})


def growing(folder: Path) -> Path:
    """Let the tokenizer replace each o by ten, nine times in a row."""
    ten = {"type": "Replace", "pattern": {"String": "o"}, "content": "o" * 10}
    return put(folder, "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [ten] * 9})

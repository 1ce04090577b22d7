"""Who a model is: hashes that stay the same when files are renamed, resharded or re-saved.

Knows safetensors headers and tokenizer files. Reads tensors one at a time, so memory stays at the largest tensor.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculoos.errors import BadInput

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")
MAX_HEADER = 100_000_000
CHUNK = 1 << 22


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor's bytes lie: `start` and `end` are offsets in `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def count(self) -> int:
        """Number of elements."""
        total = 1
        for size in self.shape:
            total *= size
        return total


def weight_files(folder: str | Path) -> list[Path]:
    """The safetensors files that make up the model: those of the index if there is one, else all of them."""
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return _indexed_files(index)
    single = folder / "model.safetensors"
    return [single] if single.exists() else sorted(folder.glob("*.safetensors"))


def tensors_of(file: Path) -> list[TensorEntry]:
    """Entries of one safetensors file, from its header alone. Raises BadInput when the file is damaged."""
    size = file.stat().st_size
    with open(file, "rb") as handle:
        prefix = handle.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER
        if length > min(size - 8, MAX_HEADER):
            raise BadInput(f"{file}: not a whole safetensors file; fetch it again.")
        header = handle.read(length)
    try:
        return [e for e in _entries(file, json.loads(header), 8 + length) if _within(e, size)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{file}: damaged safetensors header ({error}); fetch it again.") from None


def tensors(folder: str | Path) -> list[TensorEntry]:
    """All tensors of a model folder, sorted by name. Raises BadInput when there are none."""
    entries = [entry for file in weight_files(folder) for entry in tensors_of(file)]
    if not entries:
        raise BadInput(f"{folder}: no safetensors weights here; only safetensors files are loaded.")
    return sorted(entries, key=lambda entry: entry.name)


def weights_sha256(folder: str | Path) -> str:
    """Identity of a base: sha256 over (name, dtype, shape, bytes) of its tensors in the order of their names.

    Resharding, file names and header metadata do not change it; a different value, dtype or name does.
    """
    digest = hashlib.sha256()
    for entry in tensors(folder):
        digest.update(json.dumps([entry.name, entry.dtype, list(entry.shape)]).encode() + b"\n")
        _update(digest, entry)
    return digest.hexdigest()


def tokenizer_sha256(folder: str | Path) -> str:
    """sha256 over the tokenizer's vocabulary files and the chat template: what turns a chat into token ids.

    Empty when the folder holds no tokenizer.
    """
    folder = Path(folder)
    digest = hashlib.sha256()
    found = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    for name in found:
        digest.update(name.encode() + b"\n" + (folder / name).read_bytes())
    digest.update(chat_template(folder).encode())
    return digest.hexdigest() if found else ""


def chat_template(folder: str | Path) -> str:
    """The chat template of a model folder, wherever it is written; "" when there is none."""
    folder = Path(folder)
    for name in ("chat_template.jinja", "chat_template.json"):
        if (folder / name).exists():
            text = (folder / name).read_text(encoding="utf-8")
            return text if name.endswith("jinja") else json.loads(text).get("chat_template", "")
    template = read_json(folder / "tokenizer_config.json").get("chat_template") or ""
    return template if isinstance(template, str) else _default_template(template)


def file_sha256(path: str | Path) -> str:
    """sha256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_json(path: Path) -> dict:
    """The object in a JSON file, {} when the file is absent. Raises BadInput when it is not JSON."""
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise BadInput(f"{path}: cannot be read as JSON ({error}).") from None
    return made if isinstance(made, dict) else {}


def _indexed_files(index: Path) -> list[Path]:
    names = sorted(set(read_json(index).get("weight_map", {}).values()))
    files = [index.parent / name for name in names]
    for file in files:
        if file.parent != index.parent or not file.exists():
            raise BadInput(f"{index}: names {file.name}, which is not there; fetch the model again.")
    return files


def _entries(file: Path, header: dict, base: int) -> list[TensorEntry]:
    made = []
    for name, value in header.items():
        if name != "__metadata__":
            start, end = value["data_offsets"]
            made.append(TensorEntry(name, value["dtype"], tuple(value["shape"]), file, base + start, base + end))
    return made


def _within(entry: TensorEntry, size: int) -> bool:
    if not 0 <= entry.start <= entry.end <= size:
        raise ValueError(f"{entry.name} ends at byte {entry.end} of {size}")
    return True


def _update(digest: Any, entry: TensorEntry) -> None:
    with open(entry.file, "rb") as handle:
        handle.seek(entry.start)
        left = entry.end - entry.start
        while left > 0:
            chunk = handle.read(min(CHUNK, left))
            if not chunk:
                raise BadInput(f"{entry.file}: ends early; fetch it again.")
            digest.update(chunk)
            left -= len(chunk)


def _default_template(templates: list[dict]) -> str:
    named = {t.get("name"): t.get("template", "") for t in templates if isinstance(t, dict)}
    return named.get("default") or next(iter(named.values()), "")

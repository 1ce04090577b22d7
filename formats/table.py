"""A strict table of what must be in an export, and the comparison: nothing missing, nothing left over, every shape,
type and config field as the server reads it. Reads headers and JSON; no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from formats.checkpoint import read_object
from formats.report import Check, all_of
from models.identity import FLOATS, SIZES, TensorEntry, tensors_of
from speculoos.errors import BadInput

ALWAYS = ("config.json", "README.md", "validation.json", "SHA256SUMS")
MISSING: Any = object()


@dataclass(frozen=True)
class TensorTable:
    """`tensors`: shape and type of each, the type FLOAT for the draft's own. `config`: the value of each key, dotted
    names for nested ones; `either` of keys whose value is the exporter's choice. `why`: what the server makes of a
    wrong tensor or key."""

    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    config: Mapping[str, Any]
    float_type: str
    free: frozenset[str] = frozenset()
    why: Mapping[str, str] = field(default_factory=dict)
    weights: str = "model.safetensors"
    files: tuple[str, ...] = ()
    """Further files that must be there."""

    @property
    def size(self) -> int:
        """Bytes of the tensors, once more for a `.pt` of the same."""
        types = {FLOAT: self.float_type}
        held = sum(SIZES[types.get(kind, kind)] * prod(shape) for shape, kind in self.tensors.values())
        return held * (1 + sum(name.endswith(".pt") for name in self.files))


FLOAT = "FLOAT"


def compare(folder: Path, table: TensorTable) -> list[Check]:
    """The checks `files`, `tensors`, `types` and `config`."""
    try:
        entries = {entry.name: entry for entry in tensors_of(folder / table.weights)}
        config = read_object(folder / "config.json")
    except (OSError, BadInput) as error:
        return [Check("files", False, str(error).replace(f"{folder}/", ""))]
    return [
        all_of("files", _files(folder, table), f"{table.weights}, config.json and what belongs to them"),
        all_of("tensors", _tensors(entries, table), f"{len(entries)} tensors, none missing, none left over"),
        all_of("types", _types(entries, config, table), f"all weights are {FLOATS[table.float_type]}, as declared"),
        all_of("config", _config(config, table), f"{len(flat(config))} keys as the server reads them"),
    ]


def _files(folder: Path, table: TensorTable) -> list[str]:
    present = {path.name for path in folder.iterdir()}
    expected = {table.weights, "config.json", *table.files}
    gone = [f"{name} is missing." for name in sorted(expected - present)]
    return gone + [f"{name} does not belong here." for name in sorted(present - expected - {*ALWAYS})]


def _tensors(entries: Mapping[str, TensorEntry], table: TensorTable) -> list[str]:
    wrong = [
        f"{table.weights}: {name} is missing{_because(table, name)}." for name in table.tensors if name not in entries
    ]
    wrong += [f"{table.weights}: {name} does not belong here{_because(table, name)}." for name in entries
              if name not in table.tensors]  # fmt: skip
    return wrong + [
        f"{table.weights}: {_shape(name, entries[name].shape, shape)}"
        for name, (shape, _) in table.tensors.items()
        if name in entries and entries[name].shape != shape
    ]


def _shape(name: str, actual: tuple[int, ...], expected: tuple[int, ...]) -> str:
    turned = " It is transposed." if actual == expected[::-1] else ""
    return f"{name}: expected the shape {list(expected)}, found {list(actual)}.{turned}"


def _types(entries: Mapping[str, TensorEntry], config: Mapping[str, Any], table: TensorTable) -> list[str]:
    wrong = []
    for name, (_, kind) in table.tensors.items():
        expected = table.float_type if kind == FLOAT else kind
        if name in entries and entries[name].dtype != expected:
            wrong.append(f"{table.weights}: {name}: expected the type {expected}, found {entries[name].dtype}.")
    kinds = {FLOATS[entry.dtype] for entry in entries.values() if entry.dtype in FLOATS}
    for key in ("torch_dtype", "dtype"):
        if key in config and {config[key]} != kinds:
            wrong.append(f"config.json: {key} says {config[key]}, the tensors are {', '.join(sorted(kinds))}.")
    return wrong


def _config(config: Mapping[str, Any], table: TensorTable) -> list[str]:
    actual, expected = flat(config), flat(table.config)
    wrong = []
    for key, value in expected.items():
        have = actual.get(key, MISSING)
        if have is MISSING:
            wrong.append(f"config.json: {key} is missing{_because(table, key)}.")
        elif have != value or isinstance(have, bool) != isinstance(value, bool):
            wrong.append(f"config.json: {key}: expected {value!r}, found {have!r}{_because(table, key)}.")
    for key in actual:
        if key not in expected and key not in table.free:
            wrong.append(f"config.json: {key} does not belong here{_because(table, key)}.")
    return wrong


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted keys; an empty one stays a value."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def _because(table: TensorTable, name: str) -> str:
    said = table.why.get(name) or table.why.get(name.rpartition(".")[2], "")
    return f" ({said})" if said else ""

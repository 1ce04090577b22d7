"""A strict table of an export's tensors, config and files, and the comparison with it: nothing missing, nothing
unexpected, every shape, type and config field as the server reads it. Reads headers and JSON; no torch.
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
    """`tensors`: shape and type of each; the type FLOAT stands for `float_type`. `config`: the expected values; `free`:
    keys with any value, nested ones with dots. `why`: the effect of a wrong tensor or key on the server."""

    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    config: Mapping[str, Any]
    float_type: str
    free: frozenset[str] = frozenset()
    why: Mapping[str, str] = field(default_factory=dict)
    weights: str = "model.safetensors"
    files: tuple[str, ...] = ()
    """Names of further files."""

    @property
    def size(self) -> int:
        """Size of the tensors in bytes, including a `.pt` file of the same tensors."""
        types = {FLOAT: self.float_type}
        size = sum(SIZES[types.get(dtype, dtype)] * prod(shape) for shape, dtype in self.tensors.values())
        return size * (1 + sum(name.endswith(".pt") for name in self.files))


FLOAT = "FLOAT"


def compare(folder: Path, table: TensorTable) -> list[Check]:
    """The checks `files`, `tensors`, `types` and `config`."""
    try:
        entries = {entry.name: entry for entry in tensors_of(folder / table.weights)}
        config = read_object(folder / "config.json")
    except (OSError, BadInput) as error:
        return [Check("files", False, str(error).replace(f"{folder}/", ""))]
    return [
        all_of("files", _files(folder, table), f"{table.weights}, config.json and the expected further files"),
        all_of("tensors", _tensors(entries, table), f"{len(entries)} tensors, none missing, none unexpected"),
        all_of("types", _types(entries, config, table), f"all weights are {FLOATS[table.float_type]}, as declared"),
        all_of("config", _config(config, table), f"{len(flat(config))} keys as the server reads them"),
    ]


def _files(folder: Path, table: TensorTable) -> list[str]:
    present = {path.name for path in folder.iterdir()}
    expected = {table.weights, "config.json", *table.files}
    missing = [f"{name} is missing." for name in sorted(expected - present)]
    return missing + [f"{name} does not belong here." for name in sorted(present - expected - {*ALWAYS})]


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
    transposed = " It is transposed." if actual == expected[::-1] else ""
    return f"{name}: expected the shape {list(expected)}, found {list(actual)}.{transposed}"


def _types(entries: Mapping[str, TensorEntry], config: Mapping[str, Any], table: TensorTable) -> list[str]:
    wrong = []
    for name, (_, dtype) in table.tensors.items():
        expected = table.float_type if dtype == FLOAT else dtype
        if name in entries and entries[name].dtype != expected:
            wrong.append(f"{table.weights}: {name}: expected the type {expected}, found {entries[name].dtype}.")
    types = {FLOATS[entry.dtype] for entry in entries.values() if entry.dtype in FLOATS}
    for key in ("torch_dtype", "dtype"):
        if key in config and {config[key]} != types:
            wrong.append(f"config.json: {key} says {config[key]}, the tensors are {', '.join(sorted(types))}.")
    return wrong


def _config(config: Mapping[str, Any], table: TensorTable) -> list[str]:
    actual, expected = flat(config), flat(table.config)
    wrong = []
    for key, value in expected.items():
        found = actual.get(key, MISSING)
        if found is MISSING:
            wrong.append(f"config.json: {key} is missing{_because(table, key)}.")
        elif found != value or isinstance(found, bool) != isinstance(value, bool):
            wrong.append(f"config.json: {key}: expected {value!r}, found {found!r}{_because(table, key)}.")
    for key in actual:
        if key not in expected and key not in table.free:
            wrong.append(f"config.json: {key} does not belong here{_because(table, key)}.")
    return wrong


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted keys; an empty object stays a value."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def _because(table: TensorTable, name: str) -> str:
    reason = table.why.get(name) or table.why.get(name.rpartition(".")[2], "")
    return f" ({reason})" if reason else ""

"""A strict table of an export's tensors, config and files, written from the servers' source
(`tests/formats/tables/`), and the comparison with it: nothing missing, nothing unexpected, every shape, type and config
field as the server reads it.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formats.checkpoint import CheckpointFiles
from models.identity import FLOATS, read_json, tensors_of

ALWAYS = {"config.json", "README.md", "validation.json", "SHA256SUMS"}
FLOAT = "FLOAT"


@dataclass(frozen=True)
class TensorTable:
    """`tensors`: shape and type of each; the type FLOAT stands for `float_type`. `config`: the expected values; `free`:
    keys with any value, nested ones with dots. `files`: names of further files."""

    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    config: Mapping[str, Any]
    float_type: str
    free: frozenset[str] = frozenset()
    weights: str = "model.safetensors"
    files: tuple[str, ...] = ()


def check_table(folder: Path, name: str, checkpoint: CheckpointFiles) -> None:
    """Compare an export in the format `name` with its table."""
    module = importlib.import_module(f"tests.formats.tables.{checkpoint.method}")
    table: TensorTable = getattr(module, name)(checkpoint)
    assert {path.name for path in folder.iterdir()} == {table.weights, *table.files, *ALWAYS}
    stored = {entry.name: (entry.shape, entry.dtype) for entry in tensors_of(folder / table.weights)}
    assert stored == {
        tensor: (shape, table.float_type if dtype == FLOAT else dtype)
        for tensor, (shape, dtype) in table.tensors.items()
    }
    config = read_json(folder / "config.json")
    types = {FLOATS[dtype] for _, dtype in stored.values() if dtype in FLOATS}
    assert all({config[key]} == types for key in ("torch_dtype", "dtype") if key in config)
    expected = flat(table.config)
    assert {key: repr(value) for key, value in flat(config).items() if key in expected or key not in table.free} == {
        key: repr(value) for key, value in expected.items()
    }


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted keys; an empty object stays a value."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values

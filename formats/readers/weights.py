"""Tensors of a safetensors file, read on demand in float32. Tensors of small files are cached. Tensors of large files
are not, and only a few rows of their matrices are in memory at a time, so that validation needs little memory. Inside
`heeding`, every read checks for a requested stop.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.nn import functional as F

from formats.checkpoint import read_object
from speculoos.reporting import check_current_stop

MAX_CACHED = 256 << 20
"""Largest file, in bytes, whose tensors are cached."""
SLICE = 4 << 20
"""Elements of a matrix that are in memory at a time if the file is not cached."""


class Weights:
    """A mapping from names to tensors. `used` are the names that were read."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._caching = self.path.stat().st_size <= MAX_CACHED
        self._cache: dict[str, torch.Tensor] = {}
        with safe_open(self.path, "pt") as stored:
            self.names = frozenset(stored.keys())
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor; floating-point types as float32. Raises KeyError with the file's name if it is missing."""
        self.used.add(name)
        if name in self._cache:
            return self._cache[name]
        if name not in self.names:
            raise KeyError(f"{self.path.name}: {name} is missing.")
        check_current_stop()
        with safe_open(self.path, "pt") as stored:
            tensor = stored.get_tensor(name)
        value = tensor.float() if tensor.is_floating_point() else tensor.clone()
        if self._caching:
            self._cache[name] = value
        return value

    def linear(self, x: torch.Tensor, name: str, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [..., in] times the matrix `name` [out, in] → [..., out]; a large matrix is read a few rows at a time."""
        if self._caching or name not in self.names:
            return F.linear(x, self[name], bias)
        self.used.add(name)
        product = torch.cat([F.linear(x, rows.float()) for rows in row_chunks(self.path, name)], -1)
        return product if bias is None else product + bias

    def embedding(self, ids: torch.Tensor, name: str) -> torch.Tensor:
        """Rows `ids` [...] of the matrix `name` [n, width] → [..., width]; of a large matrix only these rows are
        read."""
        if self._caching or name not in self.names:
            return F.embedding(ids, self[name])
        self.used.add(name)
        check_current_stop()
        unique, inverse = ids.unique(return_inverse=True)
        with safe_open(self.path, "pt") as stored:
            matrix = stored.get_slice(name)
            rows = torch.cat([matrix[row : row + 1] for row in unique.tolist()]).float()
        return rows.to(ids.device)[inverse]

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def unused(self) -> list[str]:
        """Names of tensors that were never read."""
        return sorted(self.names - self.used)


def open_export(folder: Path) -> tuple[dict[str, Any], Weights]:
    """config.json and the weights of an export."""
    return read_object(folder / "config.json"), Weights(folder / "model.safetensors")


def row_chunks(path: Path, name: str) -> Iterator[torch.Tensor]:
    """A tensor of a safetensors file in its stored type, a few rows at a time. The file is opened for each chunk,
    because pages read from a mapping count as memory of this process until the mapping is closed."""
    with safe_open(path, "pt") as stored:
        if not (shape := stored.get_slice(name).get_shape()):
            yield stored.get_tensor(name)
            return
    step = max(SLICE // max(torch.Size(shape[1:]).numel(), 1), 1)
    for start in range(0, shape[0], step):
        check_current_stop()
        with safe_open(path, "pt") as stored:
            yield stored.get_slice(name)[start : start + step]

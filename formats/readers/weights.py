"""Tensors of a safetensors file, read when asked for, in float32. Small files are kept; of a large one no tensor stays
longer than it is used, and of its matrices only some rows are in memory at a time, so that a proof costs little.
Remembers what was asked for; a stop that was asked for is met at every read of a large file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.nn import functional as F

from formats.checkpoint import read_object
from speculoos.reporting import heed

KEPT = 256 << 20
"""Files up to so many bytes are kept once read."""
SLICE = 4 << 20
"""Elements of a matrix that are in memory at a time where the file is not kept."""


class Weights:
    """Like a mapping from names to tensors."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._keep = self.path.stat().st_size <= KEPT
        self._read: dict[str, torch.Tensor] = {}
        with safe_open(self.path, "pt") as stored:
            self.names = frozenset(stored.keys())
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor, floating point as float32. Raises KeyError naming it."""
        self.used.add(name)
        if name in self._read:
            return self._read[name]
        if name not in self.names:
            raise KeyError(f"{self.path.name}: {name} is missing.")
        heed()
        with safe_open(self.path, "pt") as stored:
            tensor = stored.get_tensor(name)
        value = tensor.float() if tensor.is_floating_point() else tensor.clone()
        if self._keep:
            self._read[name] = value
        return value

    def linear(self, x: torch.Tensor, name: str, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [..., in] times the matrix `name` [out, in] → [..., out]; a large one passes some rows at a time."""
        if self._keep or name not in self.names:
            return F.linear(x, self[name], bias)
        self.used.add(name)
        product = torch.cat([F.linear(x, part.float()) for part in pieces(self.path, name)], -1)
        return product if bias is None else product + bias

    def embedding(self, ids: torch.Tensor, name: str) -> torch.Tensor:
        """Rows `ids` [...] of the matrix `name` [n, width] → [..., width]; of a large one no other rows are read."""
        if self._keep or name not in self.names:
            return F.embedding(ids, self[name])
        self.used.add(name)
        heed()
        each, where = ids.unique(return_inverse=True)
        with safe_open(self.path, "pt") as stored:
            matrix = stored.get_slice(name)
            rows = torch.cat([matrix[row : row + 1] for row in each.tolist()]).float()
        return rows.to(ids.device)[where]

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def unused(self) -> list[str]:
        """Tensors that nobody asked for."""
        return sorted(self.names - self.used)


def opened(folder: Path) -> tuple[dict[str, Any], Weights]:
    """config.json and the weights of an export."""
    return read_object(folder / "config.json"), Weights(folder / "model.safetensors")


def pieces(path: Path, name: str) -> Iterator[torch.Tensor]:
    """A tensor of a safetensors file, some rows at a time, as it is stored. The file is opened for each piece: what a
    mapping has read would count as this process's memory for as long as the mapping lives."""
    with safe_open(path, "pt") as stored:
        if not (shape := stored.get_slice(name).get_shape()):
            yield stored.get_tensor(name)
            return
    step = max(SLICE // max(torch.Size(shape[1:]).numel(), 1), 1)
    for at in range(0, shape[0], step):
        heed()
        with safe_open(path, "pt") as stored:
            yield stored.get_slice(name)[at : at + step]

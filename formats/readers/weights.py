"""Tensors of a safetensors file, read when asked for, in float32. Small files are kept; of a large one no tensor stays
longer than it is used, so that a proof costs little memory. Remembers what was asked for.
"""

from pathlib import Path

import torch
from safetensors import safe_open
from torch.nn import functional as F

KEPT = 256 << 20
"""Files up to so many bytes are kept once read."""
SLICE = 4 << 20
"""Elements of a matrix that are in memory at a time where the file is not kept."""


class Weights:
    """Like a mapping from names to tensors."""

    def __init__(self, path: str | Path, kept: int = KEPT):
        self.path = Path(path)
        self._keep = self.path.stat().st_size <= kept
        self._read: dict[str, torch.Tensor] = {}
        with safe_open(self.path, "pt") as stored:
            self.names = frozenset(stored.keys())
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor, floating point as float32. Raises KeyError naming it."""
        self.asked.add(name)
        if name in self._read:
            return self._read[name]
        if name not in self.names:
            raise KeyError(f"{self.path.name}: {name} is missing.")
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
        self.asked.add(name)
        with safe_open(self.path, "pt") as stored:
            rows, width = stored.get_slice(name).get_shape()
        step = max(SLICE // width, 1)
        parts = [F.linear(x, self._rows(name, at, at + step)) for at in range(0, rows, step)]
        return torch.cat(parts, -1) if bias is None else torch.cat(parts, -1) + bias

    def _rows(self, name: str, first: int, last: int) -> torch.Tensor:
        with safe_open(self.path, "pt") as stored:
            return stored.get_slice(name)[first:last].float()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def unused(self) -> list[str]:
        """Tensors that nobody asked for."""
        return sorted(self.names - self.asked)

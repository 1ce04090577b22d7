"""Tensors of a safetensors file, read when asked for, in float32. Small files are kept; of a large one no tensor stays
longer than it is used, so that a proof costs the memory of its largest tensor. Remembers what was asked for.
"""

from pathlib import Path

import torch
from safetensors import safe_open

KEPT = 256 << 20
"""Files up to so many bytes are kept once read."""


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

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def unused(self) -> list[str]:
        """Tensors that nobody asked for."""
        return sorted(self.names - self.asked)

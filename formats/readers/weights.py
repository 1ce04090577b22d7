"""Tensors of an export's safetensors file in float32, and which of them a reader has read."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from formats.checkpoint import read_object


class Weights:
    """A mapping from names to tensors; floating-point types as float32."""

    def __init__(self, path: Path):
        self.path, self.tensors = path, load_file(path)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        """Raises KeyError with the file's name if the tensor is missing."""
        if name not in self.tensors:
            raise KeyError(f"{self.path.name}: {name} is missing.")
        self.used.add(name)
        value = self.tensors[name]
        return value.float() if value.is_floating_point() else value

    def linear(self, x: torch.Tensor, name: str, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [..., in] times the matrix `name` [out, in] → [..., out]."""
        return F.linear(x, self[name], bias)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    @property
    def unused(self) -> list[str]:
        """Names of tensors that were never read."""
        return sorted({*self.tensors} - self.used)


def open_export(folder: Path) -> tuple[dict[str, Any], Weights]:
    """config.json and the weights of an export."""
    return read_object(folder / "config.json"), Weights(folder / "model.safetensors")

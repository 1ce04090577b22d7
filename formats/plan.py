"""What a writer decides before a byte is written: tensors by name with where their bytes come from, and the texts
beside them. No torch: bytes are copied, a few small tensors are made, and one kind is cast while it passes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from models.identity import FLOATS, SIZES, TensorEntry

CHUNK = 4 << 20


@dataclass(frozen=True)
class TensorSource:
    """One tensor of an export; `chunks` gives its bytes, row-major, little-endian, a few megabytes at a time."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[bytes]]

    @property
    def size(self) -> int:
        """Bytes."""
        return SIZES[self.dtype] * prod(self.shape)


@dataclass(frozen=True)
class ExportPlan:
    """The files of an export. `pickled` names a torch.save file of the same tensors, "" for none."""

    tensors: list[TensorSource]
    config: dict[str, Any]
    weights: str = "model.safetensors"
    pickled: str = ""
    copies: tuple[Path, ...] = ()
    """Files that are taken as they are, under their own names."""
    texts: dict[str, str] = field(default_factory=dict)


def from_entry(entry: TensorEntry, name: str = "") -> TensorSource:
    """A stored tensor as it is, under another name where one is given."""
    return TensorSource(name or entry.name, entry.dtype, entry.shape, entry.chunks)


def constant(name: str, dtype: str, shape: tuple[int, ...], content: bytes) -> TensorSource:
    """A small tensor that no file holds."""
    return TensorSource(name, dtype, shape, lambda: iter((content,)))


def zeros(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSource:
    """Zero in every type is zero bytes."""
    return constant(name, dtype, shape, bytes(SIZES[dtype] * prod(shape)))


def cast(name: str, tensor: Any, dtype: str) -> TensorSource:
    """A matrix [rows, columns] in memory, in another floating-point type, some rows at a time."""

    def chunks() -> Iterator[bytes]:
        step = max(CHUNK // (8 * tensor.shape[1]), 1)
        for rows in tensor.detach().split(step):
            yield _bytes(rows, dtype)

    return TensorSource(name, dtype, tuple(tensor.shape), chunks)


def widen(piece: TensorSource, dtype: str) -> TensorSource:
    """A floating-point tensor in another type; itself where it is of that type."""
    if piece.dtype == dtype:
        return piece

    def chunks() -> Iterator[bytes]:
        import torch

        for chunk in piece.chunks():
            yield _bytes(torch.frombuffer(bytearray(chunk), dtype=getattr(torch, FLOATS[piece.dtype])), dtype)

    return TensorSource(piece.name, dtype, piece.shape, chunks)


def _bytes(values: Any, dtype: str) -> bytes:
    """A tensor's elements in the type `dtype`."""
    import torch

    return values.to("cpu", getattr(torch, FLOATS[dtype])).contiguous().view(torch.uint8).numpy().tobytes()

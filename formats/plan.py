"""The plan that a writer makes of an export: its tensors with the source of their bytes, its config and its other
files. Most tensors are copied byte by byte; a few small ones are created, and Medusa heads may be cast. No torch at
import."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from models.identity import FLOATS, SIZES, TensorEntry

CHUNK = 4 << 20


@dataclass(frozen=True)
class TensorSource:
    """One tensor of an export; `chunks` yields its bytes, row-major, little-endian, a few megabytes at a time."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[bytes]]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return SIZES[self.dtype] * prod(self.shape)


@dataclass(frozen=True)
class ExportPlan:
    """The files of an export. `weights` and `pickled` are file names; `pickled` is written with torch.save, "" for
    none."""

    tensors: list[TensorSource]
    config: dict[str, Any]
    weights: str = "model.safetensors"
    pickled: str = ""
    copies: tuple[Path, ...] = ()
    """Files that are copied under their own names."""
    texts: dict[str, str] = field(default_factory=dict)


def from_entry(entry: TensorEntry, name: str = "") -> TensorSource:
    """A stored tensor, copied; `name` replaces its name."""
    return TensorSource(name or entry.name, entry.dtype, entry.shape, entry.chunks)


def constant(name: str, dtype: str, shape: tuple[int, ...], content: bytes) -> TensorSource:
    """A small tensor that is not in a file."""
    return TensorSource(name, dtype, shape, lambda: iter((content,)))


def zeros(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSource:
    """A tensor of zeros; in every type, zero is stored as zero bytes."""
    return constant(name, dtype, shape, bytes(SIZES[dtype] * prod(shape)))


def cast(name: str, tensor: Any, dtype: str) -> TensorSource:
    """A matrix [rows, columns] in memory, cast to another floating-point type, a few rows at a time."""

    def chunks() -> Iterator[bytes]:
        step = max(CHUNK // (8 * tensor.shape[1]), 1)
        for rows in tensor.detach().split(step):
            yield _bytes(rows, dtype)

    return TensorSource(name, dtype, tuple(tensor.shape), chunks)


def widen(source: TensorSource, dtype: str) -> TensorSource:
    """A floating-point tensor cast to `dtype`; unchanged if it already has that type."""
    if source.dtype == dtype:
        return source

    def chunks() -> Iterator[bytes]:
        import torch

        for chunk in source.chunks():
            yield _bytes(torch.frombuffer(bytearray(chunk), dtype=getattr(torch, FLOATS[source.dtype])), dtype)

    return TensorSource(source.name, dtype, source.shape, chunks)


def _bytes(values: Any, dtype: str) -> bytes:
    """The bytes of a tensor in the type `dtype`."""
    import torch

    return values.to("cpu", getattr(torch, FLOATS[dtype])).contiguous().view(torch.uint8).numpy().tobytes()

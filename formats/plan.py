"""The plan that a writer makes of an export: its tensors with the source of their bytes, its config and its other
files. Most tensors are copied byte by byte; a few small ones are created, and Medusa heads may be cast. No torch at
import."""

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from models.identity import FLOATS, SIZES, TensorEntry
from speculoos.errors import Damaged
from speculoos.reporting import Reporter, check_stop

ROWS = 1024
"""Rows of a matrix that are cast at once."""
BLOCKS = {"Q8_0": (32, 34), "Q4_1": (32, 20)}
"""{block type of GGUF: (elements, bytes) of a block}."""


@dataclass(frozen=True)
class TensorSource:
    """One tensor of an export; `chunks` yields its bytes, row-major, little-endian, a few megabytes at a time."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[bytes]]

    @property
    def size(self) -> int:
        elements, size = BLOCKS.get(self.dtype) or (1, SIZES[self.dtype])
        return size * prod(self.shape) // elements


@dataclass(frozen=True)
class ExportPlan:
    """The files of an export. `weights` and `pickled` (written with torch.save, "" for none) are file names."""

    tensors: Sequence[TensorSource] = ()
    config: dict[str, Any] = field(default_factory=dict)
    weights: str = "model.safetensors"
    pickled: str = ""
    copies: tuple[Path, ...] = ()
    """Files that are copied under their own names."""
    texts: dict[str, str] = field(default_factory=dict)
    tokenizer: Path | None = None
    """GGUF: the folder of the tokenizer that is in the file."""

    @property
    def size(self) -> int:
        """Size of the tensors in bytes, once for each file."""
        return sum(tensor.size for tensor in self.tensors) * (2 if self.pickled else 1)


def from_entry(entry: TensorEntry, name: str = "") -> TensorSource:
    """A stored tensor, copied; `name` replaces its name."""
    return TensorSource(name or entry.name, entry.dtype, entry.shape, entry.chunks)


def constant(name: str, dtype: str, shape: tuple[int, ...], content: bytes) -> TensorSource:
    """A small tensor that is not in a file."""
    return TensorSource(name, dtype, shape, lambda: iter((content,)))


def cast(name: str, shape: tuple[int, int], dtype: str, matrix: Callable[[], Any]) -> TensorSource:
    """The torch matrix that `matrix()` returns, cast to another floating-point type, a few rows at a time."""

    def chunks() -> Iterator[bytes]:
        for rows in matrix().detach().split(ROWS):
            yield _bytes(rows, dtype)

    return TensorSource(name, dtype, shape, chunks)


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
    import torch

    return values.to("cpu", getattr(torch, FLOATS[dtype])).contiguous().view(torch.uint8).numpy().tobytes()


def write_tensors(path: Path, tensors: Sequence[TensorSource], on_bytes: Callable[[int], None]) -> None:
    """Write one safetensors file in a few megabytes of memory; `on_bytes` is called with the size of every chunk. The
    format is eight bytes of length, a JSON header, the data (https://huggingface.co/docs/safetensors). Tensors with
    larger elements come first, so that each is aligned for memory mapping. Raises Damaged if a source is shorter than
    its header says."""
    tensors = sorted(tensors, key=lambda tensor: (-SIZES[tensor.dtype], tensor.name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        span = [offset, offset + tensor.size]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": span}
        offset += tensor.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            write_tensor(out, tensor, on_bytes)


def write_tensor(out: BinaryIO, tensor: TensorSource, on_bytes: Callable[[int], None]) -> None:
    """Write the bytes of one tensor; `on_bytes` is called with the size of every chunk. Raises Damaged if its source is
    shorter than its header says."""
    written = 0
    for chunk in tensor.chunks():
        written += out.write(chunk)
        on_bytes(len(chunk))
    if written != tensor.size:
        raise Damaged(f"{tensor.name}: {written} of {tensor.size} bytes could be read.")


def byte_counter(reporter: Reporter, total: int, note: str) -> Callable[[int], None]:
    """A callback that counts bytes and reports the progress. It raises Cancelled if a stop was requested."""
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        check_stop(reporter)
        done += count
        reporter.progress(min(done, total), total, "bytes", note)

    return on_bytes

"""Streaming writers of tensor files, so that an export needs only a few megabytes of memory: the safetensors container
(https://huggingface.co/docs/safetensors: eight bytes of length, a JSON header, the data), and a torch.save file made
from a memory-mapped safetensors file.
"""

import gc
import json
import mmap
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from formats.plan import CHUNK, TensorSource
from models.identity import FLOATS, SIZES, tensors_of
from speculoos.errors import Damaged

INTEGERS = {"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}


def write(path: Path, tensors: Sequence[TensorSource], on_bytes: Callable[[int], None] = lambda _: None) -> None:
    """Write one safetensors file; `on_bytes` is called with the size of every chunk. Tensors with larger elements come
    first, so that each tensor is aligned for memory mapping. Raises Damaged if a source is shorter than its header
    says."""
    tensors = sorted(tensors, key=lambda tensor: (-SIZES[tensor.dtype], tensor.name))
    with open(path, "wb") as out:
        out.write(header(tensors))
        for tensor in tensors:
            written = 0
            for chunk in tensor.chunks():
                written += out.write(chunk)
                on_bytes(len(chunk))
            if written != tensor.size:
                raise Damaged(f"{tensor.name}: {written} of {tensor.size} bytes could be read.")


def header(tensors: Sequence[TensorSource]) -> bytes:
    """Length and header of consecutive tensors, padded so that the data begin at a multiple of eight."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        span = [offset, offset + tensor.size]
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": span}
        offset += tensor.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_pickle(weights: Path, path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> None:
    """Write the tensors of a safetensors file as a state dict with torch.save; `on_bytes` is called with the size of
    every chunk. The file is memory-mapped, and written pages are released at once."""
    import torch

    with open(weights, "rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
        with open(path, "wb") as out:
            torch.save(mapped(weights, pages), _ReleasingFile(out, pages, on_bytes))
        gc.collect()  # the mapping cannot be closed while a tensor still refers to it


def mapped(weights: Path, pages: mmap.mmap) -> dict[str, Any]:
    """The tensors of a safetensors file as views of the mapping `pages`, each with a storage of its own."""
    import torch

    tensors = {}
    for entry in tensors_of(weights):
        dtype = getattr(torch, (FLOATS | INTEGERS)[entry.dtype])
        flat = torch.frombuffer(pages, dtype=dtype, count=entry.count, offset=entry.start)
        tensors[entry.name] = flat.view(entry.shape)
    return tensors


class _ReleasingFile:
    """A file that mapped bytes are written to in chunks. Written pages are released, because pages read from a mapping
    count as memory of this process."""

    def __init__(self, out: BinaryIO, pages: mmap.mmap, on_bytes: Callable[[int], None]):
        self.out, self.pages, self.on_bytes = out, pages, on_bytes

    def write(self, content: Any) -> int:
        with memoryview(content) as view, view.cast("B") as flat:
            for start in range(0, len(flat), CHUNK):
                self.out.write(flat[start : start + CHUNK])
                self.pages.madvise(mmap.MADV_DONTNEED)
                self.on_bytes(len(flat[start : start + CHUNK]))
            return len(flat)

    def flush(self) -> None:
        self.out.flush()

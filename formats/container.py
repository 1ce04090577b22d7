"""Files of tensors written while they are read, so that an export costs no more memory than a few megabytes: the
safetensors container (https://huggingface.co/docs/safetensors: eight bytes of length, a JSON header, the data), and a
torch.save file made of a written one, mapped and not loaded.
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


def write(path: Path, pieces: Sequence[TensorSource], passed: Callable[[int], None] = lambda _: None) -> None:
    """Write `pieces` as one safetensors file; `passed` hears of every number of bytes. Larger elements come first, so
    that each tensor lies where a mapping may read it. Raises Damaged where a source is shorter than its header says."""
    pieces = sorted(pieces, key=lambda piece: (-SIZES[piece.dtype], piece.name))
    with open(path, "wb") as out:
        out.write(header(pieces))
        for piece in pieces:
            written = 0
            for chunk in piece.chunks():
                written += out.write(chunk)
                passed(len(chunk))
            if written != piece.size:
                raise Damaged(f"{piece.name}: {written} of {piece.size} bytes could be read.")


def header(pieces: Sequence[TensorSource]) -> bytes:
    """Length and header of pieces that follow one another without a hole; padded so that data begin at a multiple of
    eight."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for piece in pieces:
        span = [at, at + piece.size]
        entries[piece.name] = {"dtype": piece.dtype, "shape": list(piece.shape), "data_offsets": span}
        at += piece.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def pickle_of(weights: Path, path: Path, passed: Callable[[int], None] = lambda _: None) -> None:
    """The tensors of a safetensors file as torch.save writes a state dict; `passed` hears of every number of bytes.
    They are mapped, and what was written is let go of at once."""
    import torch

    with open(weights, "rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
        with open(path, "wb") as out:
            torch.save(mapped(weights, pages), _Released(out, pages, passed))
        gc.collect()  # a tensor that still looked at the pages would keep them from being closed


def mapped(weights: Path, pages: mmap.mmap) -> dict[str, Any]:
    """Each tensor of a safetensors file in the mapping of its `pages`, a storage of its own."""
    import torch

    tensors = {}
    for entry in tensors_of(weights):
        dtype = getattr(torch, (FLOATS | INTEGERS)[entry.dtype])
        flat = torch.frombuffer(pages, dtype=dtype, count=entry.count, offset=entry.start)
        tensors[entry.name] = flat.view(entry.shape)
    return tensors


class _Released:
    """A file to write mapped bytes to, a piece at a time: pages that were written are dropped, since what was read of a
    mapping counts as this process's memory."""

    def __init__(self, out: BinaryIO, pages: mmap.mmap, passed: Callable[[int], None]):
        self.out, self.pages, self.passed = out, pages, passed

    def write(self, content: Any) -> int:
        with memoryview(content) as view, view.cast("B") as flat:
            for at in range(0, len(flat), CHUNK):
                self.out.write(flat[at : at + CHUNK])
                self.pages.madvise(mmap.MADV_DONTNEED)
                self.passed(len(flat[at : at + CHUNK]))
            return len(flat)

    def flush(self) -> None:
        self.out.flush()

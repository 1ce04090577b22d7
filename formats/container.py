"""Files of tensors written while they are read, so that an export costs no more memory than a few megabytes: the
safetensors container (https://huggingface.co/docs/safetensors: eight bytes of length, a JSON header, the data), and a
torch.save file made of a written one, mapped and not loaded.
"""

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from formats.plan import SIZES, Piece
from models.identity import tensors_of
from speculoos.errors import Damaged

TORCH = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"},
}


def write(path: Path, pieces: Sequence[Piece], passed: Callable[[int], None] = lambda _: None) -> None:
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


def header(pieces: Sequence[Piece]) -> bytes:
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


def pickle_of(weights: Path, path: Path) -> None:
    """The tensors of a safetensors file as torch.save writes a state dict. They are mapped: what is read of the file is
    the page cache's, not this process's."""
    import torch

    torch.save(mapped(weights), path)


def mapped(weights: Path) -> dict[str, Any]:
    """Each tensor of a safetensors file as a mapping of its bytes, a storage of its own."""
    import numpy
    import torch

    made = {}
    for entry in tensors_of(weights):
        raw = numpy.memmap(weights, numpy.uint8, "c", entry.start, (entry.end - entry.start,))
        made[entry.name] = torch.from_numpy(raw).view(getattr(torch, TORCH[entry.dtype])).view(entry.shape)
    return made

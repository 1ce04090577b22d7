"""Tokenised conversations on disk: one memory-mapped safetensors file per piece of a shard.

Tensors: `ids` int32 [T], `mask` bool [T] (in the loss), `starts` int64 [N + 1], and `words`, JSON in bytes: `rows` (see
`row_info`, with the row's number in the piece), `dropped` (unusable rows with their reasons) and `largest_id` (of the
token ids stored in the data; -1 without any). Writing needs no torch.
"""

import hashlib
import json
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculoos.errors import BadInput
from speculoos.files import new_path
from training.masks import MaskedTokens

PIECE_BYTES = 8 << 20
"""Bytes of a shard's text per piece, the unit that one process tokenises and holds in memory."""
SUM = "crc32"


@dataclass(frozen=True)
class Piece:
    """The rows of `shard` that begin in bytes [start, end); `digest` is the shard's sha256."""

    shard: Path
    digest: str
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.digest[:32]}-{self.start // PIECE_BYTES:06d}.safetensors"

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The non-empty lines of this piece with their offsets in the shard."""
        with open(self.shard, "rb") as handle:
            if self.start:
                handle.seek(self.start - 1)
                handle.readline()  # a line that began earlier belongs to the previous piece
            while (offset := handle.tell()) < self.end and (line := handle.readline()):
                if line.strip():
                    yield offset, line


def split_shard(shard: Path, digest: str) -> list[Piece]:
    size = shard.stat().st_size
    return [Piece(shard, digest, start, min(start + PIECE_BYTES, size)) for start in range(0, size, PIECE_BYTES)]


def row_info(row: Mapping[str, Any], masked: MaskedTokens) -> dict[str, str]:
    """`id`, `category`, `mask_source`, and `group`: the hash of the first prompt. Rows with the same prompt are on the
    same side of the held-out split."""
    users = [m.get("content", "") for m in row.get("messages") or [] if m.get("role") == "user"]
    group = hashlib.sha256(str(users[0] if users else row.get("id", "")).encode()).hexdigest()
    names = {"id": str(row.get("id", "")), "category": str(row.get("category", ""))}
    return {**names, "group": group, "mask_source": masked.source}


class TokenWriter:
    """Collects the rows of one piece; `dropped` are unusable rows with their reasons."""

    def __init__(self) -> None:
        self.ids, self.mask, self.starts = array("i"), bytearray(), array("q", [0])
        self.rows: list[dict[str, Any]] = []
        self.dropped: list[tuple[int, str]] = []
        self.largest_id = -1

    def add(self, number: int, row: Mapping[str, Any], masked: MaskedTokens) -> None:
        """Add row `number` of the piece. Raises BadInput for invalid token ids."""
        try:
            ids = array("i", masked.token_ids)
        except OverflowError:
            raise BadInput("token_ids: holds a number that is no token id") from None
        if row.get("token_ids"):
            self.largest_id = max(self.largest_id, *ids)
        self.ids.extend(ids)
        self.mask.extend(masked.mask)
        self.starts.append(len(self.ids))
        self.rows.append({"number": number, **row_info(row, masked)})

    def write(self, file: Path) -> None:
        """Write the file atomically."""
        from safetensors.numpy import save_file

        words = {"rows": self.rows, "dropped": self.dropped, "largest_id": self.largest_id}
        arrays = {
            "ids": _array(self.ids, "int32"),
            "mask": _array(self.mask, "bool"),
            "starts": _array(self.starts, "int64"),
            "words": _array(json.dumps(words).encode(), "uint8"),
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_path(file) as temporary:
            save_file(arrays, temporary, {SUM: _sum(arrays)})


class TokenFile:
    """A memory-mapped token file: ids and masks of rows are views, loaded on access."""

    def __init__(self, file: Path):
        """Raises ValueError for a damaged file."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="pt") as reader:
                checksum = (reader.metadata() or {}).get(SUM)
                tensors = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(str(error)) from None
        if checksum != _sum({name: tensor.numpy() for name, tensor in tensors.items()}):
            raise ValueError("its checksum does not match")
        self._ids, self._mask = tensors["ids"], tensors["mask"]
        self._starts: list[int] = tensors["starts"].tolist()
        words = json.loads(tensors["words"].numpy().tobytes())
        self.rows: list[dict[str, Any]] = words["rows"]
        self.dropped: dict[int, str] = dict(words["dropped"])
        self.largest_id: int = words["largest_id"]

    def tokens(self, index: int) -> tuple[Any, Any]:
        """(ids int32 [n], mask bool [n]) of a row."""
        part = slice(self._starts[index], self._starts[index + 1])
        return self._ids[part], self._mask[part]


def _array(values: Any, dtype: str) -> Any:
    import numpy

    return numpy.frombuffer(values, dtype) if len(values) else numpy.zeros(0, dtype)


def _sum(arrays: Mapping[str, Any]) -> str:
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(arrays[name].view("uint8"), total)
    return str(total)

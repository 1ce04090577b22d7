"""Tokenised conversations on disk: one memory-mapped safetensors file per piece of a shard.

Tensors: `ids` int32 [T], `mask` bool [T] (in the loss), `starts` int64 [N + 1], `rows` int64 [N] (row number in the
piece, from 0), `groups` uint8 [N, 32] (sha256 of the first prompt), `sources` uint8 [N] (index into SOURCES), and
`words`, JSON in bytes: ids and categories of the rows, unusable rows with their reasons, and the number of rows with
stored token ids (`own`) and their largest id (`largest`). Writing needs no torch.
"""

import hashlib
import json
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from speculoos.errors import BadInput
from speculoos.files import new_path
from training.masks import MASK_SOURCES, MaskedTokens

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
        """Name of the token file."""
        return f"{self.digest[:32]}-{self.start // PIECE_BYTES:06d}.safetensors"

    def lines(self) -> Iterator[bytes]:
        """The non-empty lines of this piece."""
        with open(self.shard, "rb") as handle:
            if self.start:
                handle.seek(self.start - 1)
                handle.readline()  # a line that began earlier belongs to the previous piece
            while handle.tell() < self.end and (line := handle.readline()):
                if line.strip():
                    yield line


def split_shard(shard: Path, digest: str) -> list[Piece]:
    """The pieces of a shard, in order."""
    size = shard.stat().st_size
    return [Piece(shard, digest, start, min(start + PIECE_BYTES, size)) for start in range(0, size, PIECE_BYTES)]


class TokenWriter:
    """Collects the rows of one piece."""

    def __init__(self) -> None:
        self.ids, self.mask, self.starts, self.rows = array("i"), bytearray(), array("q", [0]), array("q")
        self.groups, self.sources = bytearray(), bytearray()
        self.names: list[str] = []
        self.categories: list[str] = []
        self.dropped: list[tuple[int, str]] = []
        self.own, self.largest = 0, -1

    def add(self, number: int, row: Mapping[str, Any], masked: MaskedTokens) -> None:
        """Add row `number` of the piece. Raises BadInput for invalid token ids."""
        try:
            ids = array("i", masked.token_ids)
        except OverflowError:
            raise BadInput("token_ids: holds a number that is no token id") from None
        self.ids.extend(ids)
        self.mask.extend(masked.mask)
        self.starts.append(len(self.ids))
        self.rows.append(number)
        self.groups.extend(prompt_group(row))
        self.sources.append(MASK_SOURCES.index(masked.source))
        self.names.append(str(row.get("id", "")))
        self.categories.append(str(row.get("category", "")))
        if row.get("token_ids"):
            self.own, self.largest = self.own + 1, max(self.largest, *ids)

    def drop(self, number: int, reason: str) -> None:
        """Record why a row is unusable."""
        self.dropped.append((number, reason))

    def write(self, file: Path) -> None:
        """Write the file atomically."""
        from safetensors.numpy import save_file

        arrays = {
            "ids": _array(self.ids, "int32"),
            "mask": _array(self.mask, "bool"),
            "starts": _array(self.starts, "int64"),
            "rows": _array(self.rows, "int64"),
            "groups": _array(self.groups, "uint8").reshape(-1, 32),
            "sources": _array(self.sources, "uint8"),
            "words": _array(self._words(), "uint8"),
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_path(file) as temporary:
            save_file(arrays, temporary, {SUM: str(_sum(arrays))})

    def _words(self) -> bytes:
        words = {"ids": self.names, "categories": self.categories, "dropped": self.dropped}
        return json.dumps({**words, "own": self.own, "largest": self.largest}).encode()


class TokenFile:
    """A memory-mapped token file: ids and masks of rows are views, loaded on access."""

    def __init__(self, file: Path):
        """Raises ValueError for a damaged file."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="pt") as reader:
                checksum = (reader.metadata() or {}).get(SUM)
                self._arrays = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(str(error)) from None
        if checksum != str(_sum({name: tensor.numpy() for name, tensor in self._arrays.items()})):
            raise ValueError("its checksum does not match")
        self.words: dict[str, Any] = json.loads(self._arrays.pop("words").numpy().tobytes())
        self._starts: list[int] = self._arrays["starts"].tolist()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def row(self, index: int) -> tuple[Any, Any]:
        """(ids int32 [n], mask bool [n]) of a row."""
        part = slice(self._starts[index], self._starts[index + 1])
        return self._arrays["ids"][part], self._arrays["mask"][part]

    def group(self, index: int) -> str:
        """Hash of the row's first prompt."""
        return self._arrays["groups"][index].numpy().tobytes().hex()

    def source(self, index: int) -> str:
        """Source of the row's mask."""
        return MASK_SOURCES[int(self._arrays["sources"][index])]

    @cached_property
    def numbers(self) -> dict[int, int]:
        """{row number in the piece: index in this file}."""
        return {number: index for index, number in enumerate(self._arrays["rows"].tolist())}

    @property
    def dropped(self) -> dict[int, str]:
        """{row number in the piece: why it is unusable}."""
        return {number: reason for number, reason in self.words["dropped"]}


def prompt_group(row: Mapping[str, Any]) -> bytes:
    """sha256 of the first prompt: rows with the same prompt are on the same side of the held-out split."""
    users = [m.get("content", "") for m in row.get("messages") or [] if m.get("role") == "user"]
    return hashlib.sha256(str(users[0] if users else row.get("id", "")).encode()).digest()


def _array(values: Any, dtype: str) -> Any:
    """A numpy array that shares the memory of `values`."""
    import numpy

    return numpy.frombuffer(values, dtype) if len(values) else numpy.zeros(0, dtype)


def _sum(arrays: Mapping[str, Any]) -> int:
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(arrays[name].reshape(-1).view("uint8"), total)
    return total

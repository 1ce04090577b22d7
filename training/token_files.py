"""Tokenizes the rows of one chunk of a shard into a memory-mapped safetensors file. Imports torch only to read it.

Tensors: `ids` int32 [T], `mask` bool [T] (in the loss), `starts` int64 [N + 1], and `words`, JSON in bytes: `rows` (see
`row_info`, with the row's number in the chunk), `dropped` (unusable rows with their reasons) and `largest_id` (of the
token ids stored in the data; -1 without any).
"""

import hashlib
import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from speculoos.errors import BadInput
from speculoos.files import new_path
from training.masks import MaskedTokens, mask_conversation

CHUNK_BYTES = 8 << 20  # bytes of a shard's text per chunk, the unit that one process tokenizes and holds in memory
CHECKSUM_KEY = "crc32"
RULES = 2  # version of the tokenization in this module and `training.masks`; increase it to invalidate caches


@dataclass(frozen=True)
class ShardChunk:
    """The rows of `shard` that begin in bytes [start, end); `digest` is the shard's sha256."""

    shard: Path
    digest: str
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.digest[:32]}-{self.start // CHUNK_BYTES:06d}.safetensors"

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The non-empty lines of this chunk with their offsets in the shard."""
        with open(self.shard, "rb") as handle:
            if self.start:
                handle.seek(self.start - 1)
                handle.readline()  # a line that began earlier belongs to the previous chunk
            while (offset := handle.tell()) < self.end and (line := handle.readline()):
                if line.strip():
                    yield offset, line


def split_shard(shard: Path, digest: str) -> list[ShardChunk]:
    size = shard.stat().st_size
    return [ShardChunk(shard, digest, start, min(start + CHUNK_BYTES, size)) for start in range(0, size, CHUNK_BYTES)]


def row_info(row: Mapping[str, Any], masked: MaskedTokens) -> dict[str, str]:
    """`id`, `category`, `mask_source`, and `group`, the hash of the first prompt (see TokenizedConversation)."""
    users = [m.get("content", "") for m in row.get("messages") or [] if m.get("role") == "user"]
    group = hashlib.sha256(str(users[0] if users else row.get("id", "")).encode()).hexdigest()
    identity = {"id": str(row.get("id", "")), "category": str(row.get("category", ""))}
    return {**identity, "group": group, "mask_source": masked.source}


class TokenFile:
    """A memory-mapped token file: ids and masks of rows are views, loaded on access."""

    def __init__(self, file: Path):
        """Raises ValueError for a damaged file."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="pt") as reader:
                checksum = (reader.metadata() or {}).get(CHECKSUM_KEY)
                tensors = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(str(error)) from None
        if checksum != _crc32({name: tensor.numpy() for name, tensor in tensors.items()}):
            raise ValueError("its checksum does not match")
        self._ids, self._mask = tensors["ids"], tensors["mask"]
        self._starts: list[int] = tensors["starts"].tolist()
        metadata = json.loads(tensors["words"].numpy().tobytes())
        self.rows: list[dict[str, Any]] = metadata["rows"]
        self.dropped: dict[int, str] = dict(metadata["dropped"])
        self.largest_id: int = metadata["largest_id"]

    def tokens(self, index: int) -> tuple[Any, Any]:
        """(ids int32 [n], mask bool [n]) of a row."""
        span = slice(self._starts[index], self._starts[index + 1])
        return self._ids[span], self._mask[span]


def _array(values: Any, dtype: str) -> Any:
    import numpy

    return numpy.frombuffer(values, dtype) if len(values) else numpy.zeros(0, dtype)


def _crc32(arrays: Mapping[str, Any]) -> str:
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(arrays[name].view("uint8"), total)
    return str(total)


def token_cache_key(tokenizer: Any, eos_ids: Iterable[int]) -> str:
    """Cache key of tokens, besides the shard's sha256: everything that affects rendering and tokenizing."""
    versions = [version(name) for name in ("transformers", "tokenizers", "jinja2")]
    template, eos_id = getattr(tokenizer, "chat_template", None), tokenizer.eos_token_id
    parts = [_vocabulary(tokenizer), template, eos_id, sorted(eos_ids), RULES, versions]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _vocabulary(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    return {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("truncation", "padding")}


def tokenize_chunk(chunk: ShardChunk, tokenizer: Any, eos_ids: Iterable[int], file: Path) -> int:
    """Write the tokens of `chunk` to `file`; returns their number. Raises BadInput that names the broken line."""
    from safetensors.numpy import save_file

    eos, ids, mask, starts = tuple(eos_ids), array("i"), bytearray(), array("q", [0])
    rows: list[dict[str, Any]] = []
    dropped: list[tuple[int, str]] = []
    largest_id = -1
    for number, (offset, line) in enumerate(chunk.lines()):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not a JSON object")
        except ValueError as error:
            with open(chunk.shard, "rb") as handle:
                line_number = handle.read(offset).count(b"\n") + 1
            raise BadInput(
                f"{chunk.shard} line {line_number}: invalid JSON ({error}); generate or import the dataset again."
            ) from None
        try:
            masked = mask_conversation(row, tokenizer, eos)
            row_ids = array("i", masked.token_ids)
        except BadInput as error:
            dropped.append((number, str(error)))
            continue
        except OverflowError:
            dropped.append((number, "token_ids: contains a number that is not a token id"))
            continue
        if row.get("token_ids"):
            largest_id = max(largest_id, *row_ids)
        ids.extend(row_ids)
        mask.extend(masked.mask)
        starts.append(len(ids))
        rows.append({"number": number, **row_info(row, masked)})
    metadata = json.dumps({"rows": rows, "dropped": dropped, "largest_id": largest_id}).encode()
    arrays = {
        "ids": _array(ids, "int32"),
        "mask": _array(mask, "bool"),
        "starts": _array(starts, "int64"),
        "words": _array(metadata, "uint8"),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with new_path(file) as temporary:
        save_file(arrays, temporary, {CHECKSUM_KEY: _crc32(arrays)})
    return len(ids)


def tokenize_in_child(shard: str, digest: str, start: int, end: int, model: str, eos_ids: list[int], file: str) -> int:
    """For child processes: `tokenize_chunk` with the tokenizer in folder `model`."""
    return tokenize_chunk(ShardChunk(Path(shard), digest, start, end), _tokenizer(model), eos_ids, Path(file))


@lru_cache(maxsize=1)
def _tokenizer(model: str) -> Any:
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # tokenizers do not need it
    from models.tokenizer import load_tokenizer

    return load_tokenizer(model)

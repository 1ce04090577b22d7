"""KV cache of one or many sequences, one tensor for all layers.

Rows [0, length) of a sequence are committed. A forward writes more rows after them (`staged`), one per tree node;
`commit` keeps some of those and drops the rest. Sliding windows are masks, never evictions, so `crop` can undo any
commit. Sequences are added to a batch (`admit`) and removed from it (`remove`); each has its own length."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch.nn import functional as F

from models.draft_layers import causal_mask
from speculoos.errors import Unavailable, Unsupported

INITIAL_ROWS = 256


def upload(values: Any, device: torch.device) -> torch.Tensor:
    """A new tensor of numbers of the host on `device`; to a GPU through pinned memory, so that the host does not
    wait."""
    tensor = torch.as_tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class KVCache:
    """Keys and values [L, batch, heads, rows, head_dim]. Storage is allocated at the first write: `max_length` rows,
    or, if it `grows`, twice the rows needed, repeatedly. With `layer_devices`, the device of each layer, `keys` and
    `values` are lists of layers [batch, heads, rows, head_dim]."""

    def __init__(
        self, num_layers: int, max_length: int, grows: bool = False, layer_devices: Sequence[torch.device] = ()
    ):
        """An empty cache of one sequence."""
        self.layer_devices = layer_devices
        self._storages: list[torch.Tensor] = []
        """All tensors of keys and values, one of each for every device."""
        self.num_layers, self.max_length, self.grows = num_layers, max_length, grows
        self.batch = 1
        """Maximum number of sequences."""
        self.keys: Any = None
        self.values: Any = None
        self.lengths = [0]
        """Committed rows of each sequence."""
        self.staged = [0]
        self.replays: OrderedDict[Any, Any] = OrderedDict()
        """CUDA graphs recorded on this storage (`models.runtime.graphs`), least recently used first."""

    @classmethod
    def for_batch(
        cls, num_layers: int, max_length: int, batch: int, layer_devices: Sequence[torch.device] = ()
    ) -> "KVCache":
        """A growing cache for up to `batch` sequences, without sequences."""
        cache = cls(num_layers, max_length, True, layer_devices)
        cache.batch, cache.lengths, cache.staged = batch, [], []
        return cache

    @property
    def length(self) -> int:
        return self.lengths[0]

    @property
    def capacity(self) -> int:
        """Allocated rows per sequence."""
        return self._storages[0].shape[3] if self._storages else 0

    @property
    def free_rows(self) -> int:
        """Rows that can still be written after the longest sequence."""
        return self.max_length - max(self.lengths)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write rows [1, heads, n, dim] of a layer after the committed ones of the only sequence; returns views of all
        rows in use. Mutates storage beyond `length` only; lengths do not change until `stage`."""
        self.reserve(keys.shape[1], keys.shape[3], keys.dtype, keys.device, keys.shape[2])
        if keys.shape[1::2] != self._storages[0].shape[2::2]:
            raise Unsupported("This model's layers differ in number or size of key heads; one cache cannot hold them.")
        start, end = self.length, self.length + keys.shape[2]
        stored = self.keys[layer][:1, :, :end], self.values[layer][:1, :, :end]
        stored[0][:, :, start:] = keys
        stored[1][:, :, start:] = values
        return stored

    def reserve(
        self, heads: int, dim: int, dtype: torch.dtype, device: torch.device, *counts: int, first: int = 0
    ) -> None:
        """Allocate storage for `counts` more rows of the sequences starting at `first`. Mutates storage, not committed
        rows. Raises Unavailable when the cache is full or memory is exhausted."""
        needed = max(length + count for length, count in zip(self.lengths[first:], counts, strict=False))
        if needed > self.max_length:
            raise Unavailable(f"The cache holds {self.max_length} tokens, but {needed} are needed; use a shorter text.")
        if not self._storages:
            self._allocate(heads, dim, dtype, device, max(2 * needed, INITIAL_ROWS) if self.grows else self.max_length)
        elif needed > self.capacity:
            stored = self._storages[0]
            self._allocate(stored.shape[2], stored.shape[4], stored.dtype, device, 2 * needed)

    def admit(self, count: int) -> int:
        """Add `count` empty sequences; returns the index of the first. Mutates `lengths`."""
        first = len(self.lengths)
        assert first + count <= self.batch, (first, count, self.batch)
        self.lengths += [0] * count
        self.staged += [0] * count
        return first

    @torch.inference_mode()
    def remove(self, sequence: int) -> None:
        """Remove a sequence; the last one takes its index. Mutates `lengths` and moves the rows of the last one."""
        length, last = self.lengths.pop(), len(self.lengths)
        self.staged.pop()
        if sequence == last:
            return
        self.lengths[sequence], self.staged[sequence] = length, 0
        for storage in self._storages:
            storage[:, sequence, :, :length] = storage[:, last, :, :length]

    @torch.inference_mode()
    def copy(self, source: int, sequence: int, length: int) -> None:
        """Copy the first `length` rows of `source` to an empty sequence. Mutates its rows and length."""
        assert not self.lengths[sequence] and length <= self.lengths[source], (sequence, source, length)
        for storage in self._storages:
            storage[:, sequence, :, :length] = storage[:, source, :, :length]
        self.lengths[sequence] = length

    def stage(self, *counts: int, first: int = 0) -> None:
        """Mark `counts` rows of the sequences starting at `first` as written by all layers, to be committed."""
        self.staged[first : first + len(counts)] = counts

    @torch.inference_mode()
    def commit(self, *by_sequence: Sequence[int]) -> None:
        """Keep the staged rows `by_sequence` of each sequence (strictly increasing, 0 = first staged), in order.
        Mutates lengths, and moves rows in place unless they are in place already."""
        for sequence, rows in enumerate(by_sequence):
            rows, staged = list(rows), self.staged[sequence]
            assert all(a < b for a, b in zip([-1, *rows], [*rows, staged], strict=True)), (rows, staged)
            self._move(sequence, rows)
            self.lengths[sequence] += len(rows)
            self.staged[sequence] = 0

    def commit_all(self) -> None:
        self.lengths = [length + staged for length, staged in zip(self.lengths, self.staged, strict=True)]
        self.staged = [0] * len(self.lengths)

    def crop(self, length: int, sequence: int = 0) -> None:
        """Drop a sequence's rows from `length` on. Mutates its length only; storage is reused, not freed."""
        assert 0 <= length <= self.lengths[sequence], (length, self.lengths[sequence])
        self.lengths[sequence], self.staged[sequence] = length, 0

    def nbytes(self) -> int:
        """Bytes of storage and of its CUDA graphs; 0 before the first write. Any thread may call it."""
        stored = sum(storage.nbytes for storage in self._storages)
        return stored + sum(replay.nbytes for replay in list(self.replays.values()))

    def check_integrity(self) -> None:
        """Raise AssertionError unless lengths are valid, nothing is staged and all committed rows are finite."""
        assert len(self.lengths) <= self.batch and not any(self.staged), (self.lengths, self.staged)
        for sequence, length in enumerate(self.lengths):
            assert 0 <= length <= self.max_length, self.lengths
            for storage in self._storages:
                assert storage[:, sequence, :, :length].isfinite().all(), sequence

    def _move(self, sequence: int, rows: list[int]) -> None:
        moved = next((i for i, row in enumerate(rows) if row != i), None)
        if moved is None:
            return
        start = self.lengths[sequence]
        source = upload([start + row for row in rows[moved:]], self._storages[0].device)
        for storage in self._storages:
            own = storage[:, sequence]
            own[:, :, start + moved : start + len(rows)] = own.index_select(2, source.to(storage.device))

    def _allocate(self, heads: int, dim: int, dtype: torch.dtype, device: torch.device, rows: int) -> None:
        # Unused rows must be finite where they are multiplied by 0: in graphs, and next to longer sequences.
        make = torch.empty if device.type == "cpu" and self.batch == 1 else torch.zeros
        shape, used = (self.batch, heads, min(rows, self.max_length), dim), max(self.lengths)
        layers = Counter(self.layer_devices) or {device: self.num_layers}  # a device has consecutive layers
        try:
            new = [make((n, *shape), dtype=dtype, device=each) for _ in range(2) for each, n in layers.items()]
        except (RuntimeError, MemoryError):
            raise Unavailable(
                f"Not enough memory for a cache of {self.batch} × {shape[2]} tokens; use a smaller one."
            ) from None
        for storage, old in zip(new, self._storages, strict=False):
            storage[:, :, :, :used] = old[:, :, :, :used]
        self._storages = new
        if len(layers) == 1:
            self.keys, self.values = new
        else:
            self.keys, self.values = ([*chain(*part)] for part in (new[: len(layers)], new[len(layers) :]))
        self.replays.clear()


class CacheBackend:
    """A `models.draft_layers.Backend` over a cache with one sequence: a forward writes n rows after the committed ones,
    which the caller stages and commits. `mask`: bool [n, length + n], for a tree; None: causal."""

    def __init__(self, cache: KVCache, mask: torch.Tensor | None = None):
        self.cache, self.mask = cache, mask

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `models.draft_layers.Backend`."""
        keys, values = self.cache.write(layer, k, v)
        n = q.shape[2]
        mask = self.mask if self.mask is not None else causal_mask(n, self.cache.length + n, q.device)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

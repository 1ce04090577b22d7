"""Key and value storage: preallocated, full-length, one tensor for all layers. Knows no model and no transformers.

Rows [0, length) are committed. A forward writes `staged` further rows after them, one a tree node; `commit` keeps some
of those and forgets the rest. Sliding windows are masks, never evictions, so any commit can be undone by `crop`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from speculoos.errors import Unavailable, Unsupported


class KVCache:
    """Keys [L, 1, heads, max_length, head_dim] and values alike. Storage is made at the first write."""

    def __init__(self, num_layers: int, max_length: int):
        self.num_layers, self.max_length = num_layers, max_length
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.length = 0
        self.staged = 0
        self.replays: dict[Any, Any] = {}
        """What a forward recorded on this storage (`decoding.graphs`); gone with it."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put rows [1, heads, n, dim] of one layer after the committed ones; return views of all rows used.

        Mutates storage beyond `length` only; `length` and `staged` stay as they are until `stage`.
        """
        if self.keys is None:
            self._allocate(keys, values)
        end = self.length + keys.shape[2]
        if end > self.max_length:
            raise Unavailable(f"The cache holds {self.max_length} tokens and {end} were asked for.")
        if keys.shape[1::2] != self.keys.shape[2::2]:
            raise Unsupported("This model's layers differ in number or size of key heads; one cache cannot hold them.")
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def reserve(self, heads: int, dim: int, dtype: torch.dtype, device: torch.device, rows: int) -> None:
        """Make storage ready for `rows` rows after the committed ones, for a forward that writes into it itself."""
        if self.keys is None:
            sample = torch.empty(1, heads, 0, dim, dtype=dtype, device=device)
            self._allocate(sample, sample)
        if self.length + rows > self.max_length:
            raise Unavailable(f"The cache holds {self.max_length} tokens and {self.length + rows} were asked for.")

    def stage(self, count: int) -> None:
        """Say that every layer has written `count` rows that await a commit. Mutates `staged` only."""
        self.staged = count

    @torch.inference_mode()
    def commit(self, rows: Sequence[int]) -> None:
        """Keep staged rows `rows` (strictly increasing, 0 = first staged) in that order; the rest are forgotten.

        Mutates `length`, `staged`, and moves rows in place unless they already lie where they belong.
        """
        rows = list(rows)
        assert all(a < b for a, b in zip([-1, *rows], [*rows, self.staged], strict=True)), (rows, self.staged)
        moved = [i for i, row in enumerate(rows) if row != i]
        if moved:
            first = moved[0]
            source = torch.tensor(rows[first:], device=self.keys.device) + self.length
            target = slice(self.length + first, self.length + len(rows))
            self.keys[:, :, :, target] = self.keys.index_select(3, source)
            self.values[:, :, :, target] = self.values.index_select(3, source)
        self.length += len(rows)
        self.staged = 0

    def crop(self, length: int) -> None:
        """Forget rows from `length` on. Mutates `length` and `staged` only; storage is reused, not freed."""
        assert 0 <= length <= self.length, (length, self.length)
        self.length, self.staged = length, 0

    @property
    def room(self) -> int:
        """Rows that can still be staged."""
        return self.max_length - self.length

    def nbytes(self) -> int:
        """Bytes of storage, 0 before the first write."""
        return 0 if self.keys is None else self.keys.nbytes + self.values.nbytes

    def check_integrity(self) -> None:
        """Raise AssertionError unless lengths are in range, nothing is staged and every kept row is finite."""
        assert 0 <= self.length <= self.max_length and self.staged == 0, (self.length, self.staged)
        if self.keys is not None:
            kept = slice(0, self.length)
            assert self.keys[:, :, :, kept].isfinite().all() and self.values[:, :, :, kept].isfinite().all()

    def _allocate(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        make = torch.empty if keys.device.type == "cpu" else torch.zeros  # padded graphs read rows beyond the length
        shape = (self.num_layers, 1, keys.shape[1], self.max_length)
        try:
            self.keys = make(*shape, keys.shape[3], dtype=keys.dtype, device=keys.device)
            self.values = make(*shape, values.shape[3], dtype=values.dtype, device=values.device)
        except (RuntimeError, MemoryError):
            self.keys = self.values = None
            raise Unavailable(
                f"Not enough memory for a cache of {self.max_length} tokens; use a smaller one."
            ) from None

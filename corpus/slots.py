"""Keys and values of several conversations at once, left-padded to a common end. Knows tensors, no model.

Row i of the batch owns columns [length - lengths[i], length); what lies before is padding that no mask shows.
`merge` drops finished rows, closes gaps and takes new rows in, so that a batch stays full while rows come and go.
"""

from collections.abc import Sequence

import torch

from speculoos.errors import Unavailable

SPARE = 64


class Slots:
    """Keys and values [L, B, heads, capacity, dim], made at the first write. `decoding.forward.CacheView` reads it."""

    def __init__(self, num_layers: int, lengths: Sequence[int], spare: int = SPARE):
        self.num_layers = num_layers
        self.lengths = list(lengths)
        self.length = 0
        self.capacity = max(self.lengths, default=0) + spare
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put [B, heads, n, dim] of one layer after column `length`; return views of all columns used."""
        if self.keys is None:
            self.keys = self._storage(keys, self.num_layers, self.capacity)
            self.values = self._storage(values, self.num_layers, self.capacity)
        end = self.length + keys.shape[2]
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    @property
    def full(self) -> bool:
        """True when the next column does not fit; `merge` makes room."""
        return self.length == self.capacity

    def filled(self) -> None:
        """Say that the first forward wrote the prompts: columns up to the longest row are used."""
        self.length = max(self.lengths)

    def grow(self) -> None:
        """Say that a forward wrote one column for every row."""
        self.length += 1
        self.lengths = [n + 1 for n in self.lengths]

    def mask(self, extra: int = 0) -> torch.Tensor:
        """int64 [B, longest or length, + extra]: 1 where a row has tokens (or will have, in the extra columns)."""
        end = self.length or max(self.lengths)
        columns = torch.arange(end + extra)
        return (columns[None] >= end - torch.tensor(self.lengths)[:, None]).long()

    def _storage(self, like: torch.Tensor, layers: int, capacity: int) -> torch.Tensor:
        batch, heads, _n, dim = like.shape
        try:
            return torch.zeros(layers, batch, heads, capacity, dim, dtype=like.dtype, device=like.device)
        except (RuntimeError, MemoryError):
            raise Unavailable(
                f"Not enough memory for {batch} answers at once; choose a smaller batch size or fewer tokens."
            ) from None


def merge(old: Slots | None, keep: Sequence[int], new: Slots | None, spare: int = SPARE) -> Slots:
    """The rows `keep` of `old`, then all rows of `new`, packed to the left. Neither argument is changed."""
    parts = [(slots, rows) for slots, rows in ((old, list(keep)), (new, _all(new))) if slots is not None and rows]
    lengths = [slots.lengths[row] for slots, rows in parts for row in rows]
    made = Slots(parts[0][0].num_layers, lengths, spare)
    made.filled()
    made.keys = _stack(made, [(slots.keys, slots.length, rows) for slots, rows in parts])
    made.values = _stack(made, [(slots.values, slots.length, rows) for slots, rows in parts])
    return made


def _all(slots: Slots | None) -> list[int]:
    return list(range(len(slots.lengths))) if slots else []


def _stack(made: Slots, parts: list[tuple[torch.Tensor, int, list[int]]]) -> torch.Tensor:
    """Rows of all parts side by side, each ending at column `made.length`."""
    pieces = []
    for tensor, length, rows in parts:
        layers, _b, heads, _c, dim = tensor.shape
        width = min(length, made.length)
        piece = tensor.new_zeros(layers, len(rows), heads, made.capacity, dim)
        picked = tensor[:, rows] if rows != list(range(tensor.shape[1])) else tensor
        piece[:, :, :, made.length - width : made.length] = picked[:, :, :, length - width : length]
        pieces.append(piece)
    return torch.cat(pieces, dim=1) if len(pieces) > 1 else pieces[0]

"""Attention of new rows over a cache: of one sequence, of a batch with one new row each, of prompts laid end to end.

Each class below is one forward's view of the cache. `attend` stores a layer's keys and values and gives what its
queries find; what they may look at is worked out once a forward.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional as F

from models.runtime.cache import KVCache
from models.runtime.interface import Inputs
from models.varlen import attend_causally

Biases = dict[int | None, torch.Tensor | None]
NEIGHBOURS = 8
"""Sequences of a step whose attention is one on a processor: fewer cost a call each, more cost rows that are masked."""


class CacheView(Protocol):
    """What a layer attends through."""

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Store keys and values [N, kv heads, dim] of new rows; what queries [N, heads, dim] find, [N, heads · dim]."""


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """queries [n, heads, dim] over keys and values [1, kv_heads, rows, dim] → [n, heads · dim].

    Query heads that share a key head become rows of one product: `bias` is [heads / kv_heads · n, rows].
    """
    (n, heads, dim), kv_heads = queries.shape, keys.shape[1]
    group = heads // kv_heads
    if n == 1:  # no rows to move: the usual step of plain decoding
        mixed = F.scaled_dot_product_attention(queries.view(1, kv_heads, group, dim), keys, values, attn_mask=bias)
        return mixed.reshape(1, heads * dim)
    queries = queries.view(n, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * n, dim)
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
    return mixed.view(kv_heads, group, n, dim).permute(2, 0, 1, 3).reshape(n, heads * dim)


def visible_rows(mask: torch.Tensor, positions: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
    """Bool [n, length + n]: the committed rows and those of the tree each node attends to.

    Row j of the cache sits at position j. With a sliding window w, a node at position p sees positions p - w + 1 … p,
    along its own branch: a node's distance to an ancestor is a difference of positions, not of indices.
    """
    n = mask.shape[0]
    visible = torch.ones(n, length + n, dtype=torch.bool, device=mask.device)
    visible[:, length:] = mask
    if window is not None:
        keys = torch.cat([torch.arange(length, device=positions.device), positions])
        visible &= keys[None, :] > positions[:, None] - window
    return visible


def layer_windows(config: Any) -> dict[str, int | None]:
    """Sliding window of each layer type: {"full_attention": None} for a plain model.

    Families without `layer_types` use one window for all layers, or none.
    """
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if not types:
        return {"sliding_attention": window} if window else {"full_attention": None}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(set(types))}


def added_to_scores(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where bool `visible` is true, −∞ elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def biases_of(
    mask: torch.Tensor | None,
    positions: torch.Tensor,
    start: int,
    windows: Iterable[int | None],
    group: int,
    dtype: torch.dtype,
) -> Biases:
    """For each window what is added to the scores of one sequence, [group · n, start + n]; None where all is seen."""
    n, biases = len(positions), Biases()
    for window in windows:
        if n == 1 and (window is None or start < window):
            biases[window] = None
            continue
        tree = torch.ones(n, n, dtype=torch.bool, device=positions.device).tril() if mask is None else mask
        biases[window] = added_to_scores(visible_rows(tree, positions, start, window), dtype).repeat(group, 1)
    return biases


class SequenceView:
    """New rows of one sequence. Shows attention the rows in use, no more."""

    def __init__(self, cache: KVCache, n: int, biases: Biases, sequence: int = 0):
        start, end, at = cache.lengths[sequence], cache.lengths[sequence] + n, slice(sequence, sequence + 1)
        storages = cache.keys, cache.values
        self.biases = biases
        self.new = [storage[:, sequence, :, start:end].transpose(1, 2).unbind() for storage in storages]
        self.shown = [storage[:, at, :, :end].unbind() for storage in storages]

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        self.new[0][layer].copy_(keys)
        self.new[1][layer].copy_(values)
        return attend(queries, self.shown[0][layer], self.shown[1][layer], self.biases[window])


class StepView:
    """One new row for each of B sequences. On a processor some neighbours share an attention, so that a long sequence
    costs those few its rows and not the whole batch; on a GPU all share one."""

    def __init__(self, cache: KVCache, inputs: Inputs, windows: Sequence[int | None], dtype: torch.dtype):
        count, device = len(inputs.counts), inputs.ids.device
        live, positions = slice(inputs.first, inputs.first + count), inputs.positions
        storages, heads, rows = (cache.keys[:, live], cache.values[:, live]), cache.keys.shape[2], cache.capacity
        self.new = [storage.flatten(1, 3).unbind() for storage in storages]
        owners = torch.arange(count * heads, device=device).view(-1, heads) * rows
        self.places = (owners + positions[:, None]).flatten()
        """Where the new rows lie, all sequences' heads' rows end to end."""
        size = NEIGHBOURS if device.type == "cpu" else count
        self.parts = [
            _Neighbours(
                storages, positions[at : at + size], at, max(cache.lengths[live][at : at + size]), windows, dtype
            )
            for at in range(0, count, size)
        ]

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        (batch, heads, dim), kv_heads = queries.shape, keys.shape[1]
        self.new[0][layer].index_copy_(0, self.places, keys.reshape(-1, dim))
        self.new[1][layer].index_copy_(0, self.places, values.reshape(-1, dim))
        queries = queries.reshape(batch, kv_heads, heads // kv_heads, dim)
        mixed = [part.attend(layer, queries, window) for part in self.parts]
        return (mixed[0] if len(mixed) == 1 else torch.cat(mixed)).reshape(batch, heads * dim)


class _Neighbours:
    """Sequences of a step, from number `first` on, that share an attention over their first `longest` + 1 rows."""

    def __init__(
        self,
        storages: Sequence[torch.Tensor],
        positions: torch.Tensor,
        first: int,
        longest: int,
        windows: Sequence[int | None],
        dtype: torch.dtype,
    ):
        self.own = slice(first, first + len(positions))
        self.shown = [storage[:, self.own, :, : longest + 1].unbind() for storage in storages]
        columns, own = torch.arange(longest + 1, device=positions.device)[None], positions[:, None]
        self.biases = {window: added_to_scores(_seen(columns, own, window), dtype)[:, None, None] for window in windows}

    def attend(self, layer: int, queries: torch.Tensor, window: int | None) -> torch.Tensor:
        shown = self.shown[0][layer], self.shown[1][layer]
        return F.scaled_dot_product_attention(queries[self.own], *shown, attn_mask=self.biases[window])


class RaggedView:
    """Several sequences with any number of new rows each, one after another: no padding is computed."""

    def __init__(self, cache: KVCache, inputs: Inputs, windows: Sequence[int | None], group: int, dtype: torch.dtype):
        self.counts = list(inputs.counts)
        self.parts: list[SequenceView | _PromptView] = []
        for number, positions in enumerate(inputs.positions.split(self.counts)):
            sequence, n = inputs.first + number, len(positions)
            start = cache.lengths[sequence]
            if start == 0 and all(window is None or n <= window for window in windows):
                self.parts.append(_PromptView(cache, n, sequence))
            else:
                biases = biases_of(None, positions, start, windows, group, dtype)
                self.parts.append(SequenceView(cache, n, biases, sequence))

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        split = (tensor.split(self.counts) for tensor in (queries, keys, values))
        return torch.cat([part.attend(layer, *own, window) for part, *own in zip(self.parts, *split, strict=True)])


class _PromptView:
    """A whole prompt of one sequence: block by block, no further than each block may look."""

    def __init__(self, cache: KVCache, n: int, sequence: int):
        storages = cache.keys, cache.values
        self.shown = [storage[:, sequence, :, :n].unbind() for storage in storages]

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)
        self.shown[0][layer].copy_(keys)
        self.shown[1][layer].copy_(values)
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
        attend_causally(queries.transpose(0, 1), keys, values, queries.shape[2] ** -0.5, out)
        return out.flatten(1)


def _seen(columns: torch.Tensor, own: torch.Tensor, window: int | None) -> torch.Tensor:
    """Bool [B, rows]: of each sequence the rows up to its `own` new one [B, 1], within the window."""
    seen = columns <= own
    return seen if window is None else seen & (columns > own - window)

"""Attention of new rows over the KV cache: of one sequence, of a batch with one row each, of concatenated prompts.

Each class is a view of the cache for one forward. `attend` stores the keys and values of a layer and computes its
attention; masks are computed once per forward."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional as F

from models.runtime.cache import KVCache
from models.runtime.interface import Inputs
from models.varlen import attend_causally

Biases = dict[int | None, torch.Tensor | None]
SEQUENCES_PER_CALL = 8
"""Sequences per attention call on a CPU: fewer need more calls, more compute more masked rows."""


class CacheView(Protocol):
    """The interface between a layer and the cache."""

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Store new keys and values [N, kv heads, dim]; attention of queries [N, heads, dim] → [N, heads · dim]."""


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """queries [n, heads, dim] over keys and values [1, kv_heads, rows, dim] → [n, heads · dim]. Query heads that share
    a key head become rows of one product, so `bias` is [heads / kv_heads · n, rows]."""
    (n, heads, dim), kv_heads = queries.shape, keys.shape[1]
    group = heads // kv_heads
    if n == 1:  # no permutation needed: a step of plain decoding
        mixed = F.scaled_dot_product_attention(queries.view(1, kv_heads, group, dim), keys, values, attn_mask=bias)
        return mixed.reshape(1, heads * dim)
    queries = queries.view(n, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * n, dim)
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
    return mixed.view(kv_heads, group, n, dim).permute(2, 0, 1, 3).reshape(n, heads * dim)


def visible_rows(mask: torch.Tensor, positions: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
    """Attention mask, bool [n, length + n]: the committed rows and the tree rows that each node attends to. Row j of
    the cache has position j. With a sliding window w, a node at position p attends to positions p - w + 1 … p along its
    own branch: the distance to an ancestor is a difference of positions, not of indices."""
    n = mask.shape[0]
    visible = torch.ones(n, length + n, dtype=torch.bool, device=mask.device)
    visible[:, length:] = mask
    if window is not None:
        keys = torch.cat([torch.arange(length, device=positions.device), positions])
        visible &= keys[None, :] > positions[:, None] - window
    return visible


def layer_windows(config: Any) -> dict[str, int | None]:
    """Sliding window of each layer type; families without `layer_types` have one for all layers, or none."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if not types:
        return {"sliding_attention": window} if window else {"full_attention": None}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(set(types))}


def additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask: 0 where `visible`, −∞ elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def attention_biases(
    mask: torch.Tensor | None,
    positions: torch.Tensor,
    start: int,
    windows: Iterable[int | None],
    group: int,
    dtype: torch.dtype,
) -> Biases:
    """Additive mask of one sequence per window, [group · n, start + n]; None if all rows are visible."""
    n, biases = len(positions), Biases()
    for window in windows:
        if n == 1 and (window is None or start < window):
            biases[window] = None
            continue
        tree = torch.ones(n, n, dtype=torch.bool, device=positions.device).tril() if mask is None else mask
        biases[window] = additive_mask(visible_rows(tree, positions, start, window), dtype).repeat(group, 1)
    return biases


class SequenceView:
    """New rows of one sequence; attention over the rows in use."""

    def __init__(self, cache: KVCache, n: int, biases: Biases, sequence: int = 0):
        start, end, at = cache.lengths[sequence], cache.lengths[sequence] + n, slice(sequence, sequence + 1)
        storages = cache.keys, cache.values
        self.biases = biases
        self.new = [storage[:, sequence, :, start:end].transpose(1, 2).unbind() for storage in storages]
        self.cached = [storage[:, at, :, :end].unbind() for storage in storages]

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        self.new[0][layer].copy_(keys)
        self.new[1][layer].copy_(values)
        return attend(queries, self.cached[0][layer], self.cached[1][layer], self.biases[window])


class StepView:
    """One new row for each of B sequences. On a CPU groups of SEQUENCES_PER_CALL share an attention call, so that a
    long sequence adds masked rows only to its group; on a GPU there is one group."""

    def __init__(self, cache: KVCache, inputs: Inputs, windows: Sequence[int | None], dtype: torch.dtype):
        count, device = len(inputs.counts), inputs.ids.device
        live, positions = slice(inputs.first, inputs.first + count), inputs.positions
        storages, heads, rows = (cache.keys[:, live], cache.values[:, live]), cache.keys.shape[2], cache.capacity
        self.new = [storage.flatten(1, 3).unbind() for storage in storages]
        owners = torch.arange(count * heads, device=device).view(-1, heads) * rows
        self._indices = (owners + positions[:, None]).flatten()
        """Indices of the new rows in the flattened [sequences · heads · rows]."""
        size = SEQUENCES_PER_CALL if device.type == "cpu" else count
        self.parts = []
        """Sequences that share an attention call over `longest` + 1 rows, with their rows and masks."""
        for own in (slice(at, at + size) for at in range(0, count, size)):
            longest = max(cache.lengths[live][own])
            cached = [storage[:, own, :, : longest + 1].unbind() for storage in storages]
            columns, last = torch.arange(longest + 1, device=device)[None], positions[own, None]
            masks = {window: additive_mask(_mask(columns, last, window), dtype)[:, None, None] for window in windows}
            self.parts.append((own, cached, masks))

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        (batch, heads, dim), kv_heads = queries.shape, keys.shape[1]
        self.new[0][layer].index_copy_(0, self._indices, keys.reshape(-1, dim))
        self.new[1][layer].index_copy_(0, self._indices, values.reshape(-1, dim))
        queries = queries.reshape(batch, kv_heads, heads // kv_heads, dim)
        mixed = [
            F.scaled_dot_product_attention(queries[own], cached[0][layer], cached[1][layer], attn_mask=masks[window])
            for own, cached, masks in self.parts
        ]
        return (mixed[0] if len(mixed) == 1 else torch.cat(mixed)).reshape(batch, heads * dim)


class RaggedView:
    """Several sequences with any number of new rows each, computed one by one without padding."""

    def __init__(self, cache: KVCache, inputs: Inputs, windows: Sequence[int | None], group: int, dtype: torch.dtype):
        self.counts = list(inputs.counts)
        self.parts: list[SequenceView | _PromptView] = []
        for number, positions in enumerate(inputs.positions.split(self.counts)):
            sequence, n = inputs.first + number, len(positions)
            start = cache.lengths[sequence]
            if start == 0 and all(window is None or n <= window for window in windows):
                self.parts.append(_PromptView(cache, n, sequence))
            else:
                biases = attention_biases(None, positions, start, windows, group, dtype)
                self.parts.append(SequenceView(cache, n, biases, sequence))

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        split = (tensor.split(self.counts) for tensor in (queries, keys, values))
        return torch.cat([part.attend(layer, *own, window) for part, *own in zip(self.parts, *split, strict=True)])


class _PromptView:
    """A whole prompt of one sequence; on a CPU computed in blocks (`models.varlen.attend_causally`)."""

    def __init__(self, cache: KVCache, n: int, sequence: int):
        storages = cache.keys, cache.values
        self.cached = [storage[:, sequence, :, :n].unbind() for storage in storages]

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)
        self.cached[0][layer].copy_(keys)
        self.cached[1][layer].copy_(values)
        if queries.device.type != "cpu":
            heads = (queries.transpose(0, 1)[None], keys[None], values[None])
            mixed = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
            return mixed[0].transpose(0, 1).flatten(1)
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
        attend_causally(queries.transpose(0, 1), keys, values, queries.shape[2] ** -0.5, out)
        return out.flatten(1)


def _mask(columns: torch.Tensor, own: torch.Tensor, window: int | None) -> torch.Tensor:
    """Mask, bool [B, rows]: the rows of each sequence up to its new row `own` [B, 1], within the window."""
    visible = columns <= own
    return visible if window is None else visible & (columns > own - window)

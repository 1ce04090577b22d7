"""The fast forward: one function over packed, fused weights for the families we know. Plain decoding, verification
and prefill all go through it. Same interface as `TransformersForward`, same numbers to rounding.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional as F

from decoding.cache import KVCache
from decoding.fast_layers import (
    FastLayer,
    attend,
    fast_norm,
    head_dim,
    rotate,
    rotation_table,
    take_head,
    take_layers,
    why_not_fast,
)
from decoding.forward import Scored, visible_rows
from decoding.graphs import GraphedForward
from decoding.screen import Screen, screened_table
from decoding.target import Target
from models.base import Base
from speculoos.errors import Unsupported

KEPT = "_speculoos_fast_forward"
"""Where a model remembers that its weights were taken over, and by whom."""


def fast_target(base: Base, max_length: int = 2048) -> Target:
    """A Target on the fastest forward this base has: ours, or transformers' own (then `target.notice` says why).

    The first call takes the base's weights over; further targets of the same base share them.
    """
    forward = base.model.__dict__.get(KEPT)
    if forward is None and (reason := why_not_fast(base)):
        target = Target(base, max_length)
        target.notice = f"Runs on transformers' own forward: {reason}."
        return target
    if forward is None:
        forward = base.model.__dict__[KEPT] = FastForward(base)
    return Target(base, max_length, forward)


class FastForward:
    """Llama, Mistral, Qwen 2/3, Phi and Phi-3 without transformers' overhead.

    Making one takes the base's weights over (`decoding.fast_layers.take_layers`): the base keeps its embeddings, norms,
    head and tokenizer, but transformers can no longer run it. Raises Unsupported for other families.
    """

    name = "fast"

    def __init__(self, base: Base):
        if reason := why_not_fast(base):
            raise Unsupported(f"No fast forward here: {reason}.")
        self.base = base
        config = base.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = head_dim(config)
        self.table = screened_table(base)
        self.head = take_head(base)  # before the layers: the largest matrix is held twice for a moment
        self.layers = take_layers(base)
        self.norm = fast_norm(base.final_norm)
        self.windows = {layer.window for layer in self.layers}
        self.rotations = rotation_table(base, 1)
        self.graphs = GraphedForward(self) if base.device.type == "cuda" else None

    @cached_property
    def screen(self) -> Screen | None:
        """Made when best tokens are first asked for; a base that only samples, or drafts, has none."""
        return None if self.table is None else Screen(self.table)

    @torch.inference_mode()
    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: KVCache,
        layers: Sequence[int] = (),
        last_only: bool = False,
        best_only: bool = False,
    ) -> Scored:
        """See `decoding.forward.Forward`."""
        cache.reserve(self.kv_heads, self.dim, self.base.dtype, self.base.device, ids.shape[0])
        if self.graphs is not None and self.graphs.takes(len(ids), last_only):
            self._grow_rotations(cache.max_length)
            return self.graphs(ids, positions, mask, cache, layers)
        self._grow_rotations(int(positions.max()) + 1)
        biases = self._biases(mask, positions, cache.length)
        rotation, rows = self.rotations[positions][:, None], _UsedRows(cache, len(ids))
        return self.compute(ids, rotation, biases, rows, layers, last_only, best_only)

    def compute(
        self,
        ids: torch.Tensor,
        rotation: torch.Tensor,
        biases: dict[int | None, torch.Tensor | None],
        rows: Any,
        layers: Sequence[int] = (),
        last_only: bool = False,
        best_only: bool = False,
    ) -> Scored:
        """All layers. ids [n]; rotation [n, 1, dim / 2]; biases by window, [group · n, rows seen] or None.

        `rows` stores keys and values and shows attention what it may look at.
        """
        n, kept = len(ids), {}
        x = self.head.filled_up(F.embedding(ids, self.base.embed_tokens.weight))
        for index, layer in enumerate(self.layers):
            x = self._layer(layer, x, n, rotation, biases[layer.window], rows, index)
            if index in layers:
                kept[index] = x[:n]
        hidden = self.norm(x)
        features = torch.cat([kept[index] for index in layers], dim=-1) if layers else None
        asked = hidden[n - 1 : n] if last_only else hidden[:n]
        found = self.screen(asked) if best_only and self.screen is not None else None
        logits = self.head(asked) if found is None else None
        return Scored(logits, hidden[:n], features, found)

    def _layer(
        self,
        layer: FastLayer,
        x: torch.Tensor,
        n: int,
        rotation: torch.Tensor,
        bias: torch.Tensor | None,
        rows: Any,
        index: int,
    ) -> torch.Tensor:
        """x holds n rows, and others below them, that nobody reads, where the products want more."""
        normed = layer.attention_norm(x)
        mixed = self._attend(layer, layer.qkv(normed)[:n], rotation, bias, rows, index)
        x = layer.out.add(layer.out.filled_up(mixed), x)
        if layer.mlp_norm is not None:
            normed = layer.mlp_norm(x)
        up = layer.up(normed)
        if layer.gated:
            gate, up = up.chunk(2, dim=1)
            up = layer.activation(gate).mul_(up)
        else:
            up = layer.activation(up)
        return layer.down.add(up, x)

    def _attend(
        self,
        layer: FastLayer,
        qkv: torch.Tensor,
        rotation: torch.Tensor,
        bias: torch.Tensor | None,
        rows: Any,
        index: int,
    ) -> torch.Tensor:
        """Rotate, store keys and values after the committed ones, attend over the used rows; [n, heads · dim]."""
        n, heads, kv_heads, dim = qkv.shape[0], self.heads, self.kv_heads, self.dim
        queries_keys = qkv[:, : (heads + kv_heads) * dim].view(n, heads + kv_heads, dim)
        if layer.query_norm is not None:
            split = queries_keys[:, :heads], queries_keys[:, heads:]
            queries_keys = torch.cat([layer.query_norm(split[0]), layer.key_norm(split[1])], dim=1)
        queries_keys = rotate(queries_keys, rotation)
        queries, keys = queries_keys[:, :heads], queries_keys[:, heads:]
        keys, values = rows.write(index, keys, qkv[:, (heads + kv_heads) * dim :].view(n, kv_heads, dim))
        return attend(queries, keys, values, bias)

    def _grow_rotations(self, needed: int) -> None:
        """Make the table of complex [positions, dim / 2] long enough; it grows by doubling."""
        if needed > len(self.rotations):
            self.rotations = rotation_table(self.base, max(needed, 2 * len(self.rotations), 256))

    def _biases(
        self, mask: torch.Tensor | None, positions: torch.Tensor, start: int
    ) -> dict[int | None, torch.Tensor | None]:
        """For each window in use what is added to the scores, [group · n, start + n]; None where all is seen."""
        n, group = positions.shape[0], self.heads // self.kv_heads
        made: dict[int | None, torch.Tensor | None] = {}
        for window in self.windows:
            if n == 1 and (window is None or start < window):
                made[window] = None
                continue
            tree = torch.ones(n, n, dtype=torch.bool, device=positions.device).tril() if mask is None else mask
            visible = visible_rows(tree, positions, start, window)
            bias = torch.zeros(visible.shape, dtype=self.base.dtype, device=positions.device)
            made[window] = bias.masked_fill_(~visible, float("-inf")).repeat(group, 1)
        return made


class _UsedRows:
    """Writes after the committed rows of a cache and shows attention the rows in use, no more."""

    def __init__(self, cache: KVCache, n: int):
        start, end = cache.length, cache.length + n
        storages = cache.keys, cache.values
        self.new = [storage[:, 0, :, start:end].transpose(1, 2).unbind() for storage in storages]
        self.shown = [storage[:, :, :, :end].unbind() for storage in storages]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [n, kv_heads, dim]; views [1, kv_heads, length + n, dim]."""
        self.new[0][layer].copy_(keys)
        self.new[1][layer].copy_(values)
        return self.shown[0][layer], self.shown[1][layer]

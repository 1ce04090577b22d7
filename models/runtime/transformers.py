"""The transformers forward on a KVCache, with adapters for its masks and cache classes."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from models.base import LoadedBase, capture_layers
from models.runtime.attention import layer_windows, visible_rows
from models.runtime.cache import KVCache
from models.runtime.interface import LOGITS, ForwardOutput, Inputs, Selection


class TransformersForward:
    """Supports decoder-only families whose attention takes a 4-D mask; for batches a 2-D mask is enough."""

    name, ragged = "transformers", False

    def __init__(self, base: LoadedBase):
        self.base = base
        self.windows = layer_windows(base.config)
        self._additive = takes_additive_mask(base)
        self._by_type = _takes_mask_by_type(base)

    @torch.inference_mode()
    def __call__(self, inputs: Inputs, cache: KVCache, selection: Selection = LOGITS) -> ForwardOutput:
        layout = _Padded(inputs, cache) if cache.batch > 1 else _Single(self, inputs, cache)
        final: list[torch.Tensor] = []
        hook = self.base.backbone.register_forward_hook(lambda _m, _a, out: final.append(out.last_hidden_state))
        try:
            with capture_layers(self.base.model, selection.layers) as captured:
                out = self.base.model(
                    input_ids=layout.ids,
                    position_ids=layout.positions,
                    attention_mask=layout.mask,
                    cache=layout.view,
                    use_cache=True,
                    logits_to_keep=1 if selection.last_only else 0,
                )
        finally:
            hook.remove()
        device = self.base.device
        features = torch.cat([layout.real(c.to(device)) for c in captured], dim=-1) if captured else None
        logits = out.logits[:, -1] if selection.last_only else layout.real(out.logits)
        return ForwardOutput(logits, layout.real(final[0]), features)

    def four_d(self, mask: torch.Tensor | None, positions: torch.Tensor, length: int) -> Any:
        """The attention_mask for transformers: None for causal rows, else a 4-D mask (or a dict by type)."""
        if mask is None:
            return None  # transformers builds the causal mask, window included, from the cache's lengths
        masks = {kind: self._prepared(mask, positions, length, window) for kind, window in self.windows.items()}
        return masks if self._by_type else next(iter(masks.values()))

    def _prepared(self, mask: torch.Tensor, positions: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
        visible = visible_rows(mask, positions, length, window)[None, None]
        return additive_mask(visible, self.base.dtype) if self._additive else visible


def takes_additive_mask(base: LoadedBase) -> bool:
    """Whether the model's attention adds its mask; others take a bool mask."""
    return getattr(base.config, "_attn_implementation", "sdpa") == "eager"


def additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where `visible` (bool), else the smallest number of `dtype`."""
    zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return zeros.masked_fill(~visible, torch.finfo(dtype).min)


class _Single:
    def __init__(self, forward: TransformersForward, inputs: Inputs, cache: KVCache):
        self.ids, self.positions = inputs.ids[None], inputs.positions[None]
        self.mask = forward.four_d(inputs.mask, inputs.positions, cache.length)
        layers = range(cache.num_layers)
        self.view = Cache(layers=[CacheLayer(cache.length, partial(cache.write, layer)) for layer in layers])

    @staticmethod
    def real(values: torch.Tensor) -> torch.Tensor:
        return values[0]


class _Padded:
    """Layout of several sequences, left-padded: whole prompts, or equally many new rows each. `mask` [batch, columns]:
    1 for real tokens."""

    def __init__(self, inputs: Inputs, cache: KVCache):
        counts, device = list(inputs.counts), inputs.ids.device
        starts = cache.lengths[inputs.first : inputs.first + len(counts)]
        assert not any(starts) or len(set(counts)) == 1, "whole prompts, or equally many rows each"
        self.width, ends = max(counts), torch.tensor(starts, device=device) + torch.tensor(counts, device=device)
        total = max(starts) + self.width
        columns = torch.arange(total, device=device)
        self.mask = (columns[None] >= total - ends[:, None]).long()
        self._real = self.mask[:, total - self.width :].bool()
        self.ids, self.positions = (self._pad(values) for values in (inputs.ids, inputs.positions))
        self.cache, self.inputs = cache, inputs
        self._rows = (columns[None] - (total - ends[:, None])).clamp_min(0)
        self._sequences = inputs.first + torch.arange(len(counts), device=device)
        self._owners = self._sequences.repeat_interleave(torch.tensor(counts, device=device))
        layers, length = range(cache.num_layers), total - self.width
        self.view = Cache(layers=[CacheLayer(length, partial(self._write, layer)) for layer in layers])

    def real(self, values: torch.Tensor) -> torch.Tensor:
        return values[self._real]

    def _pad(self, values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(self._real.shape).masked_scatter_(self._real, values)

    def _write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the real rows of new [batch, heads, width, dim]; all rows in use → [batch, heads, columns, dim],
        gathered left-padded."""
        cache, (_, heads, _, dim) = self.cache, keys.shape
        cache.reserve(heads, dim, keys.dtype, keys.device, *self.inputs.counts, first=self.inputs.first)
        indices = self._owners, self.inputs.positions, self._real, self._sequences, self._rows
        owners, positions, real, sequences, columns = (index.to(keys.device) for index in indices)
        for storage, new in ((cache.keys[layer], keys), (cache.values[layer], values)):
            storage[owners, :, positions] = new.transpose(1, 2)[real]
        rows = sequences[:, None], slice(None), columns
        return cache.keys[layer][rows].transpose(1, 2), cache.values[layer][rows].transpose(1, 2)


def _takes_mask_by_type(base: LoadedBase) -> bool:
    """Whether the model takes a dict of masks by layer type, like families that mix sliding windows."""
    return "isinstance(causal_mask_mapping" in inspect.getsource(type(base.backbone).forward)


class CacheLayer(CacheLayerMixin):
    """A layer of a KVCache for transformers. Never evicts rows."""

    is_sliding = False

    def __init__(self, length: int, write: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]):
        super().__init__()
        self.length, self.write = length, write
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass  # the KVCache allocates itself

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.write(key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

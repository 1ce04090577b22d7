"""One forward of the base over new rows: the seam between the engine and whoever computes.

All knowledge of transformers' masks and cache classes is in this file. A faster forward is another class with the
same `__call__`; `Target` never sees the difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from decoding.cache import KVCache
from decoding.screen import best_ids
from models.base import Base, capture_layers


@dataclass(frozen=True)
class Scored:
    """What a forward gives for n new rows. `logits` is [n, V], or [1, V] when only the last row was asked for.

    `hidden` [n, H] is the head's input (after the final norm); `features` [n, k·H] the outputs of the k layers asked
    for, side by side, or None. `best` [n] are the ids of the largest logits; where nothing else was asked for, a
    forward may have found them without `logits`.
    """

    logits: torch.Tensor | None
    hidden: torch.Tensor
    features: torch.Tensor | None = None
    found: torch.Tensor | None = None

    @property
    def best(self) -> torch.Tensor:
        return best_ids(self.logits) if self.found is None else self.found


class Forward(Protocol):
    """Computes new rows after a cache's committed ones, and writes (but does not stage) their keys and values."""

    name: str

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
        """`ids`, `positions` [n]. `mask` bool [n, n] says which new rows see which (they see all committed rows);
        None means each sees those before it. `layers` are 0-based outputs wanted as features. `last_only`: of logits
        only the last row; `best_only`: of each row only the best token, so `logits` may be None."""


class TransformersForward:
    """transformers' own forward, for every decoder-only family whose attention takes a 4-D mask."""

    name = "transformers"

    def __init__(self, base: Base):
        self.base = base
        self.windows = layer_windows(base.config)
        self._additive = getattr(base.config, "_attn_implementation", "sdpa") == "eager"
        self._by_type = _takes_mask_by_type(base)

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
        final: list[torch.Tensor] = []
        hook = self.base.backbone.register_forward_hook(lambda _m, _a, out: final.append(out.last_hidden_state))
        try:
            with capture_layers(self.base.model, layers) as captured:
                out = self.base.model(
                    input_ids=ids[None],
                    position_ids=positions[None],
                    attention_mask=self._prepare(mask, positions, cache),
                    past_key_values=CacheView(cache),
                    use_cache=True,
                    logits_to_keep=1 if last_only else 0,
                )
        finally:
            hook.remove()
        features = torch.cat([c[0] for c in captured], dim=-1) if layers else None
        return Scored(out.logits[0], final[0][0], features)

    def _prepare(self, mask: torch.Tensor | None, positions: torch.Tensor, cache: KVCache) -> Any:
        """What transformers takes as attention_mask: nothing for causal rows, else a prepared 4-D mask (by type)."""
        if mask is None:
            return None  # transformers builds the causal mask, window included, from the cache's lengths
        made = {kind: self._four_d(mask, positions, cache, window) for kind, window in self.windows.items()}
        return made if self._by_type else next(iter(made.values()))

    def _four_d(self, mask: torch.Tensor, positions: torch.Tensor, cache: KVCache, window: int | None) -> torch.Tensor:
        visible = visible_rows(mask, positions, cache.length, window)[None, None]
        if not self._additive:
            return visible
        dtype = self.base.dtype
        return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(
            ~visible, torch.finfo(dtype).min
        )


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


def _takes_mask_by_type(base: Base) -> bool:
    """Whether the model looks its masks up by layer type, as families that mix windows do."""
    import inspect

    try:
        return "isinstance(causal_mask_mapping" in inspect.getsource(type(base.backbone).forward)
    except OSError:  # installed without sources
        return len(layer_windows(base.config)) > 1


class _LayerView(CacheLayerMixin):
    """One layer of a KVCache under the name transformers knows it by. Full-length: never evicts."""

    is_sliding = False

    def __init__(self, cache: KVCache, layer: int):
        super().__init__()
        self.cache, self.layer = cache, layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass  # the KVCache allocates itself

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cache.write(self.layer, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.cache.length

    def get_max_length(self) -> int:
        return -1


class CacheView(Cache):
    """A KVCache as transformers' models take it. Writing through it stages nothing: the caller does."""

    def __init__(self, cache: KVCache):
        super().__init__(layers=[_LayerView(cache, layer) for layer in range(cache.num_layers)])

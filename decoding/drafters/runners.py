"""The network of an EAGLE draft without the batch dimension, for drafters: as it is, or packed on the fast runtime.

Packed layers are fused and in bfloat16 if the CPU supports it, since a draft's precision affects the acceptance rate
but not the output. Shapes: n positions, H hidden size of the base model, V' draft vocabulary."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from decoding.drafters.base import is_fast
from decoding.target import Target
from models.base import has_bfloat16
from models.draft_layers import causal_mask
from models.draft_vocabulary import to_target
from models.runtime.attention import CacheView, SequenceView
from models.runtime.cache import CacheBackend, KVCache
from models.runtime.graphs import MaskLayout
from models.runtime.layer import Norm, norm_of
from models.runtime.linear import packing_works
from models.runtime.rotary import draft_rotations
from models.runtime.weights import pack_draft_layer_inplace, pack_linear_inplace
from speculoos.errors import Unsupported

UNLIMITED = 1 << 40  # maximum length of a draft's cache; the target's cache is full earlier


class ModuleRunner:
    """The draft's network, unchanged. Training uses it for samples; other forwards are compared with it."""

    def __init__(self, draft: Any):
        self.draft, self.method, self.layers_wanted = draft, draft.method, draft.layers_wanted
        self.logits, self.to_target = draft.logits, draft.to_target

    def new_cache(self) -> KVCache:
        return KVCache(len(self.draft.layers), UNLIMITED, grows=True)

    def fuse(self, hidden: torch.Tensor, aux: torch.Tensor | None) -> torch.Tensor:
        """Features [n, H] from the base model's last hidden states (EAGLE-1) or the outputs of `layers_wanted`."""
        outputs = () if aux is None else tuple(output[None] for output in aux.chunk(len(self.layers_wanted), dim=-1))
        return self.draft.fuse(hidden[None], outputs)[0]

    def __call__(
        self,
        features: torch.Tensor,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Features [n, H] of positions t and tokens t+1, int64 [n], → features [n, H]; their rows are committed to the
        cache. `mask` bool [n, length + n] is the attention mask; None is causal."""
        out = self.draft(features[None], ids[None], positions[None], CacheBackend(cache, mask))[0]
        cache.stage(len(ids))
        cache.commit_all()
        return out


def runner_of(target: Target, draft: Any, module: Callable[[Any], Any], packed: Callable[..., Any]) -> Any:
    """The draft's runner for `target`: of the class `module`, or `packed` for a fast target. The first packed one moves
    the weights, so that the draft itself cannot run. Raises Unsupported if they were moved and `target` is not fast."""
    if not is_fast(target):
        if draft.runner is not None:
            raise Unsupported("This draft was packed for a fast target; load it again to use it with another target.")
        return module(draft)
    if draft.runner is None:
        draft.runner = packed(draft, drafting_dtype(draft))
    return draft.runner


def drafting_dtype(draft: Any) -> torch.dtype:
    """bfloat16 on CPUs with native support, to halve memory reads; else the draft's own type."""
    weight = next(draft.parameters())
    return torch.bfloat16 if has_bfloat16(weight.device) and packing_works(torch.bfloat16) else weight.dtype


class PackedRunner:
    """As ModuleRunner, on packed weights: reordered for fast products with few tokens (`models.runtime.linear`)."""

    def __init__(self, draft: Any, dtype: torch.dtype):
        self.method, self.layers_wanted, self.dtype = draft.method, tuple(draft.layers_wanted), dtype
        self._fuses = bool(draft.layers_wanted)
        self._embedding = draft.table
        self._fc = pack_linear_inplace(draft, "fc", dtype)
        self._layers = [pack_draft_layer_inplace(layer, draft.config, dtype) for layer in draft.layers]
        self._heads = self._layers[0].heads
        self.layout = MaskLayout((None,), self._heads.group, dtype)
        self._norm = norm_of(draft.norm, dtype=dtype)
        self._norms_output = not self._fuses or draft.config.norm_output
        self._fused_norm = _fused_norm(draft, dtype) if self._fuses and draft.norms_features else None
        self.to_target = partial(to_target, d2t=draft.d2t)
        if self._fuses:
            self._head, self._head_dtype = pack_linear_inplace(draft, "lm_head", dtype), dtype
        else:  # the base model's, in its precision, because a fast base model's lm_head computes the final logits
            self._head, self._head_dtype = draft._base[0].lm_head, draft._base[0].dtype
        shape, self.device = draft.config, self._embedding.weight.device
        self.rotations = draft_rotations(self._heads.dim, shape.rope_theta, self.device, shape.rope_scaling)

    def new_cache(self) -> KVCache:
        return KVCache(len(self._layers), UNLIMITED, grows=True)

    def fuse(self, hidden: torch.Tensor, aux: torch.Tensor | None) -> torch.Tensor:
        if not self._fuses:
            return hidden.to(self.dtype)
        aux = aux.to(self.dtype)
        return self._fc(aux if self._fused_norm is None else self._fused_norm(aux))

    @torch.inference_mode()
    def __call__(
        self,
        features: torch.Tensor,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As ModuleRunner."""
        n = len(ids)
        self.reserve(cache, n)
        if mask is None and n > 1:
            mask = causal_mask(n, cache.length + n, features.device)
        view = SequenceView(cache, n, {None: None if mask is None else mask.repeat(self.layout.group, 1)})
        rotation = self.rotations.for_length(cache.length + n).index_select(0, positions)
        out = self.compute(features, ids, rotation, view)
        cache.stage(n)
        cache.commit_all()
        return out

    def reserve(self, cache: KVCache, rows: int) -> None:
        """Allocate storage for `rows` more rows of `cache`."""
        cache.reserve(self._heads.num_kv_heads, self._heads.dim, self.dtype, self.device, rows)

    def compute(
        self, features: torch.Tensor, ids: torch.Tensor, rotation: torch.Tensor, view: CacheView
    ) -> torch.Tensor:
        """Run all layers; see `models.runtime.forward.FastForward.compute`."""
        n, x = len(ids), self._fc.pad_rows(features)
        ids = ids if len(x) == n else torch.constant_pad_nd(ids, (0, len(x) - n))
        embedded = F.embedding(ids, self._embedding.weight).to(self.dtype)
        if not self._fuses:
            x = self._fc(torch.cat([embedded, x], -1))
        for index, layer in enumerate(self._layers):
            x = layer(x, n, rotation, view, index, embedded)
        return (self._norm(x) if self._norms_output else x)[:n]

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """[n, H] → [n, V']."""
        return self._head((features if self._norms_output else self._norm(features)).to(self._head_dtype))


def _fused_norm(draft: Any, dtype: torch.dtype) -> Norm:
    if draft.fc_norm is None:
        return norm_of(draft.input_norm, dtype=dtype)
    norms = [norm_of(norm, dtype=dtype) for norm in draft.fc_norm]
    return lambda aux: torch.cat([norm(x) for norm, x in zip(norms, aux.chunk(len(norms), -1), strict=True)], -1)


EagleRunner = ModuleRunner | PackedRunner

"""The network of a DFlash draft for one sequence: as it is, or packed on the fast runtime.

Shapes: n positions, S tokens of a block, H hidden size, V' draft vocabulary; no batch dimension."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from decoding.drafters import runners
from models.draft_vocabulary import to_target
from models.runtime.attention import CacheView, SequenceView
from models.runtime.cache import CacheBackend, KVCache, upload
from models.runtime.graphs import MaskLayout
from models.runtime.layer import norm_of
from models.runtime.linear import Linear, pack
from models.runtime.rotary import draft_rotations, pair_order, paired_rows, rotate
from models.runtime.weights import pack_draft_layer_inplace, pack_linear_inplace


class BlockRunner:
    """The draft's network, unchanged. Training uses it for samples; other forwards are compared with it."""

    def __init__(self, draft: Any):
        self.draft, self.layers_wanted = draft, draft.layers_wanted
        self.logits, self.to_target = draft.logits, draft.to_target

    def new_cache(self) -> KVCache:
        return KVCache(len(self.draft.layers), runners.UNLIMITED, grows=True)

    @torch.inference_mode()
    def inject(self, aux: torch.Tensor, cache: KVCache) -> None:
        """Commit the rows of n more positions to the cache; `aux` [n, len · H]: outputs of `layers_wanted`."""
        context = self.draft.fuse(aux[None])
        positions = torch.arange(cache.length, cache.length + len(aux), device=aux.device)[None]
        for index, layer in enumerate(self.draft.layers):
            cache.write(index, *layer.context_rows(context, positions))
        cache.stage(len(aux))
        cache.commit_all()

    @torch.inference_mode()
    def block(self, token: int, cache: KVCache, count: int = 1) -> torch.Tensor:
        """Outputs [S, H] of the block of `token`, which follows the cache's rows. Its rows are not committed. `count`:
        as many blocks in a row, [count · S, H], to measure what several sequences cost."""
        draft, length, size = self.draft, cache.length, count * self.draft.block_size
        device = draft.norm.weight.device
        positions = torch.arange(length, length + size, device=device)[None]
        visible = torch.ones(size, length + size, dtype=torch.bool, device=device)
        ids = draft.block_ids(torch.tensor([token] * count, device=device)).reshape(1, -1)
        return draft(ids, positions, CacheBackend(cache, visible))[0]


class PackedBlockRunner:
    """As BlockRunner, on packed weights; the context's keys and values of all layers are one product."""

    def __init__(self, draft: Any, dtype: torch.dtype):
        config, base = draft.config, draft._base[0]
        self.layers_wanted, self.dtype, self._embedding = tuple(draft.layers_wanted), dtype, draft.table
        self._fc, self._hidden_norm = pack_linear_inplace(draft, "fc", dtype), norm_of(draft.hidden_norm, dtype=dtype)
        self._context = _pack_context(draft.layers, config, dtype)
        self._layers = [pack_draft_layer_inplace(layer, config, dtype) for layer in draft.layers]
        self._heads, self._norm = self._layers[0].heads, norm_of(draft.norm, dtype=dtype)
        self.layout = MaskLayout((None,), self._heads.group, dtype)
        self.to_target = partial(to_target, d2t=draft.d2t)
        if draft.lm_head is None:  # the base model's, in its precision
            self._head, self._head_dtype = base.lm_head, base.dtype
        else:
            self._head, self._head_dtype = pack_linear_inplace(draft, "lm_head", dtype), dtype
        self.device, self.size = self._embedding.weight.device, config.block_size
        ids = torch.full((self.size,), config.mask_token_id, device=self.device)
        self._masks = F.embedding(ids, self._embedding.weight).to(dtype)
        self.rotations = draft_rotations(self._heads.dim, config.rope_theta, self.device, config.rope_scaling)

    def new_cache(self) -> KVCache:
        return KVCache(len(self._layers), runners.UNLIMITED, grows=True)

    @torch.inference_mode()
    def inject(self, aux: torch.Tensor, cache: KVCache) -> None:
        """As BlockRunner."""
        start, n = cache.length, len(aux)
        for index, rows in enumerate(self.context_rows(aux, self.rotations.for_length(start + n)[start : start + n])):
            cache.write(index, *(row.transpose(0, 1)[None] for row in rows))
        cache.stage(n)
        cache.commit_all()

    def context_rows(self, aux: torch.Tensor, rotation: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """For each layer, keys and values [n, kv heads, dim] of n positions with the features `aux` [n, len · H]."""
        heads = self._heads
        rows = self._context(self._hidden_norm(self._fc(aux.to(self.dtype))))
        keys_values = rows.view(len(aux), len(self._layers), 2, heads.num_kv_heads, heads.dim)
        for index, layer in enumerate(self._layers):
            keys, values = keys_values[:, index].unbind(1)
            yield rotate(keys.contiguous() if layer.key_norm is None else layer.key_norm(keys), rotation), values

    def reserve(self, cache: KVCache, rows: int) -> None:
        """Allocate storage for `rows` more rows of `cache`."""
        cache.reserve(self._heads.num_kv_heads, self._heads.dim, self.dtype, self.device, rows)

    @torch.inference_mode()
    def block(self, token: int, cache: KVCache, count: int = 1) -> torch.Tensor:
        """As BlockRunner."""
        start, n = cache.length, count * self.size
        self.reserve(cache, n)
        rotation = self.rotations.for_length(start + n)[start : start + n]
        return self.compute(upload([token] * count, self.device), rotation, SequenceView(cache, n, {None: None}))

    def compute(self, ids: torch.Tensor, rotation: torch.Tensor, view: CacheView) -> torch.Tensor:
        """Outputs [count · S, H] of blocks that start with the tokens `ids` [count]."""
        n = len(ids) * self.size
        x = self._masks.repeat(len(ids), 1)
        x[:: self.size] = F.embedding(ids, self._embedding.weight).to(self.dtype)
        x = self._context.pad_rows(x)
        for index, layer in enumerate(self._layers):
            x = layer(x, n, rotation, view, index)
        return self._norm(x)[:n]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """[n, H] → [n, V']."""
        return self._head(x.to(self._head_dtype))


def _pack_context(layers: Any, config: Any, dtype: torch.dtype) -> Linear:
    """Key and value projections of all layers as one, [layers · 2 · k · d, H], with rotary pairs made adjacent."""
    dim, heads = config.head_dim, config.num_key_value_heads
    rows = paired_rows(2 * heads * dim, heads, pair_order(dim, dim))
    weights, biases = [], []
    for attention in (layer.self_attn for layer in layers):
        weights.append(torch.cat([attention.k_proj.weight, attention.v_proj.weight])[rows])
        if config.attention_bias:
            biases.append(torch.cat([attention.k_proj.bias, attention.v_proj.bias])[rows])
    return pack(torch.cat(weights).detach().to(dtype), torch.cat(biases).detach().to(dtype) if biases else None)

"""Attention of draft networks over the KV cache, for unpacked networks."""

import torch
from torch.nn import functional as F

from models.draft_layers import causal_mask
from models.runtime.cache import KVCache


class CacheMemory:
    """A `models.draft_layers.Memory` over a cache with one sequence: a forward writes n rows after the committed ones,
    which the caller stages and commits. `mask`: bool [n, length + n], for a tree; None: causal.
    """

    def __init__(self, cache: KVCache, mask: torch.Tensor | None = None):
        self.cache, self.mask = cache, mask

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `models.draft_layers.Memory`."""
        keys, values = self.cache.write(layer, k, v)
        n = q.shape[2]
        mask = self.mask if self.mask is not None else causal_mask(n, self.cache.length + n, q.device)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

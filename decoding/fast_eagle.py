"""The fast forward of EAGLE-1 and EAGLE-3 drafts beside a packed base: fused, packed, and in bfloat16 where the
processor multiplies in it. A draft only proposes, so its precision changes what is accepted, never what is emitted.

Same face as the draft networks in `models`, without the batch dimension.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from decoding.fast_layers import attend, pair_order, paired_rows, rms_norm, rotate
from decoding.packed import PackedLinear, PlainLinear, pack, packing_works
from models.base import has_bfloat16
from models.draft_layers import LayerShape, causal_mask

KEPT = "_speculoos_fast_eagle"
Norm = Callable[[torch.Tensor], torch.Tensor]


def fast_eagle(draft: Any) -> "FastEagle":
    """The fast form of an EAGLE-1 or EAGLE-3 draft. The first call takes its weights over: the draft's own forward can
    no longer run; later calls give the same object."""
    made = draft.__dict__.get(KEPT)
    if made is None:
        made = draft.__dict__[KEPT] = FastEagle(draft, drafting_dtype(draft))
    return made


def drafting_dtype(draft: Any) -> torch.dtype:
    """bfloat16 on processors that multiply in it, half the bytes to read; else the draft's own."""
    weight = next(draft.parameters())
    return torch.bfloat16 if has_bfloat16(weight.device) and packing_works(torch.bfloat16) else weight.dtype


class FastEagle:
    """Draft layers over packed weights. n places, H hidden of the base, V' draft vocabulary."""

    def __init__(self, draft: Any, dtype: torch.dtype):
        self.method, self.layers_wanted, self.dtype = draft.method, tuple(draft.layers_wanted), dtype
        shape: LayerShape = draft.config
        self.eagle3 = draft.method == "eagle3"
        self._embedding = draft._base[0].embed_tokens
        self._fc = _packed(draft.fc, dtype)
        draft.fc = None
        self._layers = [_Layer(layer, shape, dtype) for layer in draft.layers]
        self._norm = _norm(draft.norm, dtype)
        self._head, self._head_dtype = self._take_head(draft, dtype)
        self._d2t = draft.d2t if self.eagle3 else None
        self._turns = _Turns(shape, self._embedding.weight.device)

    def new_cache(self) -> "FastCache":
        return FastCache()

    def fuse(self, hidden: torch.Tensor, aux: torch.Tensor | None) -> torch.Tensor:
        """Features [n, H] to start from: of the three layers aux [n, 3H] (EAGLE-3), or `hidden` [n, H] itself."""
        return self._fc(aux.to(self.dtype)) if self.eagle3 else hidden.to(self.dtype)

    @torch.inference_mode()
    def __call__(
        self, features: torch.Tensor, ids: Sequence[int], first: int, depths: Sequence[int] | None, cache: "FastCache"
    ) -> torch.Tensor:
        """features [n, H] at places t with tokens t+1 → features [n, H]; written after the cache's rows.

        Positions are first, first + 1, …, or first + depths[i]. `cache.mask` says who sees whom.
        """
        n = len(ids)
        x = self._fc.filled_up(features)
        tokens = torch.tensor([*ids, *[0] * (len(x) - n)], device=x.device)
        embedded = F.embedding(tokens, self._embedding.weight).to(self.dtype)
        turn = self._turns(first, n if depths is None else depths)
        if cache.mask is None and n > 1:
            cache.mask = causal_mask(n, cache.length + n, x.device)
        if not self.eagle3:
            x = self._fc(torch.cat([embedded, x], -1))
        for index, layer in enumerate(self._layers):
            x = layer(x, embedded, n, turn, cache, index)
        cache.length, cache.mask = cache.length + n, None
        return (x if self.eagle3 else self._norm(x))[:n]

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """[n, H] → [n, V']."""
        return self._head((self._norm(features) if self.eagle3 else features).to(self._head_dtype))

    def to_target(self, ids: torch.Tensor) -> torch.Tensor:
        """Draft ids as token ids of the base."""
        return ids if self._d2t is None else ids + self._d2t[ids]

    def _take_head(self, draft: Any, dtype: torch.dtype) -> tuple[Any, torch.dtype]:
        """EAGLE-1 shares the base's head, in the base's precision."""
        if self.eagle3:
            made, draft.lm_head = _packed(draft.lm_head, dtype), None
            return made, dtype
        base = draft._base[0]
        return base.lm_head, base.dtype


class FastCache:
    """Keys and values [1, kv_heads, capacity, d] by layer.

    `mask` bool [n, length + n] says where the next forward's places may look; None: all rows and, among the new ones,
    those up to oneself.
    """

    def __init__(self) -> None:
        self.length = 0
        self.mask: torch.Tensor | None = None
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def crop(self, length: int) -> None:
        """Forget the rows after the first `length`."""
        self.length = min(self.length, length)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [n, kv_heads, d] after row `length`; views of all rows [1, kv_heads, length + n, d]."""
        end = self.length + keys.shape[0]
        if layer == len(self._kept) or end > self._kept[layer][0].shape[2]:
            self._grow(layer, keys, max(2 * end, 256))
        stored_keys, stored_values = self._kept[layer]
        stored_keys[0, :, self.length : end] = keys.transpose(0, 1)
        stored_values[0, :, self.length : end] = values.transpose(0, 1)
        return stored_keys[:, :, :end], stored_values[:, :, :end]

    def _grow(self, layer: int, like: torch.Tensor, capacity: int) -> None:
        made = tuple(like.new_empty(1, like.shape[1], capacity, like.shape[2]) for _ in range(2))
        if layer == len(self._kept):
            self._kept.append(made)
            return
        for new, old in zip(made, self._kept[layer], strict=True):
            new[:, :, : self.length] = old[:, :, : self.length]
        self._kept[layer] = made


class _Layer:
    """One decoder layer: queries, keys and values in one product, gate and up in another. EAGLE-3's reads the embedding
    and the feature side by side."""

    def __init__(self, layer: nn.Module, shape: LayerShape, dtype: torch.dtype):
        self.heads, self.kv_heads, self.dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        attention, mlp = layer.self_attn, layer.mlp
        joined = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]).detach()
        order = pair_order(self.dim, self.dim)
        self.qkv = pack(joined[paired_rows(len(joined), self.heads + self.kv_heads, order)].to(dtype))
        self.out = _packed(attention.o_proj, dtype)
        self.up = pack(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach().to(dtype))
        self.down = _packed(mlp.down_proj, dtype)
        self.hidden_norm = _norm(layer.hidden_norm, dtype) if hasattr(layer, "hidden_norm") else None
        self.input_norm = _norm(layer.input_layernorm, dtype) if layer.input_layernorm is not None else None
        self.mlp_norm = _norm(layer.post_attention_layernorm, dtype)
        self.norm_before_residual = getattr(layer, "norm_before_residual", False)
        for owner in (attention, mlp):
            for name in [name for name, child in owner.named_children() if isinstance(child, nn.Linear)]:
                setattr(owner, name, None)

    def __call__(
        self, x: torch.Tensor, embedded: torch.Tensor, n: int, turn: torch.Tensor, cache: FastCache, index: int
    ) -> torch.Tensor:
        """x and embedded hold n rows, and others below them, that nobody reads, where the products want more."""
        read, x = self._read(x, embedded)
        x = self.out.add(self.out.filled_up(self._attend(self.qkv(read)[:n], turn, cache, index)), x)
        gate, up = self.up(self.mlp_norm(x)).chunk(2, dim=1)
        return self.down.add(F.silu(gate).mul_(up), x)

    def _read(self, x: torch.Tensor, embedded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention reads, and the residual."""
        if self.hidden_norm is None:
            return (x if self.input_norm is None else self.input_norm(x)), x
        normed = self.hidden_norm(x)
        return torch.cat([self.input_norm(embedded), normed], -1), normed if self.norm_before_residual else x

    def _attend(self, qkv: torch.Tensor, turn: torch.Tensor, cache: FastCache, index: int) -> torch.Tensor:
        n, heads, kv_heads, dim = qkv.shape[0], self.heads, self.kv_heads, self.dim
        turned = (heads + kv_heads) * dim
        queries_keys = rotate(qkv[:, :turned].view(n, heads + kv_heads, dim), turn)
        keys, values = cache.write(index, queries_keys[:, heads:], qkv[:, turned:].view(n, kv_heads, dim))
        mask = None if cache.mask is None else cache.mask.repeat(heads // kv_heads, 1)
        return attend(queries_keys[:, :heads], keys, values, mask)


class _Turns:
    """Rotary embedding as complex numbers [n, 1, d / 2], by position; the table doubles as positions grow."""

    def __init__(self, shape: LayerShape, device: torch.device):
        powers = torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) / shape.head_dim
        self._steps = shape.rope_theta**powers
        self._table = torch.empty(0)

    def __call__(self, first: int, depths: int | Sequence[int]) -> torch.Tensor:
        last = first + (depths if isinstance(depths, int) else max(depths) + 1)
        if last > len(self._table):
            angles = torch.arange(max(2 * last, 256), device=self._steps.device)[:, None].float() / self._steps
            self._table = torch.polar(torch.ones_like(angles), angles)[:, None]
        if isinstance(depths, int):
            return self._table[first:last]
        return self._table.index_select(0, torch.tensor(depths, device=self._table.device).add_(first))


def _packed(linear: nn.Linear, dtype: torch.dtype) -> PackedLinear | PlainLinear:
    bias = None if linear.bias is None else linear.bias.detach().to(dtype)
    return pack(getattr(linear, "plain_weight", linear.weight).detach().to(dtype), bias)


def _norm(module: nn.Module, dtype: torch.dtype) -> Norm:
    if isinstance(module, nn.Identity):
        return module
    return rms_norm(module.weight.detach().to(dtype), module.eps)

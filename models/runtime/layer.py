"""A decoder layer for bases, EAGLE drafts and standalone drafts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from models.runtime.attention import CacheView
from models.runtime.linear import Linear
from models.runtime.rotary import rotate

Norm = Callable[[torch.Tensor], torch.Tensor]


def norm_of(module: nn.Module, order: torch.Tensor | None = None, dtype: torch.dtype | None = None) -> Norm:
    """The function of a norm module, with channels permuted by `order`, in `dtype` or the module's own."""
    if isinstance(module, nn.Identity):
        return module
    weight = (module.weight if order is None else module.weight[order]).detach()
    weight = weight if dtype is None else weight.to(dtype)
    if isinstance(module, nn.LayerNorm):
        shape, bias, eps = tuple(weight.shape), module.bias, module.eps
        return lambda x: nn.functional.layer_norm(x, shape, weight, bias, eps)
    return rms_norm(weight, module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps)


def rms_norm(weight: torch.Tensor, eps: float) -> Norm:
    """x / √(Σ x² / d + eps) · weight over the last dimension d, in fp32, for x of the weight's precision. torch's is
    one kernel on a GPU, but ten on a CPU, where this uses four."""
    size, dtype = weight.shape[0], weight.dtype
    if weight.device.type != "cpu":
        return lambda x: nn.functional.rms_norm(x, (size,), weight, eps)
    scale, floor = weight.detach().float() * size**0.5, torch.tensor((size * eps) ** 0.5)

    def wide(x: torch.Tensor) -> torch.Tensor:
        return torch.div(x, torch.linalg.vector_norm(x, 2, -1, True).hypot_(floor)).mul_(scale)

    return wide if dtype == torch.float32 else lambda x: wide(x.float()).to(dtype)


@dataclass(frozen=True)
class Heads:
    num_heads: int
    num_kv_heads: int
    dim: int

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """Weights of a layer with fused QKV and gate-up projections. `attention_norm` None: no norm before attention.
    `second_norm`: norm of a second attention input, concatenated before the first (EAGLE-3: the embedding);
    `norm_before_residual`: the residual is then the normed first input; `norm_twice`: `second_norm` is applied to the
    first input too, before its own norm. `mlp_norm` None: attention and MLP use the same norm in parallel (Phi)."""

    heads: Heads
    attention_norm: Norm | None
    qkv: Linear
    out: Linear
    mlp_norm: Norm | None
    up: Linear
    down: Linear
    activation: Callable[[torch.Tensor], torch.Tensor] = torch.nn.functional.silu
    gated: bool = True
    window: int | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    second_norm: Norm | None = None
    norm_before_residual: bool = False
    norm_twice: bool = False

    def __call__(
        self,
        x: torch.Tensor,
        n: int,
        rotation: torch.Tensor,
        view: CacheView,
        index: int,
        second: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x and `second` [≥ n, H]: n rows, possibly padded (`Linear.pad_rows`). rotation: complex [n, 1, dim / 2].
        `index`: layer of the cache."""
        first = self.second_norm(x) if self.norm_twice else x
        normed = first if self.attention_norm is None else self.attention_norm(first)
        attention_input = normed
        if self.second_norm is not None:
            attention_input = torch.cat([self.second_norm(second), normed], -1)
            x = normed if self.norm_before_residual else x
        mixed = self._attend(self.qkv(attention_input)[:n], rotation, view, index)
        x = self.out.add(self.out.pad_rows(mixed), x)
        up = self.up(normed if self.mlp_norm is None else self.mlp_norm(x))
        if self.gated:
            gate, up = up.chunk(2, dim=1)
            up = self.activation(gate).mul_(up)
        else:
            up = self.activation(up)
        return self.down.add(up, x)

    def _attend(self, qkv: torch.Tensor, rotation: torch.Tensor, view: CacheView, index: int) -> torch.Tensor:
        n, dim, heads, kv_heads = qkv.shape[0], self.heads.dim, self.heads.num_heads, self.heads.num_kv_heads
        queries_keys = qkv[:, : (heads + kv_heads) * dim].view(n, heads + kv_heads, dim)
        if self.query_norm is not None:
            parts = self.query_norm(queries_keys[:, :heads]), self.key_norm(queries_keys[:, heads:])
            queries_keys = torch.cat(parts, dim=1)
        queries_keys = rotate(queries_keys, rotation)
        values = qkv[:, (heads + kv_heads) * dim :].view(n, kv_heads, dim)
        return view.attend(index, queries_keys[:, :heads], queries_keys[:, heads:], values, self.window)

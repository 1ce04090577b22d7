"""The decoder layer EAGLE drafts are made of, and two ways its attention can look back; the third, over a
cache, is `models.runtime.drafts.CacheMemory`.

Tensor names are those of Llama in transformers, so that exports need no renaming. Shapes: B rows, n places, H hidden,
h heads, k key/value heads, d per head. Knows no training loss and no drafting policy.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.rope import frequencies


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a draft's decoder layer; by default those of the base. What follows `rope_theta` drafts trained here do
    without; published ones have it."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    """As `models.rope.frequencies` takes it."""
    attention_bias: bool = False
    """Of queries, keys and values."""
    output_bias: bool = False
    """Of what follows attention."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Each head of queries and keys is normed, as in Qwen 3."""


def shape_of(base: Any) -> LayerShape:
    """The base's own sizes, from whatever names its family uses."""
    config, hidden = base.config.get_text_config(), base.hidden_size
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    eps = (getattr(config, name, None) for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"))
    return LayerShape(
        hidden_size=hidden,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or hidden // heads,
        rms_norm_eps=next((value for value in eps if value), 1e-5),
        rope_theta=float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0),
    )


class Memory(Protocol):
    """What attention looks at. Called once a layer and forward with q [B, h, n, d] and k, v [B, k, n, d]."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, h, n, d]."""


class Causal:
    """Rows that begin here: place t looks at places 0…t."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class ChainMemory:
    """Training-time test (Li et al. 2025, EAGLE-3): step 0 is causal; at step j place t looks at the step-0 keys of
    places 0…t and at its own keys of steps 1…j, exactly what a chain drafted from t sees.

    Worked for t = 2 at step 2: keys k0[0], k0[1], k0[2], k1[2], k2[2] at positions 0, 1, 2, 3, 4.
    `asked` [B, m]: the places that ask, in the order of the queries; None: all do. Later steps hold only those.
    """

    def __init__(self, places: Tensor | None = None) -> None:
        self._places = places
        self._bias: Tensor | None = None
        self._steps: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        steps = self._steps.setdefault(layer, [])
        steps.append((k, v))
        if len(steps) == 1:
            mask = None if self._places is None else self._looks(k.shape[2])
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        scale, (first_k, first_v) = q.shape[-1] ** -0.5, steps[0]
        n = first_k.shape[2]
        scores = (q * scale @ first_k.transpose(-1, -2)).add_(self._hidden(q, n))
        own = torch.stack([(q * later_k).sum(-1) * scale for later_k, _ in steps[1:]], -1)
        weights = torch.cat([scores, own], -1).softmax(-1)
        out = weights[..., :n] @ first_v
        for i, (_, later_v) in enumerate(steps[1:]):
            out = out + weights[..., n + i, None] * later_v
        return out

    def _looks(self, n: int) -> Tensor:
        """bool [B, 1, m, n]: each asking place looks at all up to itself."""
        return torch.arange(n, device=self._places.device) <= self._places[:, None, :, None]

    def _hidden(self, q: Tensor, n: int) -> Tensor:
        """0 or −∞, to be added to the scores of the step-0 keys at every later step."""
        if self._bias is None:
            looks = causal_mask(n, n, q.device) if self._places is None else self._looks(n)
            self._bias = q.new_zeros(looks.shape).masked_fill_(~looks, float("-inf"))
        return self._bias


class Attention(nn.Module):
    """Grouped-query attention with rotary positions. `width` is the input's size (2H in EAGLE-3)."""

    def __init__(self, shape: LayerShape, width: int):
        super().__init__()
        self.shape = shape
        heads, kv, d = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.q_proj = nn.Linear(width, heads * d, bias=shape.attention_bias)
        self.k_proj = nn.Linear(width, kv * d, bias=shape.attention_bias)
        self.v_proj = nn.Linear(width, kv * d, bias=shape.attention_bias)
        self.o_proj = nn.Linear(heads * d, shape.hidden_size, bias=shape.output_bias)
        self.q_norm = nn.RMSNorm(d, shape.rms_norm_eps) if shape.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(d, shape.rms_norm_eps) if shape.qk_norm else nn.Identity()

    def forward(self, x: Tensor, positions: Tensor, memory: Memory, layer: int, places: Tensor | None = None) -> Tensor:
        """x [B, n, width] → [B, n, H], or [B, m, H] where only `places` [B, m] ask; all are looked at."""
        q, k, v = self.q_proj(pick(x, places)), self.k_proj(x), self.v_proj(x)
        cos, sin = rotary(positions, self.shape, x.dtype)
        k = rotate(self.k_norm(self._heads(k)), cos, sin)
        if places is not None:
            cos, sin = rotary(positions.gather(1, places), self.shape, x.dtype)
        q = rotate(self.q_norm(self._heads(q)), cos, sin)
        out = memory.attend(layer, q, k, self._heads(v))
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)


class SwiGLU(nn.Module):
    """down(SiLU(gate(x)) · up(x))."""

    def __init__(self, shape: LayerShape):
        super().__init__()
        hidden, wide, bias = shape.hidden_size, shape.intermediate_size, shape.mlp_bias
        self.gate_proj = nn.Linear(hidden, wide, bias=bias)
        self.up_proj = nn.Linear(hidden, wide, bias=bias)
        self.down_proj = nn.Linear(wide, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def pick(x: Tensor, places: Tensor | None) -> Tensor:
    """x [B, n, C] at places [B, m] → [B, m, C]; None: all of it."""
    return x if places is None else x.take_along_dim(places[..., None], 1)


def rotary(positions: Tensor, shape: LayerShape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos, sin [B, 1, n, d] for positions [B, n], computed in float32."""
    angles, factor = _angles(positions.float()[:, None, :, None], shape)
    angles = torch.cat([angles, angles], -1)
    cos, sin = angles.cos(), angles.sin()
    if factor != 1.0:
        cos, sin = cos * factor, sin * factor
    return cos.to(dtype), sin.to(dtype)


def _angles(places: Tensor, shape: LayerShape) -> tuple[Tensor, float]:
    """Angles [..., d / 2] at float32 places [..., 1], and the factor on cos and sin."""
    if shape.rope_scaling:
        turns, factor = frequencies(shape.head_dim, shape.rope_theta, shape.rope_scaling)
        return places * turns.to(places.device), factor
    powers = torch.arange(0, shape.head_dim, 2, device=places.device, dtype=torch.float32) / shape.head_dim
    return places / shape.rope_theta**powers, 1.0


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in Llama's layout (halves, not pairs)."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def causal_mask(n: int, total: int, device: torch.device) -> Tensor:
    """bool [n, total]: the last n of `total` places look at all up to themselves."""
    return torch.ones(n, total, dtype=torch.bool, device=device).tril(total - n)


def init_weights(module: nn.Module) -> None:
    """Linear layers drawn from N(0, 0.02²), as Llama does; norms stay at one."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, 0.0, 0.02)

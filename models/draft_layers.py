"""The decoder layer of EAGLE drafts, and causal attention without a cache; other attention backends are
`models.chain_attention.ChainBackend` and `models.runtime.cache.CacheBackend`.

Tensor names are those of Llama in transformers, so that exports need no renaming. Shapes: B batch, n positions, H
hidden size, h heads, k key/value heads, d head size."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from speculoos.errors import BadInput

SCALED = ("linear", "llama3", "yarn")
"""Scaling types that depend on the config only; others change with the sequence length."""


def check_bounds(config: Mapping[str, Any], **bounds: tuple[int, int]) -> None:
    """Raise BadInput for a value of a draft's config that is not a whole number within its bounds; `aux_layers` is a
    list of such."""
    for name, (lowest, highest) in bounds.items():
        value = config.get(name, lowest)
        for number in value if name == "aux_layers" and isinstance(value, list | tuple) else [value]:
            if type(number) is not int or not lowest <= number <= highest:
                raise BadInput(
                    f"config.json: {name}: expected {lowest} to {highest}, got {str(number)[:40]!r}; restore the "
                    "draft's original config.json."
                )


def frequencies(dim: int, theta: float, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """Inverse frequencies of each pair of channels, float32 [dim / 2], and the factor on cos and sin. `scaling` has
    `rope_type` (one of SCALED) and its parameters, named as in Hugging Face configs. Sources: Chen et al. 2023
    (linear), Peng et al. 2023 (YaRN), Llama 3.1's config."""
    return _computed(dim, theta, json.dumps(scaling, sort_keys=True))


@lru_cache
def _computed(dim: int, theta: float, scaling: str) -> tuple[Tensor, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {**json.loads(scaling), "rope_theta": theta}
    length = int(parameters.get("original_max_position_embeddings") or 2048)
    config = LlamaConfig(
        head_dim=dim, hidden_size=dim, num_attention_heads=1, rope_parameters=parameters, max_position_embeddings=length
    )
    inverse_frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    return inverse_frequencies.float(), float(factor)


NORM_START = 0.3
"""Factor on the base's final norm in a new draft. With factor 1 the logits of an untrained draft are so large that the
first loss is 20 nats instead of 10, which slows training (docs/log.md)."""


@dataclass(frozen=True)
class LayerConfig:
    """Sizes and options of a draft's decoder layer. Fields after `rope_theta` are for imported drafts only."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm of each query and key head, as in Qwen 3."""


def base_layer_config(base: Any) -> LayerConfig:
    """The config of the base's layers, whatever names its family uses."""
    config, hidden = base.config.get_text_config(), base.hidden_size
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    eps = (getattr(config, name, None) for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"))
    return LayerConfig(
        hidden_size=hidden,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or hidden // heads,
        rms_norm_eps=next((value for value in eps if value), 1e-5),
        rope_theta=float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0),
    )


class Backend(Protocol):
    """Attention over earlier positions. Called once per layer and forward with q [B, h, n, d] and k, v [B, k, n, d]."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention output [B, h, n, d]."""


class CausalBackend:
    """Causal attention without a cache: position t attends to positions 0…t."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class Attention(nn.Module):
    """Grouped-query attention with rotary embeddings. `width` is the input size (2H in EAGLE-3)."""

    def __init__(self, config: LayerConfig, width: int):
        super().__init__()
        self.config = config
        heads, kv, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(width, heads * d, bias=config.attention_bias)
        self.k_proj = nn.Linear(width, kv * d, bias=config.attention_bias)
        self.v_proj = nn.Linear(width, kv * d, bias=config.attention_bias)
        self.o_proj = nn.Linear(heads * d, config.hidden_size, bias=config.output_bias)
        self.q_norm = nn.RMSNorm(d, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(d, config.rms_norm_eps) if config.qk_norm else nn.Identity()

    def forward(
        self, x: Tensor, positions: Tensor, backend: Backend, layer: int, index: Tensor | None = None
    ) -> Tensor:
        """x [B, n, width] → [B, n, H], or [B, m, H] with queries only at `index` [B, m]; keys are of all positions."""
        q, k, v = self.q_proj(take_positions(x, index)), self.k_proj(x), self.v_proj(x)
        cos, sin = rotary(positions, self.config, x.dtype)
        k = rotate(self.k_norm(self._heads(k)), cos, sin)
        if index is not None:
            cos, sin = rotary(positions.gather(1, index), self.config, x.dtype)
        q = rotate(self.q_norm(self._heads(q)), cos, sin)
        out = backend.attend(layer, q, k, self._heads(v))
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)


class SwiGLU(nn.Module):
    """down(SiLU(gate(x)) · up(x))."""

    def __init__(self, config: LayerConfig):
        super().__init__()
        hidden, wide, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, wide, bias=bias)
        self.up_proj = nn.Linear(hidden, wide, bias=bias)
        self.down_proj = nn.Linear(wide, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if not torch.is_grad_enabled():
            return self._down(gate, up)
        # The two elementwise products take as much memory as `gate` and `up`; the backward computes them again.
        return checkpoint(self._down, gate, up, use_reentrant=False, preserve_rng_state=False)

    def _down(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.down_proj(F.silu(gate) * up)


def take_positions(x: Tensor, index: Tensor | None) -> Tensor:
    """x [B, n, C] at index [B, m] → [B, m, C]; None: x itself."""
    return x if index is None else x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def rotary(positions: Tensor, config: LayerConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos, sin [B, 1, n, d] for positions [B, n], computed in float32."""
    positions, factor = positions.float()[:, None, :, None], 1.0
    if config.rope_scaling:
        inverse_frequencies, factor = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        angles = positions * inverse_frequencies.to(positions.device)
    else:
        powers = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32) / config.head_dim
        angles = positions / config.rope_theta**powers
    angles = torch.cat([angles, angles], -1)
    cos, sin = angles.cos(), angles.sin()
    if factor != 1.0:
        cos, sin = cos * factor, sin * factor
    return cos.to(dtype), sin.to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in Llama's layout (halves, not pairs)."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def causal_mask(n: int, total: int, device: torch.device) -> Tensor:
    """Causal mask, bool [n, total], of the last n of `total` positions."""
    return torch.ones(n, total, dtype=torch.bool, device=device).tril(total - n)


def init_weights(module: nn.Module) -> None:
    """Initialize linear layers from N(0, 0.02²), as in Llama; norms stay at one."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, 0.0, 0.02)


@torch.no_grad()
def start_norm(norm: nn.RMSNorm, base: Any) -> None:
    """Initialize the norm before the base's LM head: NORM_START times the base's, except Gemma's, which adds one."""
    weight = getattr(base.final_norm, "weight", None)
    if isinstance(weight, Tensor) and "Gemma" not in type(base.model).__name__:
        norm.weight.copy_(weight * NORM_START)

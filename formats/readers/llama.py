"""The parts of a Llama layer as functions of weights: RMS norm, rotary embedding, attention, MLP. Written from the
servers' implementations of Llama, not from the workbench's layers.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional as F

from formats.readers.weights import Weights


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) · weight."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def attention(x: torch.Tensor, weights: Weights, prefix: str, config: Mapping[str, Any]) -> torch.Tensor:
    """Causal self-attention, x [n, width] → [n, H], positions 0 … n - 1."""
    heads, keys = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    q = rotated(weights.linear(x, f"{prefix}q_proj.weight").view(-1, heads, dim), config)
    k = rotated(weights.linear(x, f"{prefix}k_proj.weight").view(-1, keys, dim), config)
    v = weights.linear(x, f"{prefix}v_proj.weight").view(-1, keys, dim)
    k, v = (tensor.repeat_interleave(heads // keys, 1) for tensor in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
    hidden = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
    mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
    return weights.linear(mixed.reshape(len(x), -1), f"{prefix}o_proj.weight")


def mlp(x: torch.Tensor, weights: Weights, prefix: str) -> torch.Tensor:
    """down(silu(gate(x)) · up(x))."""
    gate = F.silu(weights.linear(x, f"{prefix}gate_proj.weight"))
    return weights.linear(gate * weights.linear(x, f"{prefix}up_proj.weight"), f"{prefix}down_proj.weight")


def rotated(x: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Rotary embedding of x [n, heads, d] at positions 0 … n - 1, pairs (i, i + d/2)."""
    half = x.shape[-1] // 2
    frequency, factor = _frequencies(config, half)
    angle = torch.arange(len(x), dtype=torch.float32)[:, None] * frequency
    rotation = torch.polar(torch.full_like(angle, factor), angle)[:, None].to(x.device)
    result = torch.complex(x[..., :half], x[..., half:]) * rotation
    return torch.cat([result.real, result.imag], -1)


def _frequencies(config: Mapping[str, Any], half: int) -> tuple[torch.Tensor, float]:
    """Angle per position of each pair [half], and the factor on the result; scaling as in transformers' Llama."""
    theta = float(config.get("rope_theta", 10000.0))
    if not config.get("rope_scaling"):
        return theta ** (-torch.arange(half, dtype=torch.float32) / half), 1.0
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    names = ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings")
    scaling = {"rope_theta": theta, "rope_scaling": dict(config["rope_scaling"])}
    rotary = LlamaRotaryEmbedding(LlamaConfig(**{name: config[name] for name in names if name in config}, **scaling))
    return rotary.inv_freq.float(), float(rotary.attention_scaling)

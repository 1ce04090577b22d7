"""Rotary embeddings as complex multiplications of adjacent channels.

The pairs (i, i + d/2) of queries and keys are made adjacent when weights are packed; scores do not change when both are
permuted alike."""

from collections.abc import Callable
from typing import Any

import torch

from models.draft_layers import frequencies

INITIAL_POSITIONS = 256


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def pair_order(dim: int, rotary: int) -> torch.Tensor:
    """Permutation of a head's `dim` channels that makes the pairs of its first `rotary` adjacent. For 8 with 4 rotary
    channels: [0, 2, 1, 3, 4, 5, 6, 7]."""
    pairs = torch.arange(rotary).view(2, rotary // 2).T.flatten()
    return torch.cat([pairs, torch.arange(rotary, dim)])


def paired_rows(count: int, heads: int, order: torch.Tensor) -> torch.Tensor:
    """Permutation of the `count` rows of a QKV weight: channels of the first `heads` heads (queries, then keys) in the
    `order` [head_dim], the rest (values) unchanged."""
    rows, dim = torch.arange(count), len(order)
    rows[: heads * dim] = (torch.arange(heads)[:, None] * dim + order[None]).flatten()
    return rows


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotate adjacent channels of x [n, heads, dim] by complex `rotation` [n, 1, dim / 2]; fp32 in place."""
    rotated = x.float()
    torch.view_as_complex(rotated.view(*x.shape[:-1], -1, 2)).mul_(rotation)
    return rotated.to(x.dtype)


class Rotations:
    """Table of complex [length, 1, dim / 2], one row per position; grows by doubling."""

    def __init__(self, compute: Callable[[int], torch.Tensor]):
        """`compute(length)` returns the table for positions 0 … length - 1."""
        self._compute = compute
        self.table = torch.empty(0)

    def for_length(self, length: int) -> torch.Tensor:
        if length > len(self.table):
            self.table = self._compute(max(length, 2 * len(self.table), INITIAL_POSITIONS))
        return self.table


def base_rotations(base: Any) -> Rotations:
    """Rotations of a base's rotary module. Channels beyond the rotary part (partial rotary factor) are not rotated."""
    dim, module, device = head_dim(base.config), base.backbone.rotary_emb, base.device

    def compute(length: int) -> torch.Tensor:
        cos, sin = module(torch.zeros(1, dtype=torch.float32, device=device), torch.arange(length, device=device)[None])
        half = cos.shape[-1] // 2
        rotated = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
        identity = torch.ones(length, dim // 2 - half, dtype=rotated.dtype, device=device)
        return torch.cat([rotated, identity], dim=1)[:, None]

    return Rotations(compute)


def draft_rotations(dim: int, theta: float, device: torch.device, scaling: dict[str, Any] | None = None) -> Rotations:
    """Rotations of a draft; for `scaling` see `models.draft_layers.frequencies`."""
    if scaling:
        inverse_frequencies, factor = frequencies(dim, theta, scaling)
        steps = 1 / inverse_frequencies.to(device)
    else:
        steps, factor = theta ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim), 1.0

    def compute(length: int) -> torch.Tensor:
        angles = torch.arange(length, device=device)[:, None].float() / steps
        return torch.polar(torch.full_like(angles, factor), angles)[:, None]

    return Rotations(compute)

"""Rotary positions as complex multiplications: channels that turn together lie side by side.

The pairs (i, i + d/2) of queries and keys are moved next to each other when weights are taken over; scores do not
change when both move alike.
"""

from collections.abc import Callable
from typing import Any

import torch

from models.rope import frequencies

SMALLEST = 256


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def pair_order(dim: int, rotary: int) -> torch.Tensor:
    """Where each of a head's `dim` channels comes from so that the pairs of its first `rotary` lie side by side.

    For 8 with 4 rotary channels: [0, 2, 1, 3, 4, 5, 6, 7].
    """
    pairs = torch.arange(rotary).view(2, rotary // 2).T.flatten()
    return torch.cat([pairs, torch.arange(rotary, dim)])


def paired_rows(count: int, heads: int, order: torch.Tensor) -> torch.Tensor:
    """Where each of `count` rows of a joined weight comes from: its first `heads` heads (queries, then keys) have their
    channels in the `order` [head_dim], the rest (values) stays."""
    rows, dim = torch.arange(count), len(order)
    rows[: heads * dim] = (torch.arange(heads)[:, None] * dim + order[None]).flatten()
    return rows


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Turn neighbouring channels of x [n, heads, dim] by complex `rotation` [n, 1, dim / 2]; fp32 in place."""
    turned = x.float()
    torch.view_as_complex(turned.view(*x.shape[:-1], -1, 2)).mul_(rotation)
    return turned.to(x.dtype)


class Rotations:
    """The table of complex [length, 1, dim / 2], one row a position; it doubles as positions grow."""

    def __init__(self, compute: Callable[[int], torch.Tensor]):
        """`compute(length)` gives the table for positions 0 … length - 1."""
        self._compute = compute
        self.table = torch.empty(0)

    def reach(self, length: int) -> torch.Tensor:
        """The table, of at least `length` positions."""
        if length > len(self.table):
            self.table = self._compute(max(length, 2 * len(self.table), SMALLEST))
        return self.table


def base_rotations(base: Any) -> Rotations:
    """Those of a base's own rotary module. Pairs beyond the rotary part (partial rotary factor) stay as they are."""
    dim, module, device = head_dim(base.config), base.backbone.rotary_emb, base.device

    def compute(length: int) -> torch.Tensor:
        cos, sin = module(torch.zeros(1, dtype=torch.float32, device=device), torch.arange(length, device=device)[None])
        half = cos.shape[-1] // 2
        turned = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
        still = torch.ones(length, dim // 2 - half, dtype=turned.dtype, device=device)
        return torch.cat([turned, still], dim=1)[:, None]

    return Rotations(compute)


def draft_rotations(dim: int, theta: float, device: torch.device, scaling: dict[str, Any] | None = None) -> Rotations:
    """Those of a draft; `scaling` as `models.rope.frequencies` takes it."""
    if scaling:
        turns, factor = frequencies(dim, theta, scaling)
        steps = 1 / turns.to(device)
    else:
        steps, factor = theta ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim), 1.0

    def compute(length: int) -> torch.Tensor:
        angles = torch.arange(length, device=device)[:, None].float() / steps
        return torch.polar(torch.full_like(angles, factor), angles)[:, None]

    return Rotations(compute)

"""Logits to probabilities, and sampling from them with random numbers of the caller."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

BLOCK = 256
"""Ids whose probabilities are summed first when drawing."""


@dataclass(frozen=True)
class LogitsWarper:
    """Temperature, `top_k` (0: all), then `top_p`; order and ties are as in transformers' samplers."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Probabilities [..., V] in float64 of logits [..., V]."""
        logits = logits.double() / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            floor = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < floor, -torch.inf)
        probs = logits.softmax(dim=-1)
        return probs if self.top_p >= 1.0 else _nucleus(probs, self.top_p)


def _nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    outside = ordered.cumsum(dim=-1) - ordered >= top_p  # the tokens before have enough mass
    outside[..., 0] = False
    nucleus = probs.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), 0.0)
    return normalized(nucleus)


def normalized(weights: torch.Tensor) -> torch.Tensor:
    """Weights [..., V] divided by their sum; weights that are all zero stay zero."""
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def draw(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Ids [...] drawn from `probs` [..., V] by inverting the cumulative sum at `uniform` [...] in [0, 1): first the
    block of BLOCK ids, since sums are several times as fast as cumulative sums."""
    size = probs.shape[-1]
    blocks = F.pad(probs, (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))
    total = blocks.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    block, rest = _search(total, uniform.to(total)[..., None] * total[..., -1:])
    chosen = blocks.gather(-2, block[..., None].expand(*block.shape, BLOCK))[..., 0, :]
    index, _ = _search(chosen.cumsum(dim=-1, dtype=torch.float64), rest)
    return (block * BLOCK + index)[..., 0].clamp(max=size - 1)


def _search(total: torch.Tensor, point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first index [..., 1] whose cumulative sum `total` [..., n] is above `point` [..., 1], and the point minus the
    sum before it. A point that rounding put at the last sum is moved below it, so that its index has a probability."""
    point = torch.minimum(point, total[..., -1:].nextafter(torch.zeros_like(point)))
    index = torch.searchsorted(total, point, right=True).clamp(max=total.shape[-1] - 1)
    return index, point - F.pad(total, (1, 0)).gather(-1, index)


def draw_distinct(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """k different ids [..., k] drawn without replacement from `probs` [..., V] with `uniforms` [..., k] in [0, 1); −1
    where no probability mass remains."""
    ids = []
    for uniform in uniforms.unbind(-1):
        drawn = draw(probs, uniform)
        ids.append(torch.where(probs.sum(dim=-1) > 0, drawn, -1))
        probs = probs.scatter(-1, drawn[..., None], 0.0)
    return torch.stack(ids, dim=-1)

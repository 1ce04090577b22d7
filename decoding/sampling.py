"""Logits to probabilities, and sampling from them with random numbers of the caller."""

from dataclasses import dataclass

import torch


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
    """Ids [...] drawn from `probs` [..., V] by inverting the cumulative sum at `uniform` [...] in [0, 1)."""
    total = probs.cumsum(dim=-1)
    point = uniform.to(total)[..., None] * total[..., -1:]
    ids = torch.searchsorted(total, point, right=True)[..., 0]
    last = probs.shape[-1] - 1 - probs.flip(-1).gt(0).int().argmax(dim=-1)  # rounding may point past the last mass
    return torch.minimum(ids, last)


def draw_distinct(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """k different ids [..., k] drawn without replacement from `probs` [..., V] with `uniforms` [..., k] in [0, 1); −1
    where no probability mass remains."""
    ids = []
    for uniform in uniforms.unbind(-1):
        drawn = draw(probs, uniform)
        ids.append(torch.where(probs.sum(dim=-1) > 0, drawn, -1))
        probs = probs.scatter(-1, drawn[..., None], 0.0)
    return torch.stack(ids, dim=-1)

"""Sample the next token of every row of a batch: greedy, or with each row's own random numbers."""

import torch

from models.runtime.argmax import argmax

TOP_K = 1024
"""Tokens sorted first when sampling: sorting the whole vocabulary takes longer than a small model's forward."""


def sample_tokens(logits: torch.Tensor, draws: list[float], temperature: float, top_p: float) -> list[int]:
    """Token ids for logits [B, V]. Temperature 0 is greedy; else inverse-CDF sampling from the smallest set of tokens
    whose probability reaches `top_p`, with one uniform number in [0, 1) per row."""
    if temperature <= 0:
        return argmax(logits).tolist()
    probs = torch.softmax(logits.float() / temperature, dim=-1)
    numbers = torch.tensor(draws, device=logits.device, dtype=probs.dtype)[:, None]
    count = min(TOP_K, probs.shape[-1])
    values, order = probs.topk(count, dim=-1)
    picked = _inverse_cdf(values, order, numbers, top_p)
    incomplete = values.sum(dim=-1) < top_p if count < probs.shape[-1] else torch.zeros(len(probs), dtype=torch.bool)
    if incomplete.any():  # flat distributions: the set has more than TOP_K tokens
        values, order = probs[incomplete].sort(dim=-1, descending=True, stable=True)
        picked[incomplete] = _inverse_cdf(values, order, numbers[incomplete], top_p)
    return picked.tolist()


def _inverse_cdf(probs: torch.Tensor, order: torch.Tensor, draws: torch.Tensor, top_p: float) -> torch.Tensor:
    """One of `order` [B, K] per row, by descending `probs` [B, K] and `draws` in [0, 1) [B, 1]."""
    total = probs.cumsum(dim=-1)
    last = torch.searchsorted(total, torch.full_like(total[:, :1], top_p)).clamp(max=probs.shape[-1] - 1)
    index = torch.minimum(torch.searchsorted(total, draws * total.gather(1, last), right=True), last)
    return order.gather(1, index)[:, 0]

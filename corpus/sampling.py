"""The next token of every row of a batch: greedy, or drawn with numbers that belong to the row alone."""

import torch

from models.runtime.argmax import argmax

HEAD = 1024
"""Tokens looked at first when sampling: sorting whole vocabularies takes longer than a small model's forward."""


def pick(logits: torch.Tensor, draws: list[float], temperature: float, top_p: float) -> list[int]:
    """Token ids for logits [B, V]. Temperature 0 takes the best; else inverse-CDF sampling of the smallest set of
    tokens whose probability reaches `top_p`, with one uniform number in [0, 1) a row."""
    if temperature <= 0:
        return argmax(logits).tolist()
    probs = torch.softmax(logits.float() / temperature, dim=-1)
    numbers = torch.tensor(draws, device=logits.device, dtype=probs.dtype)[:, None]
    count = min(HEAD, probs.shape[-1])
    values, order = probs.topk(count, dim=-1)
    picked = _inverse_cdf(values, order, numbers, top_p)
    short = values.sum(dim=-1) < top_p if count < probs.shape[-1] else torch.zeros(len(probs), dtype=torch.bool)
    if short.any():  # flat rows: the set reaches beyond the head
        values, order = probs[short].sort(dim=-1, descending=True, stable=True)
        picked[short] = _inverse_cdf(values, order, numbers[short], top_p)
    return picked.tolist()


def _inverse_cdf(probs: torch.Tensor, order: torch.Tensor, draws: torch.Tensor, top_p: float) -> torch.Tensor:
    """One of `order` [B, K] a row, by its probability, falling, `probs` [B, K] and a number in [0, 1) [B, 1]."""
    total = probs.cumsum(dim=-1)
    last = torch.searchsorted(total, torch.full_like(total[:, :1], top_p)).clamp(max=probs.shape[-1] - 1)
    index = torch.minimum(torch.searchsorted(total, draws * total.gather(1, last), right=True), last)
    return order.gather(1, index)[:, 0]

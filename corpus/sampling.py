"""The next token of every row of a batch: greedy, or drawn with numbers that belong to the row alone."""

import hashlib
import random

import torch


def row_numbers(seed: int, row_id: str, turn: int) -> random.Random:
    """Random numbers for one answer: the same whatever batch the row is in, and after a resume."""
    return random.Random(row_seed(seed, row_id, turn))


def row_seed(seed: int, row_id: str, turn: int) -> int:
    """A 64-bit seed for one answer of one row."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{row_id}/{turn}".encode()).digest()[:8], "big")


def pick(logits: torch.Tensor, draws: list[float], temperature: float, top_p: float) -> list[int]:
    """Token ids for logits [B, V]. Temperature 0 takes the best; else inverse-CDF sampling of the smallest set of
    tokens whose probability reaches `top_p`, with one uniform number in [0, 1) a row."""
    if temperature <= 0:
        return logits.argmax(dim=-1).tolist()
    probs, order = torch.softmax(logits.float() / temperature, dim=-1).sort(dim=-1, descending=True, stable=True)
    total = probs.cumsum(dim=-1)
    last = torch.searchsorted(total, torch.full_like(total[:, :1], top_p)).clamp(max=logits.shape[-1] - 1)
    mass = total.gather(1, last)
    wanted = torch.tensor(draws, device=logits.device, dtype=total.dtype)[:, None] * mass
    index = torch.minimum(torch.searchsorted(total, wanted, right=True), last)
    return order.gather(1, index)[:, 0].tolist()

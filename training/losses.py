"""Losses over large vocabularies, computed some rows at a time: memory stays at one chunk of logits, not rows × V.

All functions give sums over rows; whoever calls divides by the global token count. The gradient is computed together
with the loss, while the chunk's logits are at hand, so nothing of size V × rows is kept for the backward pass.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

CHUNK_FLOATS = 1 << 24


def hard_loss(x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of logits x·weightᵀ against labels, summed: (scalar, hits bool [N]).

    x [N, H], weight [V, H], labels [N] in 0…V-1. A hit is a row whose best token is its label.
    """
    return _HardLoss.apply(x, weight, labels)


def soft_loss(x: Tensor, weight: Tensor, target: Tensor, target_weight: Tensor, kind: str = "ce") -> tuple:
    """Distance of q = softmax(x·weightᵀ) from p = softmax(target·target_weightᵀ), summed: (scalar, hits bool [N]).

    x [N, H], weight [V, H]; target [N, H'], target_weight [V, H'] give p and take no gradient.
    kind: ce −Σ p log q; kl Σ p (log p − log q); reverse_kl Σ q (log q − log p). A hit: both have the same best token.
    """
    return _SoftLoss.apply(x, weight, target, target_weight, kind)


def unrolled_loss(
    xs: list[Tensor], weight: Tensor, target: Tensor, target_weight: Tensor, meets: list[Tensor], scale: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Soft cross-entropy of several unrolled steps that meet the same targets: (scalar, sums [T], hits by step).

    xs[j] [N_j, H] are the rows of step j, meets[j] [N_j] ascending indices into target [S, H']; weight [V, H],
    target_weight [V, H']. The scalar is Σ_j scale[j]·sums[j]; sums carry no gradient. Each target's distribution is
    computed once for all steps, and only one gradient of `weight` is held.
    """
    sizes = [len(x) for x in xs]
    loss, sums, hits = _UnrolledLoss.apply(torch.cat(xs), weight, target, target_weight, meets, scale)
    return loss, sums, list(hits.split(sizes))


class _HardLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        grads = _Gradients(ctx, x, weight)
        total, hits = x.new_zeros((), dtype=torch.float32), torch.zeros_like(labels, dtype=torch.bool)
        for part in _chunks(len(x), len(weight)):
            logits = F.linear(x[part], weight).float()
            log_q = logits.log_softmax(-1)
            total -= log_q.gather(1, labels[part, None]).sum()
            hits[part] = logits.argmax(-1) == labels[part]
            if grads.wanted:
                q = log_q.exp_()
                q[torch.arange(len(q), device=q.device), labels[part]] -= 1
                grads.add(part, q)
        grads.save(ctx)
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _hits: Any) -> tuple:
        return (*_Gradients.scaled(ctx, grad), None)


class _SoftLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, target_weight: Tensor, kind: str) -> tuple:
        grads = _Gradients(ctx, x, weight)
        total = x.new_zeros((), dtype=torch.float32)
        hits = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for part in _chunks(len(x), len(weight)):
            log_q = F.linear(x[part], weight).float().log_softmax(-1)
            log_p = F.linear(target[part], target_weight).float().log_softmax(-1)
            hits[part] = log_q.argmax(-1) == log_p.argmax(-1)
            loss, d_logits = DISTANCES[kind](log_p, log_q)
            total += loss.sum()
            if grads.wanted:
                grads.add(part, d_logits)
        grads.save(ctx)
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _hits: Any) -> tuple:
        return (*_Gradients.scaled(ctx, grad), None, None, None)


class _UnrolledLoss(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, target: Tensor, target_weight: Tensor, meets: list[Tensor], scale: Tensor
    ) -> tuple:
        grads = _Gradients(ctx, x, weight)
        starts = [0, *torch.tensor([len(m) for m in meets]).cumsum(0).tolist()]
        sums, hits = x.new_zeros(len(meets), dtype=torch.float32), x.new_zeros(len(x), dtype=torch.bool)
        for part in _chunks(len(target), len(weight)):
            log_p = F.linear(target[part], target_weight).float().log_softmax(-1)
            best = log_p.argmax(-1)
            edges = torch.tensor([part.start, part.stop], device=x.device)
            for j, indices in enumerate(meets):
                first, last = torch.searchsorted(indices, edges).tolist()
                own, rows = indices[first:last] - part.start, slice(starts[j] + first, starts[j] + last)
                log_q = F.linear(x[rows], weight).float().log_softmax(-1)
                hits[rows] = log_q.argmax(-1) == best[own]
                distance, d_logits = _soft_ce(log_p[own], log_q)
                sums[j] += distance.sum()
                if grads.wanted:
                    grads.add(rows, d_logits * scale[j])
        grads.save(ctx)
        ctx.mark_non_differentiable(sums, hits)
        return (sums * scale).sum(), sums, hits

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _sums: Any, _hits: Any) -> tuple:
        return (*_Gradients.scaled(ctx, grad), None, None, None, None)


def _soft_ce(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """−Σ p log q; its derivative by the logits of q is q − p."""
    p = log_p.exp()
    return -(p * log_q).sum(-1), log_q.exp() - p


def _kl(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Σ p (log p − log q); the entropy of p has no gradient, so the derivative is q − p again."""
    p = log_p.exp()
    return (p * (log_p - log_q)).sum(-1), log_q.exp() - p


def _reverse_kl(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """K = Σ q (log q − log p); its derivative by the logits of q is q (log q − log p − K)."""
    q, difference = log_q.exp(), log_q - log_p
    loss = (q * difference).sum(-1)
    return loss, q * (difference - loss[:, None])


DISTANCES = {"ce": _soft_ce, "kl": _kl, "reverse_kl": _reverse_kl}


class _Gradients:
    """Gradients of the sum by x and, where it learns, by weight; filled chunk by chunk."""

    def __init__(self, ctx: Any, x: Tensor, weight: Tensor):
        by_x, by_weight = ctx.needs_input_grad[:2]
        self.wanted = by_x or by_weight
        self.x, self.weight = x, weight
        self.by_x = torch.empty_like(x) if by_x else None
        self.by_weight = torch.zeros_like(weight) if by_weight else None

    def add(self, part: slice, d_logits: Tensor) -> None:
        if self.by_x is not None:
            self.by_x[part] = d_logits.to(self.weight.dtype) @ self.weight
        if self.by_weight is not None:
            self.by_weight += d_logits.to(self.weight.dtype).T @ self.x[part].to(self.weight.dtype)

    def save(self, ctx: Any) -> None:
        ctx.save_for_backward(self.by_x, self.by_weight)

    @staticmethod
    def scaled(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return tuple(None if kept is None else kept * grad.to(kept.dtype) for kept in ctx.saved_tensors)


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    size = max(CHUNK_FLOATS // max(vocabulary, 1), 16)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]

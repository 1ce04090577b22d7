"""Losses over large vocabularies, computed some rows at a time: memory stays at one chunk of logits, not rows × V.

All functions give sums over rows; whoever calls divides by the global token count. The gradient is computed together
with the loss, while the chunk's logits are at hand, so nothing of size V × rows is kept for the backward pass; it is
scaled in place there, and so can be taken once. A hit is a row whose best token is the wanted one, ties included.

With z the logits and q = softmax(z), log Σ exp z = max z − log max q: one pass for q and two for maxima, where
log-softmax and its exponential would be four.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

CHUNK_FLOATS = 6 << 20
"""Logits at once. 24 MiB of fp32 stays below the size from which glibc maps fresh, zeroed pages for each buffer: on a
processor larger chunks made every elementwise pass three times as slow."""


def hard_loss(x: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of logits x·weightᵀ against labels, summed: (scalar, hits bool [N]).

    x [N, H], weight [V, H], labels [N] in 0…V-1.
    """
    return _HardLoss.apply(x, weight, labels)


def soft_loss(x: Tensor, weight: Tensor, target: Tensor, target_weight: Tensor, kind: str = "ce") -> tuple:
    """Distance of q = softmax(x·weightᵀ) from p = softmax(target·target_weightᵀ), summed: (scalar, hits bool [N]).

    x [N, H], weight [V, H]; target [N, H'], target_weight [V, H'] give p and take no gradient.
    kind: ce −Σ p log q; kl Σ p (log p − log q); reverse_kl Σ q (log q − log p). A hit: the best token of p.
    """
    return _SoftLoss.apply(x, weight, target, target_weight, kind)


def unrolled_loss(
    xs: list[Tensor], weight: Tensor, target: Tensor, target_weight: Tensor, meets: list[Tensor], scale: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Soft cross-entropy of several unrolled steps that meet the same targets: (scalar, sums [T], hits by step).

    xs[j] [N_j, H] are the rows of step j, meets[j] [N_j] ascending indices into target [S, H']; weight [V, H],
    target_weight [V, H']. The scalar is Σ_j scale[j]·sums[j]; sums carry no gradient. Each target's distribution is
    computed once for all steps, and only one gradient of `weight` is held. Products are in the precision of `weight`.
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
            logits, wanted = _logits(x[part], weight), labels[part, None]
            own, best = logits.gather(1, wanted)[:, 0], logits.amax(-1)
            hits[part] = own == best
            q = logits.softmax(-1)
            total += (_log_sum(best, q) - own).sum()
            if grads.wanted:
                grads.add(part, q.scatter_add_(1, wanted, q.new_full((1, 1), -1.0).expand_as(wanted)))
        grads.save()
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
            logits, wanted = _logits(x[part], weight), _logits(target[part], target_weight)
            hits[part] = _is_best(logits, wanted.argmax(-1))
            loss, d_logits = DISTANCES[kind](logits, wanted)
            total += loss.sum()
            if grads.wanted:
                grads.add(part, d_logits)
        grads.save()
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
            wanted = _logits(target[part], target_weight)
            p, best = wanted.softmax(-1), wanted.argmax(-1)
            edges = torch.tensor([part.start, part.stop], device=x.device)
            for j, indices in enumerate(meets):
                first, last = torch.searchsorted(indices, edges).tolist()
                own, rows = indices[first:last] - part.start, slice(starts[j] + first, starts[j] + last)
                logits = _logits(x[rows], weight)
                hits[rows] = _is_best(logits, best[own])
                distance, d_logits = _to_distribution(logits, _rows(p, own))
                sums[j] += distance.sum()
                if grads.wanted:
                    grads.add(rows, d_logits, scale[j])
        grads.save()
        ctx.mark_non_differentiable(sums, hits)
        return (sums * scale).sum(), sums, hits

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _sums: Any, _hits: Any) -> tuple:
        return (*_Gradients.scaled(ctx, grad), None, None, None, None)


def _logits(x: Tensor, weight: Tensor) -> Tensor:
    """x·weightᵀ in fp32, multiplied in the precision of `weight`."""
    return F.linear(x.to(weight.dtype), weight).float()


def _log_sum(best: Tensor, q: Tensor) -> Tensor:
    """log Σ exp of logits whose maximum is `best` and softmax is `q`."""
    return best - q.amax(-1).log()


def _is_best(logits: Tensor, ids: Tensor) -> Tensor:
    """bool [N]: no logit of the row exceeds that of its id."""
    return logits.gather(1, ids[:, None])[:, 0] == logits.amax(-1)


def _rows(p: Tensor, own: Tensor) -> Tensor:
    """p[own] for ascending `own`, without a copy where it is a run."""
    if not len(own):
        return p[:0]
    first, last = int(own[0]), int(own[-1])
    return p[first : last + 1] if last - first + 1 == len(own) else p[own]


def _to_distribution(logits: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """−Σ p log q [N], as log Σ exp z − Σ p z; its derivative by the logits z is q − p."""
    q = logits.softmax(-1)
    loss = _log_sum(logits.amax(-1), q) - (p * logits).sum(-1)
    return loss, q.sub_(p)


def _soft_ce(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """−Σ p log q for p = softmax(wanted)."""
    return _to_distribution(logits, wanted.softmax(-1))


def _kl(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Σ p (log p − log q); the entropy of p has no gradient, so the derivative is q − p again."""
    log_p, log_q = wanted.log_softmax(-1), logits.log_softmax(-1)
    p = log_p.exp()
    return (p * (log_p - log_q)).sum(-1), log_q.exp_().sub_(p)


def _reverse_kl(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """K = Σ q (log q − log p); its derivative by the logits of q is q (log q − log p − K)."""
    log_q = logits.log_softmax(-1)
    difference = log_q - wanted.log_softmax(-1)
    q = log_q.exp_()
    loss = (q * difference).sum(-1)
    return loss, q.mul_(difference.sub_(loss[:, None]))


DISTANCES = {"ce": _soft_ce, "kl": _kl, "reverse_kl": _reverse_kl}


class _Gradients:
    """Gradients of the sum by x and, where it learns, by weight; filled chunk by chunk."""

    def __init__(self, ctx: Any, x: Tensor, weight: Tensor):
        by_x, by_weight = ctx.needs_input_grad[:2]
        self.wanted = by_x or by_weight
        self.ctx, self.x, self.weight = ctx, x, weight
        self.by_x = torch.empty_like(x) if by_x else None
        self.by_weight = torch.zeros_like(weight) if by_weight else None

    def add(self, part: slice, d_logits: Tensor, scale: Tensor | float = 1.0) -> None:
        """Take `scale` times the derivative `d_logits` [n, V] of rows `part` into account."""
        d_logits = d_logits.to(self.weight.dtype)
        if self.by_x is not None:
            self.by_x[part] = (d_logits @ self.weight) * scale
        if self.by_weight is not None:
            self.by_weight.addmm_(d_logits.T, (self.x[part] * scale).to(self.weight.dtype))

    def save(self) -> None:
        """Keep them on ctx itself: a second reference, as saved tensors hold, would make autograd copy them."""
        self.ctx.kept = (self.by_x, self.by_weight)

    @staticmethod
    def scaled(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if ctx.kept is None:
            raise RuntimeError("the gradient of a chunked loss can be taken once; compute the loss again.")
        kept, ctx.kept = ctx.kept, None
        return tuple(None if part is None else part.mul_(grad.to(part.dtype)) for part in kept)


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    size = max(CHUNK_FLOATS // max(vocabulary, 1), 16)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]

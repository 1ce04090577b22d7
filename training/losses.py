"""Losses over large vocabularies, computed some rows at a time: memory stays at one chunk of logits, not rows × V.

All functions give sums over rows; whoever calls divides by the global token count. The gradient is computed together
with the loss, while the chunk's logits are at hand, so nothing of size V × rows is kept for the backward pass; it is
scaled in place there, and so can be taken once. A hit is a row whose best token is the wanted one, ties included.

With z the logits and q = softmax(z), log Σ exp z = max z − log max q: one pass for q and two for maxima, where
log-softmax and its exponential would be four. Derivatives take the place of the logits they are made from.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from runtime.argmax import argmax
from runtime.linear import product

CHUNK_FLOATS = 12 << 20
"""Logits at once. Fewer rows make the products less efficient."""
BLOCK_FLOATS = 3 << 19
"""Logits that a processor works on between two products, so that they stay in its cache."""


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
        grads, logits_of = _Gradients(ctx, x, weight), _Logits(x, weight)
        total, hits = x.new_zeros((), dtype=torch.float32), torch.zeros_like(labels, dtype=torch.bool)
        for part in _chunks(len(x), len(weight)):
            logits = logits_of(part)
            hits[part] = _is_best(logits, labels[part])
            total += _in_blocks(_to_labels, logits, labels[part]).sum()
            if grads.wanted:
                grads.add(part, logits)
        grads.save()
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _hits: Any) -> tuple:
        return (*_Gradients.scaled(ctx, grad), None)


class _SoftLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, target_weight: Tensor, kind: str) -> tuple:
        grads, logits_of, wanted_of = _Gradients(ctx, x, weight), _Logits(x, weight), _Logits(target, target_weight)
        total = x.new_zeros((), dtype=torch.float32)
        hits = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for part in _chunks(len(x), len(weight)):
            logits, wanted = logits_of(part), wanted_of(part)
            hits[part] = _is_best(logits, argmax(wanted))
            total += _in_blocks(DISTANCES[kind], logits, wanted).sum()
            if grads.wanted:
                grads.add(part, logits)
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
        grads, logits_of, wanted_of = _Gradients(ctx, x, weight), _Logits(x, weight), _Logits(target, target_weight)
        starts = [0, *torch.tensor([len(m) for m in meets]).cumsum(0).tolist()]
        sums, hits = x.new_zeros(len(meets), dtype=torch.float32), x.new_zeros(len(x), dtype=torch.bool)
        for part in _chunks(len(target), len(weight)):
            wanted = wanted_of(part)
            best, p = argmax(wanted), torch.softmax(wanted, -1, out=wanted)
            edges = torch.tensor([part.start, part.stop], device=x.device)
            for j, indices in enumerate(meets):
                first, last = torch.searchsorted(indices, edges).tolist()
                own, rows = indices[first:last] - part.start, slice(starts[j] + first, starts[j] + last)
                logits = logits_of(rows)
                hits[rows] = _is_best(logits, best[own])
                sums[j] += _in_blocks(_to_distribution, logits, p, own).sum()
                if grads.wanted:
                    grads.add(rows, logits, scale[j])
        grads.save()
        ctx.mark_non_differentiable(sums, hits)
        return (sums * scale).sum(), sums, hits

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _sums: Any, _hits: Any) -> tuple:
        return (*_Gradients.scaled(ctx, grad), None, None, None, None)


class _Logits:
    """Some rows of x·weightᵀ in fp32, multiplied in the precision of `weight`; those of a call before may be gone.

    Products in half precision are copied to one buffer: fresh memory of this size is mapped page by page, which on a
    processor made every pass over it three times as slow. In fp32 the faster product weighs more than that.
    """

    def __init__(self, x: Tensor, weight: Tensor):
        self.x, self.weight = x, weight
        self.direct = weight.dtype == torch.float32 and not torch.is_autocast_enabled(weight.device.type)
        rows = 0 if self.direct else min(_chunk_rows(len(weight)), len(x))
        self.buffer = torch.empty(rows, len(weight), device=weight.device)

    def __call__(self, part: slice) -> Tensor:
        x = self.x[part].to(self.weight.dtype)
        return product(x, self.weight) if self.direct else self.buffer[: len(x)].copy_(F.linear(x, self.weight))


def _in_blocks(
    distance: Callable[[Tensor, Tensor], Tensor], logits: Tensor, wanted: Tensor, rows: Tensor | None = None
) -> Tensor:
    """`distance` [N] of logits [N, V] to `wanted`, or to its `rows` [N], some rows at a time.

    A distance leaves in place of the logits the derivative by them.
    """
    size = len(logits) if logits.is_cuda else max(BLOCK_FLOATS // logits.shape[1], 1)
    found = [logits.new_zeros(0)]
    for start in range(0, len(logits), max(size, 1)):
        part = slice(start, start + size)
        found.append(distance(logits[part], wanted[part] if rows is None else wanted[rows[part]]))
    return torch.cat(found)


def _log_sum(best: Tensor, q: Tensor) -> Tensor:
    """log Σ exp of logits whose maximum is `best` and softmax is `q`."""
    return best - q.amax(-1).log()


def _is_best(logits: Tensor, ids: Tensor) -> Tensor:
    """bool [N]: no logit of the row exceeds that of its id."""
    return logits.gather(1, ids[:, None])[:, 0] == logits.amax(-1)


def _to_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """−log q[label]; its derivative by the logits is q, less one at the label."""
    best, own = logits.amax(-1), logits.gather(1, labels[:, None])[:, 0]
    q = torch.softmax(logits, -1, out=logits)
    loss = _log_sum(best, q) - own
    q.scatter_add_(1, labels[:, None], q.new_full((len(q), 1), -1.0))
    return loss


def _to_distribution(logits: Tensor, p: Tensor) -> Tensor:
    """−Σ p log q, as log Σ exp z − Σ p z; its derivative by the logits z is q − p."""
    best, product = logits.amax(-1), torch.linalg.vecdot(p, logits)
    q = torch.softmax(logits, -1, out=logits)
    loss = _log_sum(best, q) - product
    q.sub_(p)
    return loss


def _soft_ce(logits: Tensor, wanted: Tensor) -> Tensor:
    """−Σ p log q for p = softmax(wanted)."""
    return _to_distribution(logits, wanted.softmax(-1))


def _kl(logits: Tensor, wanted: Tensor) -> Tensor:
    """Σ p (log p − log q); the entropy of p has no gradient, so the derivative is q − p again."""
    log_p, log_q = wanted.log_softmax(-1), logits.log_softmax(-1)
    p = log_p.exp()
    torch.sub(log_q.exp(), p, out=logits)
    return (p * (log_p - log_q)).sum(-1)


def _reverse_kl(logits: Tensor, wanted: Tensor) -> Tensor:
    """K = Σ q (log q − log p); its derivative by the logits of q is q (log q − log p − K)."""
    log_q = logits.log_softmax(-1)
    difference = log_q - wanted.log_softmax(-1)
    q = log_q.exp()
    loss = (q * difference).sum(-1)
    torch.mul(q, difference - loss[:, None], out=logits)
    return loss


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
            self.by_x[part] = product(d_logits, self.weight.T) * scale
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


def _chunk_rows(vocabulary: int) -> int:
    return max(CHUNK_FLOATS // max(vocabulary, 1), 16)


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    size = _chunk_rows(vocabulary)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]

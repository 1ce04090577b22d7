"""Losses over large vocabularies, computed in chunks of rows: memory is bounded by one chunk of logits, not rows × V.

All functions return sums over rows; the caller divides by the global token count. The gradient is computed in the
forward pass, together with each chunk's logits, so nothing of size V × rows is stored for backward, which scales the
gradient in place and can run only once. A hit is a row whose top token is the target, ties included.

With z the logits and q = softmax(z), log Σ exp z = max z − log max q: one pass for q and two for maxima, where
log-softmax and its exponential would need four. Derivatives overwrite the logits they are computed from.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from models.logits import Head, apply_logit_rule_, logit_rule_derivative
from models.methods.record import LOSS_CHUNK_FLOATS
from models.runtime.argmax import argmax
from models.runtime.linear import product

BLOCK_FLOATS = 3 << 19  # logits per block on a CPU, so that they stay in its cache between two matrix products


def hard_loss(x: Tensor, head: Head, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cross-entropy of head(x) [N, V] against labels [N], summed: (scalar, hits bool [N]); x [N, H]. `weights` [N] of
    the rows, without gradient."""
    chunks = _chunks(len(x), head.weight)
    parts = (
        _Part(0, rows, labels[rows], _label_loss, labels[rows], weigh=_weights_of(weights, rows)) for rows in chunks
    )
    loss, _, hits = _ChunkedLoss.apply(x, head.weight, head.bias, head, parts, torch.ones(1, device=x.device))
    return loss, hits


def soft_loss(x: Tensor, head: Head, target: Tensor, target_head: Head, kind: str = "ce") -> tuple[Tensor, Tensor]:
    """Distance of q = softmax(head(x)) from p = softmax(target_head(target)), summed: (scalar, hits bool [N]). x [N,
    H], the head's weight [V, H]; target [N, H'], target_head's weight [V, H'] give p and take no gradient. kind: ce −Σ
    p log q; kl Σ p (log p − log q); reverse_kl Σ q (log q − log p); tv Σ |p − q| / 2. A hit: the top token of p."""

    def parts() -> Iterator[_Part]:
        teacher_of = _Logits(target, target_head)
        for rows in _chunks(len(x), head.weight):
            teacher = teacher_of(rows)
            yield _Part(0, rows, argmax(teacher), DISTANCES[kind], teacher)

    loss, _, hits = _ChunkedLoss.apply(x, head.weight, head.bias, head, parts(), torch.ones(1, device=x.device))
    return loss, hits


def unrolled_loss(
    x: Tensor,
    head: Head,
    target: Tensor,
    target_head: Head,
    target_indices: list[Tensor],
    scale: Tensor,
    kind: str = "ce",
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """A distance of several unrolled steps: (scalar Σ_j scale[j]·loss_sums[j], loss_sums [T] without gradient, hits by
    step). x [Σ N_j, H] holds the rows of one step after the other, target_indices[j] [N_j] ascending indices into the
    shared targets [S, H'], whose logits are computed once; weights of head [V, H], target_head [V, H']. `kind` as in
    `soft_loss`. `weights` [Σ N_j] of the rows, without gradient."""
    counts = [len(indices) for indices in target_indices]
    starts = [0, *accumulate(counts)]

    def parts() -> Iterator[_Part]:
        teacher_of = _Logits(target, target_head)
        for part in _chunks(len(target), head.weight):
            teacher = teacher_of(part)
            top_ids, distance = argmax(teacher), DISTANCES[kind]
            if kind == "ce":  # one softmax for all steps
                torch.softmax(teacher, -1, out=teacher)
                distance = _distribution_loss
            chunk_bounds = torch.tensor([part.start, part.stop], device=target.device)
            for j, indices in enumerate(target_indices):
                first, last = torch.searchsorted(indices, chunk_bounds).tolist()
                target_rows, rows = indices[first:last] - part.start, slice(starts[j] + first, starts[j] + last)
                weigh = _weights_of(weights, rows)
                yield _Part(j, rows, top_ids[target_rows], distance, teacher, target_rows, weigh)

    loss, loss_sums, hits = _ChunkedLoss.apply(x, head.weight, head.bias, head, parts(), scale)
    return loss, loss_sums, list(hits.split(counts))


@torch.no_grad()
def label_losses(x: Tensor, head: Head, labels: Tensor) -> Tensor:
    """−log q[label] of each row [N], without gradient; infinite for labels of −100. x [N, H], labels [N]."""
    logits_of, losses = _Logits(x, head), x.new_full((len(x),), torch.inf, dtype=torch.float32)
    for rows in _chunks(len(x), head.weight):
        losses[rows] = _in_blocks(_label_loss, logits_of(rows), labels[rows].clamp(min=0))
    return losses.masked_fill_(labels < 0, torch.inf)


@torch.no_grad()
def dpace_weights(losses: Tensor, counted: Tensor, alpha: float) -> Tensor:
    """Weights [N, D] of the positions of drafts with the cross-entropies `losses` [N, D] (D-PACE, arXiv:2605.18810):
    the gradient of the expected accepted length. With the confidence c_j = (1 − α) exp(−loss_j) + α, the weight of
    position j is Σ_{m ≥ j} c_1 ⋯ c_m. Positions that are not `counted` (bool [N, D]) are left out: c = 1, weight 0."""
    confidence = torch.where(counted, (1 - alpha) * torch.exp(-losses) + alpha, 1.0)
    reached = confidence.cumprod(1) * counted
    return reached.flip(1).cumsum(1).flip(1) * counted


def _weights_of(weights: Tensor | None, rows: slice) -> Callable[[Tensor], Tensor] | None:
    """`weigh` of a part with these `weights` of all rows."""
    return None if weights is None else lambda _losses: weights[rows]


def block_loss(
    x: Tensor,
    head: Head,
    labels: Tensor,
    weigh: Callable[[Tensor, Tensor], Tensor],
    scale: Tensor,
    kind: str = "ce",
    targets: tuple[Tensor, Head, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted loss of blocks of K positions: (scalar scale[0]·loss_sums[0], loss_sums [1] without gradient, hits bool
    [N, K]). x [N, K, H]; labels [N, K], −100 for positions that do not count. kind: ce against the labels, else as in
    `soft_loss`, against the distributions of `targets`: hidden states [S, H'], their head, and the index [N, K] of each
    position's. `weigh(losses, counted)`, both [n, K], gives the weights of a few blocks, without gradient. A hit: the
    label."""
    size = labels.shape[1]

    def parts() -> Iterator[_Part]:
        teacher_of = _Logits(*targets[:2]) if targets else None
        for blocks in _chunks(len(labels), head.weight, size):
            counted, rows = labels[blocks] >= 0, slice(blocks.start * size, blocks.stop * size)
            ids = labels[blocks].clamp(min=0).flatten()
            weights = partial(_block_weights, weigh, counted)
            if teacher_of is None:
                yield _Part(0, rows, ids, _label_loss, ids, None, weights)
            else:
                needed, target_rows = targets[2][blocks].unique(return_inverse=True)
                yield _Part(0, rows, ids, DISTANCES[kind], teacher_of(needed), target_rows.flatten(), weights)

    loss, loss_sums, hits = _ChunkedLoss.apply(x.flatten(0, 1), head.weight, head.bias, head, parts(), scale)
    return loss, loss_sums, hits.view(labels.shape) & (labels >= 0)


def _block_weights(weigh: Callable[[Tensor, Tensor], Tensor], counted: Tensor, losses: Tensor) -> Tensor:
    return (weigh(losses.view(counted.shape), counted) * counted).flatten()


class _Part(NamedTuple):
    """Rows of x in one chunk, for loss term `term`: the target's top tokens `top_ids` [n], and the distance of the
    rows' logits to `target`, or to its rows `target_rows`. `weigh` maps the rows' losses to their weights; None: 1."""

    term: int
    rows: slice
    top_ids: Tensor
    distance: Callable[[Tensor, Tensor], Tensor]
    target: Tensor
    target_rows: Tensor | None = None
    weigh: Callable[[Tensor], Tensor] | None = None


class _ChunkedLoss(Function):
    """(Σ_k scale_k · loss_sums_k, loss_sums [K], hits [N]); the second and third without gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, _w: Tensor, _b: Tensor | None, head: Head, parts: Iterator[_Part], scale: Tensor
    ) -> tuple:
        grads, logits_of = _Gradients(ctx, x, head), _Logits(x, head)
        loss_sums, hits = x.new_zeros(len(scale), dtype=torch.float32), x.new_zeros(len(x), dtype=torch.bool)
        for part in parts:
            logits = logits_of(part.rows)
            rule_slope = logit_rule_derivative(logits, head.rule)
            hits[part.rows] = _is_argmax(logits, part.top_ids)
            losses, row_scale = _in_blocks(part.distance, logits, part.target, part.target_rows), scale[part.term]
            if part.weigh is not None:
                weights = part.weigh(losses)
                losses, row_scale = losses * weights, row_scale * weights[:, None]
            loss_sums[part.term] += losses.sum()
            if grads.needed:
                grads.add(part.rows, logits, rule_slope, row_scale)
        ctx.gradients = (grads.x_grad, grads.weight_grad, grads.bias_grad)  # save_for_backward would copy them
        ctx.mark_non_differentiable(loss_sums, hits)
        return (loss_sums * scale).sum(), loss_sums, hits

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _loss_sums: Any, _hits: Any) -> tuple:
        return (*_Gradients.scaled(ctx, grad), None, None, None)


class _Logits:
    """Chunks of head(x) in fp32, multiplied in the dtype of its weight; each call may overwrite the previous result.
    Half-precision products are copied to one buffer: newly allocated memory of this size is mapped page by page, which
    on a CPU made every pass over it three times as slow. In fp32 the direct product is faster."""

    def __init__(self, x: Tensor, head: Head):
        self.x, self.head, self.weight = x, head, (weight := head.weight)
        self.unbuffered = weight.dtype == torch.float32 and not torch.is_autocast_enabled(weight.device.type)
        rows = 0 if self.unbuffered else min(_chunk_rows(weight), len(x))
        self.buffer = torch.empty(rows, len(weight), device=weight.device)

    def __call__(self, part: slice | Tensor) -> Tensor:
        x = self.x[part].to(self.weight.dtype)
        if not self.unbuffered and len(x) > len(self.buffer):  # one block can have more rows than a chunk
            self.buffer = self.buffer.new_empty(len(x), len(self.weight))
        logits = product(x, self.weight) if self.unbuffered else self.buffer[: len(x)].copy_(F.linear(x, self.weight))
        return apply_logit_rule_(logits if self.head.bias is None else logits.add_(self.head.bias), self.head.rule)


def _in_blocks(
    distance: Callable[[Tensor, Tensor], Tensor], logits: Tensor, teacher: Tensor, rows: Tensor | None = None
) -> Tensor:
    """`distance` [N] of logits [N, V] to `teacher`, or to its `rows` [N], in blocks of rows. A distance function
    overwrites the logits with its derivative by them."""
    size = len(logits) if logits.is_cuda else max(BLOCK_FLOATS // logits.shape[1], 1)
    parts = [logits.new_zeros(0)]
    for start in range(0, len(logits), max(size, 1)):
        part = slice(start, start + size)
        parts.append(distance(logits[part], teacher[part] if rows is None else teacher[rows[part]]))
    return torch.cat(parts)


def _logsumexp(max_logits: Tensor, q: Tensor) -> Tensor:
    """log Σ exp of logits whose maximum is `max_logits` and softmax is `q`."""
    return max_logits - q.amax(-1).log()


def _is_argmax(logits: Tensor, ids: Tensor) -> Tensor:
    """bool [N]: the id has the row's largest logit."""
    return logits.gather(1, ids[:, None])[:, 0] == logits.amax(-1)


def _label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """−log q[label]; its derivative with respect to the logits is q − onehot(label)."""
    max_logits, label_logits = logits.amax(-1), logits.gather(1, labels[:, None])[:, 0]
    q = torch.softmax(logits, -1, out=logits)
    loss = _logsumexp(max_logits, q) - label_logits
    q.scatter_add_(1, labels[:, None], q.new_full((len(q), 1), -1.0))
    return loss


def _distribution_loss(logits: Tensor, p: Tensor) -> Tensor:
    """−Σ p log q, as log Σ exp z − Σ p z; its derivative with respect to the logits z is q − p."""
    max_logits, product = logits.amax(-1), torch.linalg.vecdot(p, logits)
    q = torch.softmax(logits, -1, out=logits)
    loss = _logsumexp(max_logits, q) - product
    q.sub_(p)
    return loss


def _kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """Σ p (log p − log q); the entropy of p has no gradient, so the derivative is q − p again."""
    log_p, log_q = teacher.log_softmax(-1), logits.log_softmax(-1)
    p = log_p.exp()
    torch.sub(log_q.exp(), p, out=logits)
    return (p * (log_p - log_q)).sum(-1)


def _reverse_kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """K = Σ q (log q − log p); its derivative with respect to the logits of q is q (log q − log p − K)."""
    log_q = logits.log_softmax(-1)
    difference = log_q - teacher.log_softmax(-1)
    q = log_q.exp()
    loss = (q * difference).sum(-1)
    torch.mul(q, difference - loss[:, None], out=logits)
    return loss


def _total_variation(logits: Tensor, teacher: Tensor) -> Tensor:
    """Σ |p − q| / 2 = Σ_{q > p} (q − p), the probability that a sampled draft token is rejected; its derivative with
    respect to the logits of q is q (1[q > p] − Σ_{q > p} q)."""
    p, q = teacher.softmax(-1), torch.softmax(logits, -1, out=logits)
    above = (q > p).to(q.dtype)
    loss = p.sub_(q).clamp_(max=0).sum(-1).neg_()
    q.mul_(above.sub_(torch.linalg.vecdot(q, above)[:, None]))
    return loss


DISTANCES = {
    "ce": lambda logits, teacher: _distribution_loss(logits, teacher.softmax(-1)),
    "kl": _kl,
    "reverse_kl": _reverse_kl,
    "tv": _total_variation,
}


class _Gradients:
    """Gradients of the sum with respect to x and, if trainable, weight and bias; accumulated chunk by chunk."""

    def __init__(self, ctx: Any, x: Tensor, head: Head):
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        self.needed = for_x or for_weight or for_bias
        self.ctx, self.x, self.weight = ctx, x, head.weight
        self.x_grad = torch.empty_like(x) if for_x else None
        self.weight_grad = torch.zeros_like(head.weight) if for_weight else None
        self.bias_grad = torch.zeros_like(head.bias) if for_bias else None

    def add(self, part: slice, d_logits: Tensor, rule_slope: Tensor | float, scale: Tensor | float = 1.0) -> None:
        """Accumulate `scale` · `d_logits` [n, V] (overwritten) of rows `part`; `rule_slope`: of the logit rule;
        `scale`: of all rows, or [n, 1]."""
        if isinstance(rule_slope, Tensor):
            d_logits = d_logits.mul_(rule_slope)
        elif rule_slope != 1.0:
            scale = scale * rule_slope
        d_logits = d_logits.to(self.weight.dtype)
        if self.x_grad is not None:
            self.x_grad[part] = product(d_logits, self.weight.T) * scale
        if self.weight_grad is not None:
            self.weight_grad.addmm_(d_logits.T, (self.x[part] * scale).to(self.weight.dtype))
        if self.bias_grad is not None:
            of_rows = isinstance(scale, Tensor) and scale.dim() == 2
            self.bias_grad.add_((d_logits * scale).sum(0) if of_rows else d_logits.sum(0).mul_(scale))

    @staticmethod
    def scaled(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradient of a chunked loss can be taken once; compute the loss again.")
        gradients, ctx.gradients = ctx.gradients, None
        return tuple(None if part is None else part.mul_(grad.to(part.dtype)) for part in gradients)


def _chunk_rows(weight: Tensor) -> int:
    """Rows per chunk of a head with this weight [V, H]."""
    return max(LOSS_CHUNK_FLOATS["cuda" if weight.is_cuda else "cpu"] // max(len(weight), 1), 16)


def _chunks(rows: int, weight: Tensor, each: int = 1) -> list[slice]:
    """Slices of `rows` things that have `each` rows of logits."""
    size = max(_chunk_rows(weight) // each, 1)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]

"""Attention of training-time test, with memory linear in the length.

Queries are processed in chunks. The scores of a chunk exist only while it is computed; the backward computes them again
from queries, keys and the log-sum-exp of each query's scores, as FlashAttention does (Dao et al. 2022). The own keys of
later steps are merged through that log-sum-exp. CPUs and GPUs run the same code."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

CHUNK = 64  # queries per chunk; measured on a CPU: 16 to 128 differ little
CUDA_SCORES = 1 << 27  # scores per chunk on a GPU, 512 MB in fp32, if that makes larger chunks


class ChainBackend:
    """Training-time test (Li et al. 2025, EAGLE-3): step 0 is causal; at step j position t attends to the step-0 keys
    of positions 0…t and to its own keys of steps 1…j, exactly like a chain drafted from t. Example, t = 2 at step 2:
    keys k0[0], k0[1], k0[2], k1[2], k2[2] at positions 0, 1, 2, 3, 4. `index` [B, m]: positions of the queries, in
    order; None: all. Later steps hold only those. Smaller positions at the end of a row are padding, whose output has
    no meaning."""

    def __init__(self, index: Tensor | None = None) -> None:
        self._index = None if index is None else index.cummax(1).values
        self._chunks: list[Chunk] = []
        self._steps: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, h, m, d]; k, v [B, k, n, d] at step 0, [B, k, m, d] later → [B, h, m, d]."""
        steps = self._steps.setdefault(layer, [])
        steps.append((k.to(v.dtype), v))  # autocast casts products only, and k is rotated in fp32
        self._chunks = self._chunks or query_chunks(q, k.shape[2], self._index)
        keys, values = zip(*steps, strict=True)
        return ChainAttention.apply(q.to(v.dtype), self._chunks, *keys, *values)


class Chunk(NamedTuple):
    """All `queries` attend to the keys up to `start`, none to those from `end`; `positions` [B or 1, 1, 1, c, 1]."""

    queries: slice
    start: int
    end: int
    positions: Tensor


def query_chunks(q: Tensor, keys: int, index: Tensor | None) -> list[Chunk]:
    """Chunks of the queries q [B, h, m, d] at positions `index` [B, m], ascending (None: 0 … m - 1), over `keys` step-0
    keys."""
    rows, heads, count, _ = q.shape
    size = max(CHUNK, CUDA_SCORES // (rows * heads * keys)) if q.is_cuda else CHUNK
    firsts = list(range(0, count, size))
    lasts = [min(first + size, count) - 1 for first in firsts]
    if index is None:
        positions, bounds = torch.arange(count, device=q.device)[None], [firsts, lasts]
    else:
        positions, bounds = index, torch.stack([index[:, firsts].amin(0), index[:, lasts].amax(0)]).tolist()
    queries = [slice(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]
    return [
        Chunk(part, low, high + 1, positions[:, None, None, part, None])
        for part, low, high in zip(queries, *bounds, strict=True)
    ]


class ChainAttention(Function):
    """Attention of `q` [B, h, m, d] to keys and values `kv` = (k0, k1, …, v0, v1, …): those of step 0 [B, k, n, d] up
    to the query's position, and its own of later steps, each [B, k, m, d]. Query heads are grouped by key head, so that
    keys are not repeated: q [B, k, g, m, d], scores of a chunk of c queries [B, k, g · c, keys]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, chunks: list[Chunk], *kv: Tensor) -> Tensor:
        (k, *own_k), (v, *own_v) = kv[: len(kv) // 2], kv[len(kv) // 2 :]
        grouped = q.unflatten(1, (k.shape[1], -1))
        out = torch.empty_like(q.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
        own = _own_scores(grouped, own_k)
        lse = own.logsumexp(-1)  # −∞ at step 0
        for chunk in chunks:
            scores = _scores(_rows(grouped, chunk), k, chunk)
            top = scores.amax(-1)
            weights = torch.softmax(scores, -1, out=scores)
            first_lse = (top - weights.amax(-1).log()).view_as(lse[..., chunk.queries])
            lse[..., chunk.queries] = total = torch.logaddexp(first_lse, lse[..., chunk.queries])
            values = (weights.to(v.dtype) @ v[:, :, : chunk.end]).view_as(grouped[..., chunk.queries, :])
            values = values * (first_lse - total).exp_()[..., None]
            own_weights = (own[..., chunk.queries, :] - total[..., None]).exp_()
            for i, each in enumerate(own_v):
                values.addcmul_(own_weights[..., i, None], each[:, :, None, chunk.queries])
            out[:, :, chunk.queries] = values.flatten(1, 2)
        ctx.save_for_backward(q, out, lse, own, *kv)
        ctx.chunks = chunks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple:
        """With the weights p = exp(score − lse): dv = pᵀ·do, and ds = p · (do·v − do·out)."""
        q, out, lse, own, *kv = ctx.saved_tensors
        (k, *own_k), (v, *own_v) = kv[: len(kv) // 2], kv[len(kv) // 2 :]
        grouped, scale = q.unflatten(1, (k.shape[1], -1)), q.shape[-1] ** -0.5
        d_out = d_out.unflatten(1, grouped.shape[1:3])
        dot = (d_out * out.view_as(d_out)).sum(-1, dtype=lse.dtype)
        dq, dk, dv = (torch.zeros_like(each, dtype=lse.dtype) for each in (grouped, k, v))
        for chunk in ctx.chunks:
            queries, d_rows, keys = _rows(grouped, chunk), _rows(d_out, chunk), slice(0, chunk.end)
            scores = _scores(queries, k, chunk)
            weights = scores.sub_(_flat(lse, chunk)).exp_()
            d_scores = (d_rows @ v[:, :, keys].transpose(-1, -2)).to(lse.dtype)
            d_scores = d_scores.sub_(_flat(dot, chunk)).mul_(weights).mul_(scale).to(q.dtype)
            dv[:, :, keys] += weights.to(q.dtype).transpose(-1, -2) @ d_rows
            dk[:, :, keys] += d_scores.transpose(-1, -2) @ queries
            dq[..., chunk.queries, :] = (d_scores @ k[:, :, keys]).view_as(dq[..., chunk.queries, :])
        own_weights, own_dk, own_dv = (own - lse[..., None]).exp_(), [], []
        for i, (own_key, own_value) in enumerate(zip(own_k, own_v, strict=True)):
            weight, key = own_weights[..., i, None], own_key[:, :, None]
            d_score = ((d_out * own_value[:, :, None]).sum(-1, dtype=lse.dtype) - dot)[..., None] * weight * scale
            dq.addcmul_(d_score, key)
            own_dk.append((d_score * grouped).sum(2))
            own_dv.append((weight * d_out).sum(2))
        d_kv = (each.to(k.dtype) for each in (dk, *own_dk, dv, *own_dv))
        return dq.flatten(1, 2).to(q.dtype), None, *d_kv


def _rows(grouped: Tensor, chunk: Chunk) -> Tensor:
    """[B, k, g, m, d] → [B, k, g · c, d] of a chunk."""
    return grouped[..., chunk.queries, :].flatten(2, 3)


def _flat(per_query: Tensor, chunk: Chunk) -> Tensor:
    """[B, k, g, m] → [B, k, g · c, 1] of a chunk."""
    return per_query[..., chunk.queries].flatten(2, 3)[..., None]


def _scores(queries: Tensor, k: Tensor, chunk: Chunk) -> Tensor:
    """Scores, fp32 [B, k, g · c, keys], of the step-0 keys."""
    scores = (queries * queries.shape[-1] ** -0.5 @ k[:, :, : chunk.end].transpose(-1, -2)).float()
    later = torch.arange(chunk.start, chunk.end, device=k.device) > chunk.positions
    scores.unflatten(2, (-1, later.shape[-2]))[..., chunk.start :].masked_fill_(later, float("-inf"))
    return scores


def _own_scores(grouped: Tensor, own_k: Sequence[Tensor]) -> Tensor:
    """Scores, fp32 [B, k, g, m, steps], of the own keys of later steps."""
    scores = [(grouped * each[:, :, None]).sum(-1, dtype=torch.float32) for each in own_k]
    empty = grouped.new_zeros(*grouped.shape[:-1], 0, dtype=torch.float32)
    return torch.stack(scores, -1).mul_(grouped.shape[-1] ** -0.5) if scores else empty

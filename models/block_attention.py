"""Attention of DFlash's blocks in training: a block reads the context before its anchor, and itself.

Blocks are processed in chunks, whose scores the backward computes again, so that memory does not grow with blocks times
context. Shapes: N blocks of S tokens, rows of L positions, h heads, k key heads, d head size."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

QUERIES = 512
"""Queries per chunk on a CPU; on a GPU a row's blocks are one chunk up to CUDA_SCORES."""
CUDA_SCORES = 1 << 27


class BlockBackend:
    """A `models.dflash.ContextBackend` for N blocks: block n belongs to the row `row[n]` and reads the positions before
    `anchor[n]`. Both [N], in ascending order of (row, anchor)."""

    def __init__(self, row: Tensor, anchor: Tensor, rows: int):
        self._anchor, self._context = anchor, {}
        self._counts = torch.bincount(row, minlength=rows).tolist()

    def inject(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """See `models.dflash.ContextBackend`; keys, values [rows, k, L, d]."""
        self._context[layer] = keys.to(values.dtype), values  # autocast casts products only, and keys are rotated

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N, h, S, d], k, v [N, k, S, d] → [N, h, S, d]."""
        q, k, (keys, values) = q.to(v.dtype), k.to(v.dtype), self._context[layer]
        out, first = [], 0
        for row, count in enumerate(self._counts):
            last = first + count
            for start in range(first, last, size := self._chunk(q, keys.shape[2])):
                part = slice(start, min(start + size, last))
                own = q[part], k[part], v[part], keys[row], values[row], self._anchor[part]
                needed = torch.is_grad_enabled()
                out.append(checkpoint(_attend, *own, use_reentrant=False) if needed else _attend(*own))
            first = last
        if not out:  # every parameter needs a gradient, if only of zeros: other processes wait for all of them
            return q + sum(x.sum() for x in (k, v, keys, values))
        return torch.cat(out)

    def _chunk(self, q: Tensor, length: int) -> int:
        """Blocks per chunk."""
        _, heads, size, _ = q.shape
        return max(CUDA_SCORES // (heads * size * length) if q.is_cuda else QUERIES // size, 1)


def _attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, anchor: Tensor) -> Tensor:
    """n blocks of a row: q [n, h, S, d], k, v [n, k, S, d]; context keys, values [k, L, d]; anchors [n]. Query heads
    are grouped by key head, so that keys are not repeated."""
    count, heads, size, dim = q.shape
    groups, end = len(keys), int(anchor[-1])
    keys, values = keys[:, :end], values[:, :end]
    grouped = (q * dim**-0.5).reshape(count, groups, -1, dim)  # [n, k, h / k · S, d]
    by_head = grouped.transpose(0, 1).flatten(1, 2)
    context = (by_head @ keys.transpose(1, 2)).unflatten(1, (count, -1)).transpose(0, 1)  # [n, k, h / k · S, L]
    later = torch.arange(end, device=q.device) >= anchor[:, None]
    context = context.float().masked_fill(later[:, None, None], float("-inf"))
    weights = torch.cat([context, (grouped @ k.transpose(2, 3)).float()], -1).softmax(-1).to(v.dtype)
    before, own = weights.split([end, size], -1)
    mixed = before.transpose(0, 1).flatten(1, 2) @ values
    mixed = mixed.unflatten(1, (count, -1)).transpose(0, 1) + own @ v
    return mixed.reshape(count, heads, size, dim)

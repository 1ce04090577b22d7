"""A padded batch through a base without its padding: its rows are laid end to end, and each attends to itself alone.

transformers asks one registered function for the attention of every layer; ours takes the rows one by one, so that
neither products nor attention are spent on padding. For processors: a GPU would rather have one large launch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

NAME = "speculoos_rows"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi", "phi3")
"""Families whose attention is softmax(q·kᵀ·scaling)·v and nothing else; others might ask for what we do not do."""

BLOCK = 128
"""Queries at a time."""
LATER = torch.full((BLOCK, BLOCK), float("-inf")).triu(1)
"""Added to the scores of a block against its own keys: none looks at a later one."""

_lengths: ContextVar[list[int]] = ContextVar("lengths of the rows in the forward that is running")


def attend_by_row(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [1, heads, N, D], key and value [1, kv heads, N, D], N the rows' lengths together → [1, N, heads, D]."""
    out = query.new_empty(query.shape[2], query.shape[1], value.shape[3])
    parts = (tensor[0].split(_lengths.get(), 1) for tensor in (query, key, value))
    for q, k, v, place in zip(*parts, out.split(_lengths.get()), strict=True):
        attend_causally(q, k, v, scaling or q.shape[-1] ** -0.5, place)
    return out[None], None


def attend_causally(q: Tensor, k: Tensor, v: Tensor, scaling: float, out: Tensor) -> None:
    """q [heads, n, D] over k, v [kv heads, n, D], into out [n, heads, D].

    BLOCK queries at a time look only as far as the last of them may, and the heads that share keys are one product:
    0.6 of the time of torch's attention for rows of 256 in bfloat16, which computes all of them.
    """
    (heads, length, size), groups = q.shape, len(k)
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        queries = q[:, start:stop].reshape(groups, -1, size)
        scores = torch.bmm(queries, k[:, :stop].transpose(1, 2)).float().mul_(scaling).view(heads, -1, stop)
        scores[:, :, start:] += LATER[: stop - start, : stop - start]
        weights = scores.softmax(-1).to(v.dtype).view(groups, -1, stop)
        out[start:stop] = torch.bmm(weights, v[:, :stop]).view(heads, stop - start, -1).transpose(0, 1)


def can_run(config: Any, device: torch.device, lengths: Tensor) -> bool:
    """Whether a base of this config may run so: on a processor, of a known family, no row beyond a sliding window."""
    if device.type != "cpu" or config.model_type not in FAMILIES:
        return False
    window = getattr(config, "sliding_window", None)
    return window is None or int(lengths.max()) <= window


@contextmanager
def by_row(config: Any, lengths: list[int]) -> Iterator[None]:
    """While open, the model of `config` runs on rows of these lengths laid end to end."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend_by_row)
    before, token = config._attn_implementation, _lengths.set(lengths)
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
        _lengths.reset(token)


def laid_out(input_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of padded input_ids [B, L]: real [B, L], and the tokens and their positions in their rows, both [1, N]."""
    positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    real = positions < lengths[:, None]
    return real, input_ids[real][None], positions[real][None]


def padded(values: Tensor, real: Tensor) -> Tensor:
    """values [1, N, H] at their places in [B, L, H], zeros elsewhere."""
    out = values.new_zeros(*real.shape, values.shape[-1])
    out[real] = values[0]
    return out

"""The hidden states that a method needs, wherever the base model runs.

A method declares them (`wanted`) and computes features from them (`features(batch, states)`). For a base model in this
process the method runs the forward itself; else see `training.hidden_states.prefetcher`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from training.batches import Batch
from training.hidden_states.wire import HiddenStates, StatesRequest

States = tuple[Tensor, tuple[Tensor, ...]]
"""As returned by `LoadedBase.forward_hidden`: the head's input [B, L, H], and outputs of layers, each [B, L, …]."""


class RequiredStates(NamedTuple):
    """Hidden states that a method needs: outputs of 0-based `layers` at every real token, and the head's input where
    the mask `positions` [B, L] is True (None: at every real token)."""

    layers: tuple[int, ...] = ()
    positions: Tensor | None = None


def make_states_request(batch: Batch, wanted: RequiredStates) -> StatesRequest:
    """The request for a batch, without padding."""
    lengths = batch.lengths.tolist()
    rows = tuple(row[:length].int().cpu() for row, length in zip(batch.input_ids, lengths, strict=True))
    if wanted.positions is None:
        return StatesRequest(rows, wanted.layers)
    positions = (row[:n].nonzero()[:, 0].int().cpu() for row, n in zip(wanted.positions, lengths, strict=True))
    return StatesRequest(rows, wanted.layers, tuple(positions))


def pad_states(states: HiddenStates, batch: Batch, wanted: RequiredStates, base: Any) -> States:
    """The response as padded tensors [B, L, …] in the base's dtype; unrequested positions are zero and never read."""
    real = torch.arange(batch.input_ids.shape[1], device=batch.lengths.device) < batch.lengths[:, None]
    mask = real if wanted.positions is None else real & wanted.positions
    return _scatter(states.hidden, mask, base), (_scatter(states.aux, real, base),) if wanted.layers else ()


def _scatter(values: Tensor, mask: Tensor, base: Any) -> Tensor:
    """Scatter `values` [n, …] to the n True positions of `mask` [B, L], in row-major order."""
    whole = torch.zeros(*mask.shape, values.shape[-1], dtype=base.dtype, device=mask.device)
    whole[mask] = values.to(mask.device, base.dtype)
    return whole


def forward_states(base: Any, batch: Batch, wanted: RequiredStates) -> States:
    """Hidden states by one forward of a base model in this process."""
    return base.forward_hidden(batch.input_ids, layers=wanted.layers, lengths=batch.lengths)

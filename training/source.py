"""Sources of a training's features, which hide where the base model runs.

A method declares the hidden states it needs (`wanted`) and computes features from them (`features(batch, states)`). For
a base model in this process the method runs the forward itself. Otherwise hidden states are requested in advance, so
that base and draft run in parallel with bounded memory.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from training.batches import Batch
from training.hidden_states.prefetcher import StatesPrefetcher
from training.hidden_states.wire import HiddenStates, StatesRequest

States = tuple[Tensor, tuple[Tensor, ...]]
"""As returned by `LoadedBase.forward_hidden`: the head's input [B, L, H], and outputs of layers, each [B, L, …]."""


class RequiredStates(NamedTuple):
    """Hidden states that a method needs: outputs of 0-based `layers` at every real token, and the head's input where
    the mask `positions` [B, L] is True (None: at every real token)."""

    layers: tuple[int, ...] = ()
    positions: Tensor | None = None


class FeatureSource:
    """Features of batches. With a prefetcher, hidden states are requested `ahead` batches before they are needed;
    without one, the base model runs in the method's own forward."""

    def __init__(self, method: Any, base: Any, prefetcher: StatesPrefetcher | None, ahead: int):
        self._method, self._base, self._prefetcher, self._ahead = method, base, prefetcher, ahead
        self._begun: dict[int, tuple[RequiredStates, Any]] = {}

    def features(self, batch: Batch, upcoming: Iterable[Batch] = ()) -> dict[str, Tensor]:
        """Features of `batch`; `upcoming` are the next batches, in order."""
        if self._prefetcher is None or not hasattr(self._method, "wanted"):  # a plugin calls base.forward_hidden itself
            return self._method.features(batch)
        started = self._begun.pop(batch.index, None) or self._begin(batch)
        self._prefetch(upcoming, batch.index)
        if started is None:
            return self._method.features(batch, NO_STATES)
        wanted, pending = started
        return self._method.features(batch, pad_states(self._prefetcher.result(pending), batch, wanted, self._base))

    def _prefetch(self, upcoming: Iterable[Batch], current: int) -> None:
        for batch in upcoming if len(self._begun) < self._ahead else ():
            if batch.index not in (current, *self._begun) and (started := self._begin(batch)):
                self._begun[batch.index] = started
            if len(self._begun) >= self._ahead:
                return

    def _begin(self, batch: Batch) -> tuple[RequiredStates, Any] | None:
        """None when the method needs no hidden states."""
        wanted = self._method.wanted(batch)
        return wanted and (wanted, self._prefetcher.begin(make_states_request(batch, wanted)))


NO_STATES: States = (torch.empty(0), ())
"""For methods that learn from token ids alone."""


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

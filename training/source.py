"""Where a training's features come from: it asks a source for those of a batch, and does not care who runs the base.

A method says what it reads of the base (`wanted`) and makes features of that (`features(batch, states)`). For a base in
this process the method itself is asked (LocalSource); else rows and places are sent away, some batches ahead
(RemoteSource), so that base and draft are at work at once and no more than `ahead` batches wait in memory.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from training.batches import Batch
from training.hidden_states.wire import HiddenStates, StatesRequest

States = tuple[Tensor, tuple[Tensor, ...]]
"""As `Base.forward_hidden` gives them: the head's input [B, L, H], and outputs of layers, each [B, L, …]."""


class StatesWanted(NamedTuple):
    """What a method reads of the base: outputs of 0-based `layers` at every real token, and the head's input where
    `places` [B, L] says (None: at every real token)."""

    layers: tuple[int, ...] = ()
    places: Tensor | None = None


class StatesSource(Protocol):
    """What the stream of batches asks."""

    def features(self, batch: Batch, upcoming: Iterable[Batch] = ()) -> dict[str, Tensor]:
        """The method's features of `batch`; `upcoming` will be asked for next, in this order."""


class Carrier(Protocol):
    """Who brings hidden states: begins at once, and is asked for the result when it is needed."""

    def begin(self, asked: StatesRequest) -> Any: ...

    def result(self, begun: Any) -> HiddenStates: ...

    def close(self) -> None: ...


class LocalSource:
    """The base in this process, by the method's own forward."""

    def __init__(self, method: Any):
        self._method = method

    def features(self, batch: Batch, upcoming: Iterable[Batch] = ()) -> dict[str, Tensor]:
        return self._method.features(batch)


class RemoteSource:
    """Hidden states that a carrier brings, `ahead` batches before they are needed."""

    def __init__(self, method: Any, base: Any, carrier: Carrier, ahead: int):
        self._method, self._base, self._carrier, self._ahead = method, base, carrier, ahead
        self._begun: dict[int, tuple[StatesWanted, Any]] = {}

    def features(self, batch: Batch, upcoming: Iterable[Batch] = ()) -> dict[str, Tensor]:
        if not hasattr(self._method, "wanted"):  # a method from elsewhere: it asks the base's frame by itself
            return self._method.features(batch)
        begun = self._begun.pop(batch.index, None) or self._begin(batch)
        self._look_ahead(upcoming, batch.index)
        if begun is None:
            return self._method.features(batch, NOTHING)
        wanted, carried = begun
        return self._method.features(batch, spread(self._carrier.result(carried), batch, wanted, self._base))

    def _look_ahead(self, upcoming: Iterable[Batch], current: int) -> None:
        """Begin what will be needed next, as far as there is room."""
        for batch in upcoming if len(self._begun) < self._ahead else ():
            if batch.index not in (current, *self._begun) and (begun := self._begin(batch)):
                self._begun[batch.index] = begun
            if len(self._begun) >= self._ahead:
                return

    def _begin(self, batch: Batch) -> tuple[StatesWanted, Any] | None:
        """None where the method reads nothing of the base."""
        wanted = self._method.wanted(batch)
        return wanted and (wanted, self._carrier.begin(asked_of(batch, wanted)))


NOTHING: States = (torch.empty(0), ())
"""For methods that learn from tokens alone."""


def asked_of(batch: Batch, wanted: StatesWanted) -> StatesRequest:
    """The rows without their padding."""
    lengths = batch.lengths.tolist()
    rows = tuple(row[:length].int().cpu() for row, length in zip(batch.input_ids, lengths, strict=True))
    if wanted.places is None:
        return StatesRequest(rows, wanted.layers)
    places = (row[:length].nonzero()[:, 0].int().cpu() for row, length in zip(wanted.places, lengths, strict=True))
    return StatesRequest(rows, wanted.layers, tuple(places))


def spread(given: HiddenStates, batch: Batch, wanted: StatesWanted, base: Any) -> States:
    """What was given, at its places [B, L] in the base's precision; zeros elsewhere, where nobody looks."""
    real = real_places(batch)
    where = real if wanted.places is None else real & wanted.places
    return scattered(given.hidden, where, base), (scattered(given.aux, real, base),) if wanted.layers else ()


def scattered(values: Tensor, where: Tensor, base: Any) -> Tensor:
    """Rows of `values` [n, …] at the n places of `where` [B, L], row by row."""
    whole = torch.zeros(*where.shape, values.shape[-1], dtype=base.dtype, device=where.device)
    whole[where] = values.to(where.device, base.dtype)
    return whole


def real_places(batch: Batch) -> Tensor:
    """bool [B, L]: not padding."""
    return torch.arange(batch.input_ids.shape[1], device=batch.lengths.device) < batch.lengths[:, None]


def states_of(base: Any, batch: Batch, wanted: StatesWanted) -> States:
    """By one forward of a base that is here."""
    return base.forward_hidden(batch.input_ids, layers=wanted.layers, lengths=batch.lengths)

"""What goes into a forward and what comes out: the seam between the engine and whoever computes.

Knows tensors and the cache; no family, no kernel. A faster forward is another class with the same `__call__`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from models.runtime.argmax import argmax
from models.runtime.cache import KVCache


@dataclass(frozen=True)
class Inputs:
    """New rows of one sequence, or of several laid end to end: `ids`, `positions` int64 [N].

    `counts` says how many rows are whose; they belong to the cache's sequences `first`, `first` + 1, …
    `mask` bool [N, N], for one sequence only, says which new rows see which (all see the committed ones); None: each
    sees those before it. `reach` is the largest position and one, known without asking the device.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    reach: int
    counts: tuple[int, ...]
    mask: torch.Tensor | None = None
    first: int = 0

    @classmethod
    def of(
        cls,
        ids: Sequence[int],
        positions: Sequence[int],
        device: torch.device,
        mask: torch.Tensor | None = None,
    ) -> "Inputs":
        """One sequence's."""
        rows = torch.tensor([ids, positions], device=device)
        return cls(rows[0], rows[1], max(positions) + 1, (len(ids),), mask)

    @classmethod
    def batch(
        cls, texts: Sequence[Sequence[int]], starts: Sequence[int], device: torch.device, first: int = 0
    ) -> "Inputs":
        """Several sequences': each text goes on at its start."""
        ids = [token for text in texts for token in text]
        positions = [at for text, start in zip(texts, starts, strict=True) for at in range(start, start + len(text))]
        rows, counts = torch.tensor([ids, positions], device=device), tuple(map(len, texts))
        return cls(rows[0], rows[1], max(positions) + 1, counts, None, first)

    @property
    def last_rows(self) -> slice | torch.Tensor:
        """Where each sequence's last row is."""
        if len(self.counts) == 1:
            return slice(len(self.ids) - 1, len(self.ids))
        return torch.tensor(self.counts, device=self.ids.device).cumsum(0) - 1


@dataclass(frozen=True)
class Selection:
    """What of a forward's results is asked for.

    `layers`: 0-based layers whose outputs are features. `last_only`: logits of each sequence's last row alone.
    `best_only`: of those rows the best token alone, so there may be no logits.
    """

    layers: tuple[int, ...] = ()
    last_only: bool = False
    best_only: bool = False


LOGITS = Selection()
"""Logits of every row and nothing else."""


@dataclass(frozen=True)
class Scored:
    """What a forward gives for N new rows. `logits` is [N, V], or [sequences, V] when last rows alone were asked for.

    `hidden` [N, H] is the head's input (after the final norm); `features` [N, k·H] the outputs of the k layers asked
    for, side by side, or None. `best` are the ids of the largest logits; where nothing else was asked for, a forward
    may have found them without `logits`.
    """

    logits: torch.Tensor | None
    hidden: torch.Tensor
    features: torch.Tensor | None = None
    best_ids: torch.Tensor | None = None

    @property
    def best(self) -> torch.Tensor:
        return argmax(self.logits) if self.best_ids is None else self.best_ids


class Forward(Protocol):
    """Computes new rows after a cache's committed ones, and writes (but does not stage) their keys and values."""

    name: str
    ragged: bool
    """Whether sequences of a batch may begin anywhere with any number of new rows each; else all begin at 0, or bring
    as many."""

    def __call__(self, inputs: Inputs, cache: KVCache, selection: Selection = LOGITS) -> Scored:
        """What `selection` asks for of `inputs`."""

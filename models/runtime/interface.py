"""Inputs and outputs of a forward: the interface between the engine and the implementations of the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from models.runtime.argmax import argmax
from models.runtime.cache import KVCache, upload


@dataclass(frozen=True)
class Inputs:
    """New rows of one sequence, or of several concatenated ones: `ids`, `positions` int64 [N]. `counts`: rows of each
    sequence; they belong to the cache's sequences `first`, `first` + 1, … `mask`: bool [N, N], for one sequence only,
    attention among new rows (all attend to the committed ones); None: causal. `max_seq_len`: the largest position + 1,
    known without a device synchronization."""

    ids: torch.Tensor
    positions: torch.Tensor
    max_seq_len: int
    counts: tuple[int, ...]
    mask: torch.Tensor | None = None
    first: int = 0

    @classmethod
    def of(
        cls, ids: Sequence[int], positions: Sequence[int], device: torch.device, mask: torch.Tensor | None = None
    ) -> "Inputs":
        rows = upload([ids, positions], device)
        return cls(rows[0], rows[1], max(positions) + 1, (len(ids),), mask)

    @classmethod
    def batch(
        cls, texts: Sequence[Sequence[int]], starts: Sequence[int], device: torch.device, first: int = 0
    ) -> "Inputs":
        """Inputs of several sequences, with the position of the first token of each in `starts`."""
        ids = [token for text in texts for token in text]
        positions = [at for text, start in zip(texts, starts, strict=True) for at in range(start, start + len(text))]
        rows, counts = upload([ids, positions], device), tuple(map(len, texts))
        return cls(rows[0], rows[1], max(positions) + 1, counts, None, first)

    @property
    def last_rows(self) -> slice | torch.Tensor:
        if len(self.counts) == 1:
            return slice(len(self.ids) - 1, len(self.ids))
        return torch.tensor(self.counts, device=self.ids.device).cumsum(0) - 1


@dataclass(frozen=True)
class Selection:
    """Requested results of a forward. `layers`: 0-based layers whose outputs are features. `last_only`: logits of each
    sequence's last row only. `argmax_only`: only the argmax of these rows, so `logits` may be None."""

    layers: tuple[int, ...] = ()
    last_only: bool = False
    argmax_only: bool = False


LOGITS = Selection()


@dataclass(frozen=True)
class ForwardOutput:
    """Output of a forward for N new rows. `logits`: [N, V], or [sequences, V] with `last_only`, or None. `hidden` [N,
    H]: input of the LM head (after the final norm); `features` [N, k·H]: concatenated outputs of the k requested
    layers, or None; `best`: argmax of the logits, which may be computed without `logits`."""

    logits: torch.Tensor | None
    hidden: torch.Tensor
    features: torch.Tensor | None = None
    best_ids: torch.Tensor | None = None

    @property
    def best(self) -> torch.Tensor:
        return argmax(self.logits) if self.best_ids is None else self.best_ids


class Forward(Protocol):
    """Computes new rows after the committed rows of a cache, and writes (but does not stage) their keys and values."""

    name: str
    ragged: bool
    """Whether sequences of a batch may have any start and number of new rows; else all start at 0, or have equal
    counts."""

    def __call__(self, inputs: Inputs, cache: KVCache, selection: Selection = LOGITS) -> ForwardOutput:
        """Compute the results in `selection`."""

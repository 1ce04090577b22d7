"""The draft vocabulary: which tokens of the base the columns of a draft's head stand for."""

from typing import Any

import torch
from torch import Tensor, nn


def to_target(ids: Tensor, d2t: Tensor | None) -> Tensor:
    """Columns of a draft's head to token ids of the base; without `d2t` [columns] they are the same."""
    return ids if d2t is None else ids + d2t[ids]


class DraftVocabulary(nn.Module):
    """A draft whose head has a column for each token of the base, or for some: column i is token i + `d2t`[i]."""

    config: Any
    """Has `vocab_size`, the base's."""
    d2t: Tensor | None

    def add_draft_vocabulary(self, size: int) -> None:
        """Add the buffer `d2t` [size], int64 and stored with the weights; None for `size` 0: all tokens of the base."""
        self.register_buffer("d2t", torch.zeros(size, dtype=torch.int64) if size else None)

    def set_draft_ids(self, ids: Tensor) -> None:
        """Set the token ids of the base, ascending int64 [size]."""
        self.d2t.copy_(ids.to(self.d2t.device) - torch.arange(len(ids), device=self.d2t.device))

    @property
    def draft_ids(self) -> Tensor:
        """Token id of the base of each column of the head."""
        if self.d2t is None:
            return torch.arange(self.config.vocab_size)
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def to_target(self, ids: Tensor) -> Tensor:
        """Columns of the head to token ids of the base."""
        return to_target(ids, self.d2t)

    def to_draft(self, ids: Tensor) -> Tensor:
        """Token ids of the base to columns of the head; −100 for tokens outside the draft vocabulary and where `ids` is
        −100 (no label)."""
        if self.d2t is None:
            return ids
        columns = torch.full((self.config.vocab_size,), -100, device=ids.device)
        columns[self.draft_ids] = torch.arange(len(self.d2t), device=ids.device)
        return torch.where(ids >= 0, columns[ids.clamp(min=0)], -100)

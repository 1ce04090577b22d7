"""An endless stream of micro-batches, and the frozen base model's features for them.

Micro-batch n is a fixed function of (data, seed, n): epoch n // count, reshuffled each epoch, over batches whose rows
never change. So a resumed run sees the same batches, and features can be cached.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor

from training.batches import Batch, TokenisedConversation, collate, epoch_order, make_batches
from training.feature_store import FeatureStore
from training.source import FeatureSource


class Stream:
    """Batches of `conversations`, with features from `source` cached in `store`."""

    def __init__(
        self,
        conversations: Sequence[TokenisedConversation],
        batch_tokens: int,
        seed: int,
        source: FeatureSource,
        device: Any,
        store: FeatureStore,
    ):
        self.conversations, self.seed = conversations, seed
        self.groups = make_batches(conversations, batch_tokens, seed)
        self._source, self._device = source, device
        self.store = store
        self._order = lru_cache(maxsize=2)(lambda epoch: epoch_order(len(self.groups), epoch, seed))

    def __len__(self) -> int:
        return len(self.groups)

    def index(self, number: int) -> int:
        """The batch that micro-batch `number` of the stream refers to."""
        epoch, offset = divmod(number, len(self.groups))
        return self._order(epoch)[offset]

    def batch(self, index: int) -> Batch:
        return collate([self.conversations[i] for i in self.groups[index]], index)

    def tokens(self, index: int) -> int:
        return sum(len(self.conversations[i]) for i in self.groups[index])

    def features(self, index: int, upcoming: Iterable[int] = ()) -> dict[str, Tensor]:
        """Features of batch `index`, from the store if cached; `upcoming` are the next indices, for prefetching."""
        features = self.store.get(index)
        if features is None:
            batches = (self.batch(i).to(self._device) for i in upcoming if i not in self.store)
            features = self._source.features(self.batch(index).to(self._device), batches)
            self.store.put(index, features)
        return features

    @property
    def padding(self) -> float:
        """Fraction of all positions that is padding."""
        positions = sum(len(g) * max(len(self.conversations[i]) for i in g) for g in self.groups)
        return 1 - sum(self.tokens(i) for i in range(len(self))) / max(positions, 1)

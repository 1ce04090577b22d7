"""An endless stream of micro-batches, and the frozen base model's features for them, cached between epochs.

Micro-batch n is a fixed function of (data, seed, n): epoch n // count, reshuffled each epoch, over batches whose rows
never change. So a resumed run sees the same batches, and cached features are bit-identical to computed ones.
"""

import shutil
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.methods.settings import TrainConfig
from speculoos.errors import Unavailable
from training.batches import Batch, TokenizedConversation, collate, epoch_order, make_batches
from training.hidden_states.prefetcher import FeatureSource

Features = dict[str, Tensor]


class FeatureStore:
    """Features by batch index: up to `memory_bytes` in main memory (pinned, if they are on a GPU), then up to
    `disk_bytes` in files in `folder`."""

    def __init__(self, memory_bytes: int, disk_bytes: int, folder: Path):
        self._memory_left, self._disk_left, self._folder = memory_bytes, disk_bytes, folder
        self._in_memory: dict[int, Features] = {}
        self._on_disk: set[int] = set()
        self._device: torch.device | None = None

    def __contains__(self, index: int) -> bool:
        return index in self._in_memory or index in self._on_disk

    def get(self, index: int) -> Features | None:
        features = load_file(self._path(index)) if index in self._on_disk else self._in_memory.get(index)
        if features is None:
            return None
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in features.items()}

    def put(self, index: int, features: Features) -> None:
        size, self._device = feature_bytes(features), next(iter(features.values())).device
        if size <= self._memory_left:
            self._memory_left -= size
            self._in_memory[index] = {name: _in_main_memory(tensor) for name, tensor in features.items()}
        elif size <= self._disk_left:
            self._disk_left -= size
            self._folder.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self._folder).free < 2 * size:
                raise Unavailable(
                    f"The disk of {self._folder} is full.", "Lower cache_disk_gb, or free space and retry."
                )
            save_file({name: t.detach().cpu().contiguous() for name, t in features.items()}, self._path(index))
            self._on_disk.add(index)

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._on_disk.clear()

    def _path(self, index: int) -> Path:
        return self._folder / f"features-{index:06d}.safetensors"


def _in_main_memory(tensor: Tensor) -> Tensor:
    """The tensor itself on a CPU; a copy of a GPU's in memory from which it can be copied back without waiting."""
    return tensor.cpu().pin_memory() if tensor.is_cuda else tensor


def feature_bytes(features: Features) -> int:
    return sum(t.numel() * t.element_size() for t in features.values())


class Stream:
    """Batches of conversations, with features from `source` cached in `store`."""

    def __init__(
        self, rows: list[TokenizedConversation], config: TrainConfig, source: FeatureSource, store: FeatureStore
    ):
        self.conversations, self._source, self.store = rows, source, store
        self.groups = make_batches(rows, config.batch_tokens, config.seed)
        self._order = lru_cache(maxsize=2)(lambda epoch: epoch_order(len(self.groups), epoch, config.seed))

    def __len__(self) -> int:
        return len(self.groups)

    def index(self, number: int) -> int:
        """The batch that micro-batch `number` of the stream refers to."""
        epoch, offset = divmod(number, len(self.groups))
        return self._order(epoch)[offset]

    def batch(self, index: int) -> Batch:
        return collate([self.conversations[i] for i in self.groups[index]], index).to(self._source.base.device)

    def tokens(self, index: int) -> int:
        return sum(len(self.conversations[i]) for i in self.groups[index])

    def features(self, index: int, upcoming: Iterable[int] = ()) -> Features:
        """Features of batch `index`, from the store if cached; `upcoming` are the next indices, for prefetching."""
        features = self.store.get(index)
        if features is None:
            batches = (self.batch(i) for i in upcoming if i not in self.store)
            features = self._source.features(self.batch(index), batches)
            self.store.put(index, features)
        return features

    @property
    def padding(self) -> float:
        """Fraction of all positions that is padding."""
        positions = sum(len(g) * max(len(self.conversations[i]) for i in g) for g in self.groups)
        return 1 - sum(self.tokens(i) for i in range(len(self))) / max(positions, 1)

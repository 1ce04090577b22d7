"""Cache of the frozen base model's features between epochs: in memory while they fit, then in safetensors files.

One file holds one micro-batch. Its rows never change during a run, so cached features are bit-identical to computed
ones. Nothing is pickled.
"""

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from speculoos.errors import Unavailable

Features = dict[str, Tensor]


class FeatureStore:
    """Features by batch index, up to `memory_bytes` in memory and `disk_bytes` in `folder` (created when needed)."""

    def __init__(self, memory_bytes: int, disk_bytes: int, folder: Path):
        self._memory_left, self._disk_left, self._folder = memory_bytes, disk_bytes, folder
        self._in_memory: dict[int, Features] = {}
        self._on_disk: dict[int, str] = {}
        """{batch: device of its tensors}."""

    def __contains__(self, index: int) -> bool:
        return index in self._in_memory or index in self._on_disk

    def get(self, index: int) -> Features | None:
        if device := self._on_disk.get(index):
            return load_file(self._path(index), device=device)
        return self._in_memory.get(index)

    def put(self, index: int, features: Features) -> None:
        """Cache `features` if they fit in memory or on disk."""
        size = feature_bytes(features)
        if size <= self._memory_left:
            self._memory_left -= size
            self._in_memory[index] = features
        elif size <= self._disk_left:
            self._disk_left -= size
            self._write(index, features, size)

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._on_disk.clear()

    def _path(self, index: int) -> Path:
        return self._folder / f"features-{index:06d}.safetensors"

    def _write(self, index: int, features: Features, size: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self._folder).free < 2 * size:
            raise Unavailable(f"The disk of {self._folder} is full.", "Lower cache_disk_gb, or free space and retry.")
        save_file({name: t.detach().cpu().contiguous() for name, t in features.items()}, self._path(index))
        self._on_disk[index] = str(next(iter(features.values())).device)


def feature_bytes(features: Features) -> int:
    return sum(t.numel() * t.element_size() for t in features.values())

"""Cache of the frozen base model's features between epochs: in memory while they fit, then in safetensors files.

One file holds one micro-batch. Its rows never change during a run, so cached features are bit-identical to computed
ones. Nothing is pickled.
"""

import shutil
from pathlib import Path

from torch import Tensor

from speculoos.errors import Unavailable


class FeatureStore:
    """Features by batch index, up to `memory_bytes` in memory and `disk_bytes` in `folder` (created when needed)."""

    def __init__(self, memory_bytes: int, disk_bytes: int = 0, folder: Path | None = None):
        self._memory_left, self._disk_left = memory_bytes, disk_bytes if folder else 0
        self._folder = folder
        self._features: dict[int, dict[str, Tensor]] = {}
        self._written: dict[int, str] = {}
        """{batch on disk: device of its tensors}."""

    def __contains__(self, index: int) -> bool:
        return index in self._features or index in self._written

    def get(self, index: int) -> dict[str, Tensor] | None:
        if index in self._features:
            return self._features[index]
        return self._read(index) if index in self._written else None

    def put(self, index: int, features: dict[str, Tensor]) -> None:
        """Cache `features` if they fit in memory or on disk."""
        size = sum(t.numel() * t.element_size() for t in features.values())
        if size <= self._memory_left:
            self._memory_left -= size
            self._features[index] = features
        elif size <= self._disk_left:
            self._disk_left -= size
            self._write(index, features)

    def clear(self) -> None:
        """Remove the files."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._written.clear()

    @property
    def on_disk(self) -> int:
        """Batches on disk."""
        return len(self._written)

    def _path(self, index: int) -> Path:
        return self._folder / f"features-{index:06d}.safetensors"

    def _write(self, index: int, features: dict[str, Tensor]) -> None:
        from safetensors.torch import save_file

        self._folder.mkdir(parents=True, exist_ok=True)
        size = sum(t.numel() * t.element_size() for t in features.values())
        if shutil.disk_usage(self._folder).free < 2 * size:
            raise Unavailable(f"The disk of {self._folder} is full.", "Lower cache_disk_gb, or free space and retry.")
        temporary = self._path(index).with_suffix(".tmp")
        save_file({name: t.detach().cpu().contiguous() for name, t in features.items()}, temporary)
        temporary.rename(self._path(index))
        self._written[index] = str(next(iter(features.values())).device)

    def _read(self, index: int) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        return load_file(self._path(index), device=self._written[index])


def cache_advice(batches: int, batch_bytes: int, batch_seconds: float, epochs: float, cache_bytes: int) -> str:
    """One sentence on caching features: gigabytes, hours of the base's forward per epoch, and the time saved.

    Extrapolated from the first batch; `cache_bytes` is the cache's size. Caching helps from the second epoch on.
    """
    total, hours = batches * batch_bytes, batches * batch_seconds / 3600
    share = min(1.0, cache_bytes / max(total, 1))
    saved = hours * share * max(epochs - 1, 0)
    text = f"Features of all batches take {total / 1e9:.2f} GB, computing them {hours:.2f} h per epoch; "
    if epochs <= 1:
        return text + "with one epoch caching them would not pay."
    if share >= 1:
        return text + f"all are cached, which pays from the second epoch on and saves {saved:.2f} h."
    return text + f"{share:.0%} are cached (saves {saved:.2f} h); cache_disk_gb {total / 1e9:.1f} would cache all."

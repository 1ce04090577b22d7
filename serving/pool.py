"""Base and draft models loaded on one device. Only that device's thread uses the pool, so it needs no lock.

A base model is loaded at its first use together with its target (KV cache and forward) and owns its drafts. When the
memory budget would be exceeded, the least recently used model is unloaded first. A changed sha256 forces a reload.

A GPU is shared with jobs. A job stores the memory it needs in the GPU's lease; models are loaded into what it and
other programs leave, and unloaded while it waits for memory (`ModelPool.free_memory`).
"""

import gc
import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from models.checkpoints import read_config
from models.memory import ModelBytes, gigabytes, model_bytes
from serving.catalog import ModelRef
from serving.queueing import Heartbeat
from speculoos.checksums import ChecksumCache
from speculoos.errors import SpeculoosError, Unavailable, Unsupported
from speculoos.resources import available_memory

log = logging.getLogger(__name__)
MAX_DRAFTERS = 4
SLOWEST_DISK = 10e6  # lowest disk speed that loading allows for, in bytes per second
MAX_CONTEXT = 8192  # maximum KV cache length in tokens; shorter for base models with a shorter context


@dataclass
class PooledDraft:
    """A loaded draft network and its drafters by options (as JSON), which keep the cache of their last text.
    `planned`: bytes according to its files and config."""

    network: Any
    planned: ModelBytes
    drafters: "OrderedDict[str, Any]" = field(default_factory=OrderedDict)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, and of the caches and CUDA graphs of its drafters."""
        return self.planned.weights + max(self.planned.cache, _cache_bytes(self.drafters))


@dataclass
class PooledBase:
    """A loaded base model as `target`, which holds the `models.base.LoadedBase`, with its drafts. `drafts` by the
    checkpoint's (path, sha256), least recently used first. `no_drafting_reason`: why it does not support drafting, or
    "". `planned`: bytes according to its files and config. `drafters`: those that need no draft, by options."""

    key: tuple[str, str]
    target: Any
    planned: ModelBytes
    no_drafting_reason: str = ""
    drafts: "OrderedDict[tuple[str, str], PooledDraft]" = field(default_factory=OrderedDict)
    drafters: "OrderedDict[str, Any]" = field(default_factory=OrderedDict)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, the KV cache, the CUDA graphs, and of MTP layers that draft with their caches."""
        cache = max(self.planned.cache, self.target.cache.nbytes())
        mtp = self.target.base.mtp
        layers = sum(weight.nbytes for weight in mtp.layers.parameters()) if mtp else 0
        return self.planned.weights + cache + layers + _cache_bytes(self.drafters)

    def clear_caches(self) -> None:
        """Clear the KV cache and all drafter state."""
        self.target.rewind(0)
        self.drafters.clear()
        for draft in self.drafts.values():
            draft.drafters.clear()


@dataclass(frozen=True)
class PooledModel:
    """What one request uses: a base and, if the request names a checkpoint, one of its drafts."""

    base: PooledBase
    draft: PooledDraft | None  # None for a base model without a draft

    @property
    def target(self) -> Any:
        return self.base.target

    @property
    def nbytes(self) -> int:
        return self.base.nbytes + (self.draft.nbytes if self.draft else 0)

    @property
    def notices(self) -> list[str]:
        """Sentences for the user, such as a slower forward or a draft trained on another base model."""
        return [*filter(None, [self.target.notice]), *getattr(self.draft and self.draft.network, "notices", ())]

    def drafter(self, options: dict[str, Any]) -> Any:
        """The drafter for these options, kept from an earlier request if possible. Raises BadInput for the options,
        Unsupported for the base."""
        from decoding.drafters import make_drafter

        if self.base.no_drafting_reason and options.get("drafter") != "none":
            raise Unsupported(self.base.no_drafting_reason)
        key, network = json.dumps(options, sort_keys=True), self.draft and self.draft.network
        drafters = self.draft.drafters if self.draft else self.base.drafters
        if key not in drafters:
            drafters[key] = make_drafter(self.target, network, options)
        drafters.move_to_end(key)
        if len(drafters) > MAX_DRAFTERS:
            drafters.popitem(last=False)
        return drafters[key]


class ModelPool:
    """Loaded models on `device` (cpu, cuda:0) within `budget` bytes; one base model is always allowed, if the GPU has
    the memory. `reserved`: the job that holds the device, and the bytes of it that models must not use."""

    def __init__(
        self,
        device: str,
        dtype: str,
        budget: int,
        heartbeat: Heartbeat | None = None,
        checksum_cache: ChecksumCache | None = None,
        reserved: Callable[[], tuple[str, int]] = lambda: ("", 0),
    ):
        self.device, self.dtype, self.budget = device, dtype, budget
        self.heartbeat, self.checksum_cache = heartbeat or Heartbeat(), checksum_cache or ChecksumCache()
        self.itemsize, self._reserved = 4 if dtype == "float32" else 2, reserved
        self._bases: OrderedDict[tuple[str, str], PooledBase] = OrderedDict()
        self.loading = False
        """Whether a model is being loaded, perhaps beside a reservation made since. Any thread may read it."""

    def get(self, ref: ModelRef) -> PooledModel:
        """The models of `ref`, loaded if necessary. Raises NotFound, Unsupported or Unavailable."""
        _drop_outdated(self._bases, ref.base_path, ref.base_key)
        for base in self._bases.values():
            _drop_outdated(base.drafts, ref.checkpoint_path, ref.draft_key)
        self.loading = not self.is_loaded(ref)
        try:
            base = self._bases.get(ref.base_key) or self._load_base(ref)
            self._bases.move_to_end(ref.base_key)
            return PooledModel(base, self._draft(base, ref) if ref.draft_key else None)
        finally:
            self.loading = False

    def is_loaded(self, ref: ModelRef) -> bool:
        base = self._bases.get(ref.base_key)
        return base is not None and (ref.draft_key is None or ref.draft_key in base.drafts)

    @property
    def nbytes(self) -> int:
        """Bytes of the loaded models; any thread may read it."""
        bases = list(self._bases.values())
        return sum(base.nbytes + sum(draft.nbytes for draft in list(base.drafts.values())) for base in bases)

    @property
    def device_bytes(self) -> int:
        """Bytes of GPU memory that this process holds for tensors, those of unused blocks included; 0 on a CPU."""
        import torch

        return torch.cuda.memory_reserved(self.device) if self.on_gpu else 0

    @property
    def planned_bytes(self) -> int:
        """Bytes that the loaded models will need in addition: a KV cache is allocated by the first generation."""
        return max(self.nbytes - self.device_bytes, 0)

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def __len__(self) -> int:
        return len(self._bases)

    def clear(self) -> None:
        """Unload all models and free their memory."""
        self._bases.clear()
        _free(self.device)

    def free_memory(self) -> None:
        """Unload models, least recently used first, until the GPU has the free memory that a waiting job needs."""
        import torch

        _, needed = self._reserved()
        _free(self.device)
        while self._bases and torch.cuda.mem_get_info(self.device)[0] - self.planned_bytes < needed:
            self._bases.popitem(last=False)
            _free(self.device)

    def reset_base(self, ref: ModelRef) -> None:
        """Recover from a panic in Rust code: drop partial state, reload the tokenizer, whose locks may be held."""
        from models.base import load_tokenizer

        if base := self._bases.get(ref.base_key):
            try:
                base.clear_caches()
                base.target.base.tokenizer = load_tokenizer(ref.base_path)
            except BaseException:
                log.exception("The base %s is unloaded", ref.base_name)
                del self._bases[ref.base_key]
                _free(self.device)

    def _load_base(self, ref: ModelRef) -> PooledBase:
        from decoding.probe import probe
        from decoding.target import fast_target
        from models.base import load_base
        from models.damage import check_base

        stored = sum(file.stat().st_size for file in Path(ref.base_path).glob("*.safetensors"))
        with self.heartbeat.during("checking a base model's files", loading_seconds(self.heartbeat.limit, stored)):
            check_base(ref.base_path, ref.base_checksums, self.checksum_cache)  # before other models are unloaded
        planned = model_bytes(ref.base_path, self.itemsize, MAX_CONTEXT)
        self._evict(ref.base_name, sum(planned), kept_base=None)
        log.info("Loading base %s", ref.base_name)
        with self.heartbeat.during("loading a base model", loading_seconds(self.heartbeat.limit, sum(planned))):
            loaded = load_base(ref.base_path, dtype=self.dtype, device=self.device)
            no_drafting_reason = ""
            try:
                probe(loaded)  # before the weights are packed
            except Unsupported as error:
                no_drafting_reason = str(error)
            target = fast_target(loaded, max_length=min(loaded.max_length, MAX_CONTEXT))
        self._bases[ref.base_key] = PooledBase(ref.base_key, target, planned, no_drafting_reason)
        return self._bases[ref.base_key]

    def _draft(self, base: PooledBase, ref: ModelRef) -> PooledDraft:
        from models.checkpoints import load_draft

        assert ref.draft_key is not None
        if draft := base.drafts.get(ref.draft_key):
            _refresh_config(draft, ref.checkpoint_path)
            base.drafts.move_to_end(ref.draft_key)
            return draft
        planned = model_bytes(ref.checkpoint_path, self.itemsize, MAX_CONTEXT)
        self._evict(ref.name, sum(planned), kept_base=base)
        log.info("Loading draft %s", ref.name)
        with self.heartbeat.during("loading a draft", loading_seconds(self.heartbeat.limit, sum(planned))):
            sha256s = (ref.base_sha256, ref.checkpoint_sha256)
            network = load_draft(ref.checkpoint_path, base.target.base, *sha256s, checksum_cache=self.checksum_cache)
        base.drafts[ref.draft_key] = PooledDraft(network, planned)
        return base.drafts[ref.draft_key]

    def _evict(self, name: str, needed: int, kept_base: PooledBase | None) -> None:
        """Unload other base models, then drafts of `kept_base`, until `needed` more bytes fit; least recently used
        first. Raises Unavailable if they do not fit on the GPU even then."""
        job, reserved = self._reserved() if self.on_gpu else ("", 0)
        while self._bases and self.nbytes + needed > min(self.budget, self._available(reserved)):
            if other := next((b for b in self._bases.values() if b is not kept_base), None):
                del self._bases[other.key]
            elif kept_base and kept_base.drafts:
                kept_base.drafts.popitem(last=False)
            else:
                break
            _free(self.device)
        if (free := self._available(reserved) - self.nbytes) < needed:
            user = f"the job “{job}” has reserved {gigabytes(reserved)}" if job else "other programs use the rest"
            raise Unavailable(
                f"{name} needs {gigabytes(needed)} of memory on {self.device}, {gigabytes(max(free, 0))} are left and "
                f"{user}; wait until that ends, or choose a smaller model."
            )

    def _available(self, reserved: int) -> float:
        """Bytes that all models may use: what other programs and `reserved` leave of a GPU; unlimited on a CPU."""
        if not self.on_gpu:
            return inf
        import torch

        free, total = torch.cuda.mem_get_info(self.device)
        return min(free + self.device_bytes, total - reserved)


def _cache_bytes(drafters: "OrderedDict[str, Any]") -> int:
    """Bytes of the caches and CUDA graphs of `drafters`; any thread may call it."""
    return sum(drafter.nbytes() for drafter in list(drafters.values()))


def _drop_outdated(models: OrderedDict[tuple[str, str], Any], path: str, key: tuple[str, str] | None) -> None:
    """Remove older weights of the same path."""
    for old in [old for old in models if old[0] == path and old != key]:
        del models[old]


def _refresh_config(draft: PooledDraft, folder: str) -> None:
    """Reread the drafting options: tuning a checkpoint changes its config.json, not its weights."""
    try:
        drafting = read_config(folder).get("drafting", {})
    except SpeculoosError:  # keep serving the loaded draft; the next load reports the error
        return
    if drafting != getattr(draft.network, "drafting", {}):
        draft.network.drafting = drafting
        draft.drafters.clear()


def loading_seconds(limit: float, size: int) -> float:
    """Seconds that loading `size` bytes may take before the device counts as stuck."""
    return 2 * limit + size / SLOWEST_DISK


def default_budget(device: str) -> int:
    """Bytes: half of the memory of the machine or container (`cpu`), or 70 % of the GPU's."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory * 0.7)
    return available_memory()[1] // 2


def _free(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()

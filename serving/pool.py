"""Bases and drafts kept warm on one device. Used from that device's thread only, so nothing here locks.

A base is loaded at its first use together with its target (cache and forward); drafts hang on their base. What was
used least recently goes first when the memory budget would be passed; a changed sha256 means load again.
"""

import gc
import json
import logging
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving.catalog import ModelRef
from speculoos.errors import NotFound, Unavailable, Unsupported
from speculoos.sums import Sums

log = logging.getLogger(__name__)
MAX_DRAFTERS = 4
MAX_CONTEXT = 8192
"""Tokens a cache is made for at most; a base made for fewer gets fewer."""


@dataclass
class WarmDraft:
    """A draft network and the drafters made of it, which keep what they know of the last text (a chat's next turn
    begins with it). Keys are their options as JSON."""

    network: Any
    nbytes: int
    drafters: "OrderedDict[str, Any]" = field(default_factory=OrderedDict)


@dataclass
class WarmBase:
    """A warm base. `drafts` maps a checkpoint's (path, sha256) to it, least recently used first. `refusal` says why
    nothing can be drafted for this base; empty when it can."""

    key: tuple[str, str]
    target: Any
    nbytes: int
    refusal: str = ""
    drafts: "OrderedDict[tuple[str, str], WarmDraft]" = field(default_factory=OrderedDict)

    @property
    def total_bytes(self) -> int:
        return self.nbytes + sum(draft.nbytes for draft in self.drafts.values())


@dataclass(frozen=True)
class Loaded:
    """What one generation needs."""

    base: WarmBase
    draft: WarmDraft | None
    """None for a base alone."""

    @property
    def target(self) -> Any:
        return self.base.target

    @property
    def notices(self) -> list[str]:
        """Sentences for the user: a slower forward, a draft of another base."""
        return [*filter(None, [self.target.notice]), *getattr(self.draft and self.draft.network, "notices", ())]

    def drafter(self, options: dict[str, Any]) -> Any:
        """The drafter for these options, the one that served them last if it is still there.

        Raises BadInput for options it does not know, Unsupported where this base cannot be drafted for.
        """
        from decoding.drafters import make_drafter

        if self.base.refusal and options.get("drafter") != "none":
            raise Unsupported(self.base.refusal)
        if self.draft is None:
            return make_drafter(self.target, None, options)
        key, kept = json.dumps(options, sort_keys=True), self.draft.drafters
        if key not in kept:
            kept[key] = make_drafter(self.target, self.draft.network, options)
        kept.move_to_end(key)
        if len(kept) > MAX_DRAFTERS:
            kept.popitem(last=False)
        return kept[key]


class Pool:
    """Warm models of `device` ("cpu", "cuda:0") in `dtype`, within `budget` bytes (one base always fits). `sums`
    remembers the sums of their files."""

    def __init__(self, device: str, dtype: str, budget: int, sums: Sums | None = None):
        self.device, self.dtype, self.budget = device, dtype, budget
        self.sums = sums or Sums()
        self._bases: OrderedDict[tuple[str, str], WarmBase] = OrderedDict()

    def get(self, ref: ModelRef) -> Loaded:
        """Load what is not warm yet. Raises NotFound, Unsupported or Unavailable in one sentence."""
        self._drop_outdated(ref)
        base = self._bases.get(ref.base_key) or self._load_base(ref)
        self._bases.move_to_end(ref.base_key)
        return Loaded(base, self._draft(base, ref) if ref.draft_key else None)

    def is_warm(self, ref: ModelRef) -> bool:
        base = self._bases.get(ref.base_key)
        return base is not None and (ref.draft_key is None or ref.draft_key in base.drafts)

    @property
    def nbytes(self) -> int:
        """Bytes of weights and caches held now."""
        return sum(base.total_bytes for base in self._bases.values())

    def __len__(self) -> int:
        return len(self._bases)

    def clear(self) -> None:
        """Unload everything and give the memory back."""
        self._bases.clear()
        _free(self.device)

    def _drop_outdated(self, ref: ModelRef) -> None:
        """Forget older weights behind the same path."""
        for key in [k for k in self._bases if k[0] == ref.base_path and k != ref.base_key]:
            del self._bases[key]
        for base in self._bases.values():
            for key in [k for k in base.drafts if k[0] == ref.checkpoint_path and k != ref.draft_key]:
                del base.drafts[key]

    def _load_base(self, ref: ModelRef) -> WarmBase:
        from decoding.fast import fast_target
        from models.base import load_base
        from models.damage import check_base

        check_base(ref.base_path, ref.base_known, self.sums)  # before other models give way to it
        self._make_room(_weight_bytes(ref.base_path, self.dtype), keep=None)
        log.info("Loading base %s", ref.name.split("@")[0])
        loaded = load_base(ref.base_path, dtype=self.dtype, device=self.device)
        loaded.sha256 = ref.base_sha256
        size = _module_bytes(loaded.model)  # before packing, which keeps the bytes but hides them from torch
        refusal = _probe(loaded)
        target = fast_target(loaded, max_length=min(loaded.max_length, MAX_CONTEXT))
        made = WarmBase(ref.base_key, target, size, refusal)
        self._bases[ref.base_key] = made
        return made

    def _draft(self, base: WarmBase, ref: ModelRef) -> WarmDraft:
        assert ref.draft_key is not None
        if ref.draft_key not in base.drafts:
            base.drafts[ref.draft_key] = self._load_draft(base, ref)
        base.drafts.move_to_end(ref.draft_key)
        return base.drafts[ref.draft_key]

    def _load_draft(self, base: WarmBase, ref: ModelRef) -> WarmDraft:
        from models.checkpoints import load_draft

        self._make_room(_weight_bytes(ref.checkpoint_path, self.dtype), keep=base)
        log.info("Loading draft %s", ref.name)
        draft = load_draft(ref.checkpoint_path, base.target.base, ref.base_sha256, sums=self.sums)
        return WarmDraft(draft, _module_bytes(draft))

    def _make_room(self, needed: int, keep: WarmBase | None) -> None:
        """Let go, least recently used first, until `needed` more bytes fit: drafts of `keep`, else whole bases."""
        while self._bases and self.nbytes + needed > self.budget:
            if other := next((b for b in self._bases.values() if b is not keep), None):
                del self._bases[other.key]
            elif keep is not None and keep.drafts:
                keep.drafts.popitem(last=False)
            else:
                break
            _free(self.device)


def _probe(base: Any) -> str:
    """Why trees cannot be verified on this base, or "". Needs the base before its weights are packed."""
    from decoding.probe import probe

    try:
        probe(base)
    except Unsupported as error:
        return str(error)
    return ""


def default_budget(device: str) -> int:
    """Half of the memory of the machine (`cpu`) or 70 % of the GPU's."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory * 0.7)
    return _memory_limit() // 2


def _memory_limit() -> int:
    """Bytes this process may use: the machine's memory, or the container's limit where that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return physical


def _weight_bytes(folder: str, dtype: str) -> int:
    """Bytes the safetensors in `folder` take in `dtype`, from their headers. Raises NotFound when there are none."""
    from safetensors import SafetensorError, safe_open

    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise NotFound(f"{folder} holds no safetensors file any more; bring the model here again.")
    count = 0
    try:
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                count += sum(_numel(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise Unavailable(f"{folder}: its weights cannot be read ({error}).") from None
    return count * (4 if dtype == "float32" else 2)


def _numel(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _module_bytes(module: Any) -> int:
    """Bytes of a network's own parameters and buffers."""
    tensors = [*module.parameters(), *module.buffers()] if hasattr(module, "parameters") else []
    return sum(t.nbytes for t in {id(t): t for t in tensors}.values())


def _free(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()

"""Bases and drafts kept warm on one device. Used from that device's thread only, so nothing here locks.

A base is loaded at its first use together with its target (cache and forward); drafts hang on their base. What was
used least recently goes first when the memory budget would be passed; a changed sha256 means load again.
"""

import gc
import json
import logging
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.checkpoints import read_config
from serving.catalog import ModelRef
from serving.heartbeat import Heart
from speculoos.errors import NotFound, SpeculoosError, Unavailable, Unsupported
from speculoos.room import memory
from speculoos.sums import Sums

log = logging.getLogger(__name__)
MAX_DRAFTERS = 4
SLOWEST_DISK = 10e6
"""Bytes a second that loading may be as slow as."""
MAX_CONTEXT = 8192
"""Tokens a cache is made for at most; a base made for fewer gets fewer."""


@dataclass
class WarmDraft:
    """A draft network and the drafters made of it, which keep what they know of the last text (a chat's next turn
    begins with it). Keys are their options as JSON."""

    network: Any
    weight_count: int
    drafters: "OrderedDict[str, Any]" = field(default_factory=OrderedDict)


@dataclass
class WarmBase:
    """A warm base. `drafts` maps a checkpoint's (path, sha256) to it, least recently used first. `refusal` says why
    nothing can be drafted for this base; empty when it can."""

    key: tuple[str, str]
    target: Any
    weight_count: int
    refusal: str = ""
    drafts: "OrderedDict[tuple[str, str], WarmDraft]" = field(default_factory=OrderedDict)

    @property
    def nbytes(self) -> int:
        """Bytes of its weights (packed and screened ones too) and cache, and of its drafts and theirs."""
        from serving.sizes import held_bytes

        return held_bytes(self.target, [(d.network, list(d.drafters.values())) for d in self.drafts.values()])

    def forget_text(self) -> None:
        """Drop what is known of the last text."""
        self.target.rewind(0)
        for draft in self.drafts.values():
            draft.drafters.clear()


@dataclass(frozen=True)
class LoadedModel:
    """What one generation needs."""

    base: WarmBase
    draft: WarmDraft | None
    """None for a base alone."""

    @property
    def target(self) -> Any:
        return self.base.target

    @property
    def weight_count(self) -> int:
        """Parameters of base and draft, about: what the time of a forward goes by."""
        return self.base.weight_count + (self.draft.weight_count if self.draft else 0)

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
        key, drafters = json.dumps(options, sort_keys=True), self.draft.drafters
        if key not in drafters:
            drafters[key] = make_drafter(self.target, self.draft.network, options)
        drafters.move_to_end(key)
        if len(drafters) > MAX_DRAFTERS:
            drafters.popitem(last=False)
        return drafters[key]


class ModelPool:
    """Warm models of `device` ("cpu", "cuda:0") in `dtype`, within `budget` bytes (one base always fits). `sums`
    remembers the sums of their files."""

    def __init__(self, device: str, dtype: str, budget: int, heart: Heart | None = None, sums: Sums | None = None):
        """`heart` of the device's thread, which is told what is loaded and how long that may take."""
        self.device, self.dtype, self.budget = device, dtype, budget
        self.heart, self.sums = heart or Heart(), sums or Sums()
        self._itemsize = 4 if dtype == "float32" else 2
        self.counted = 0
        """`nbytes` when they were last counted; for other threads."""
        self._bases: OrderedDict[tuple[str, str], WarmBase] = OrderedDict()

    def get(self, ref: ModelRef) -> LoadedModel:
        """Load what is not warm yet. Raises NotFound, Unsupported or Unavailable in one sentence."""
        self._drop_outdated(ref)
        base = self._bases.get(ref.base_key) or self._load_base(ref)
        self._bases.move_to_end(ref.base_key)
        return LoadedModel(base, self._draft(base, ref) if ref.draft_key else None)

    def is_warm(self, ref: ModelRef) -> bool:
        base = self._bases.get(ref.base_key)
        return base is not None and (ref.draft_key is None or ref.draft_key in base.drafts)

    @property
    def nbytes(self) -> int:
        """Bytes of weights and caches held now, counted from their tensors."""
        self.counted = sum(base.nbytes for base in self._bases.values())
        return self.counted

    def __len__(self) -> int:
        return len(self._bases)

    def clear(self) -> None:
        """Unload everything and give the memory back."""
        self._bases.clear()
        self.counted = 0
        _free(self.device)

    def settle(self, base: WarmBase) -> None:
        """After an answer, whose caches came after the loading: stay within the budget. `base` and what was used of it
        last stay."""
        self._make_room(0, keep=base, used=1)

    def renew(self, ref: ModelRef) -> None:
        """After a panic: what it left half done is dropped, and the tokenizer (whose locks it may hold) read anew."""
        from models.base import load_tokenizer

        if base := self._bases.get(ref.base_key):
            try:
                base.forget_text()
                base.target.base.tokenizer = load_tokenizer(ref.base_path)
            except BaseException:
                log.exception("The base %s is unloaded", ref.base_name)
                del self._bases[ref.base_key]
                _free(self.device)

    def _drop_outdated(self, ref: ModelRef) -> None:
        """Forget older weights behind the same path."""
        for key in [k for k in self._bases if k[0] == ref.base_path and k != ref.base_key]:
            del self._bases[key]
        for base in self._bases.values():
            for key in [k for k in base.drafts if k[0] == ref.checkpoint_path and k != ref.draft_key]:
                del base.drafts[key]

    def _load_base(self, ref: ModelRef) -> WarmBase:
        from decoding.target import fast_target
        from models.base import load_base
        from models.damage import check_base

        stored = sum(file.stat().st_size for file in Path(ref.base_path).glob("*.safetensors"))
        with self.heart.during("checking a base model's files", loading_seconds(self.heart.limit, stored)):
            check_base(ref.base_path, ref.base_known, self.sums)  # before other models give way to it
        needed = _needed_bytes(ref.base_path, self._itemsize)
        self._make_room(needed, keep=None)
        log.info("Loading base %s", ref.base_name)
        with self.heart.during("loading a base model", loading_seconds(self.heart.limit, needed)):
            loaded = load_base(ref.base_path, dtype=self.dtype, device=self.device)
            loaded.sha256 = ref.base_sha256
            refusal = _probe(loaded)
            target = fast_target(loaded, max_length=min(loaded.max_length, MAX_CONTEXT))
        warm = WarmBase(ref.base_key, target, needed // self._itemsize, refusal)
        self._bases[ref.base_key] = warm
        return warm

    def _draft(self, base: WarmBase, ref: ModelRef) -> WarmDraft:
        assert ref.draft_key is not None
        if ref.draft_key not in base.drafts:
            base.drafts[ref.draft_key] = self._load_draft(base, ref)
        else:
            _retune(base.drafts[ref.draft_key], ref.checkpoint_path)
        base.drafts.move_to_end(ref.draft_key)
        return base.drafts[ref.draft_key]

    def _load_draft(self, base: WarmBase, ref: ModelRef) -> WarmDraft:
        from models.checkpoints import load_draft

        needed = _needed_bytes(ref.checkpoint_path, self._itemsize)
        self._make_room(needed, keep=base)
        log.info("Loading draft %s", ref.name)
        with self.heart.during("loading a draft", loading_seconds(self.heart.limit, needed)):
            known = (ref.base_sha256, ref.checkpoint_sha256)
            draft = load_draft(ref.checkpoint_path, base.target.base, *known, sums=self.sums)
        return WarmDraft(draft, needed // self._itemsize)

    def _make_room(self, needed: int, keep: WarmBase | None, used: int = 0) -> None:
        """Let go, least recently used first, until `needed` more bytes fit: whole bases, then drafters and drafts of
        `keep`, of which the `used` last ones stay."""
        while self._bases and self.nbytes + needed > self.budget:
            if other := next((b for b in self._bases.values() if b is not keep), None):
                del self._bases[other.key]
            elif keep is None or not _let_go(keep, used):
                break
            _free(self.device)


def _retune(draft: WarmDraft, folder: str) -> None:
    """Draft as the checkpoint is tuned now: a tuning changes its config.json, not its weights."""
    try:
        drafting = read_config(folder).get("drafting", {})
    except SpeculoosError:  # what is warm goes on; a new load says what is wrong
        return
    if drafting != getattr(draft.network, "drafting", {}):
        draft.network.drafting = drafting
        draft.drafters.clear()


def _let_go(base: WarmBase, used: int) -> bool:
    """Drop the draft of `base`, or the drafter of its last draft, that was used least recently; False when there is
    none to drop."""
    if len(base.drafts) > used:
        base.drafts.popitem(last=False)
        return True
    drafters = next(reversed(base.drafts.values())).drafters if base.drafts else {}
    if len(drafters) > 1:
        drafters.popitem(last=False)
        return True
    return False


def loading_seconds(least: float, size: int) -> float:
    """How long loading `size` bytes may take before the device counts as stuck."""
    return 2 * least + size / SLOWEST_DISK


def _probe(base: Any) -> str:
    """Why trees cannot be verified on this base, or "". Needs the base before its weights are packed."""
    from decoding.probe import probe

    try:
        probe(base)
    except Unsupported as error:
        return str(error)
    return ""


def default_budget(device: str) -> int:
    """Half of the memory of the machine or container (`cpu`), or 70 % of the GPU's."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory * 0.7)
    return memory()[1] // 2


def _needed_bytes(folder: str, itemsize: int) -> int:
    """Bytes a model will take: its weights, and the cache it gets with its first answer."""
    from models.identity import read_json
    from serving.sizes import cache_bytes

    cache = cache_bytes(read_json(Path(folder) / "config.json"), MAX_CONTEXT, itemsize)
    return _weight_count(folder) * itemsize + cache


def _weight_count(folder: str) -> int:
    """Numbers in the safetensors in `folder`, from their headers. Raises NotFound when there are none."""
    from safetensors import SafetensorError, safe_open

    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise NotFound(f"{folder} holds no safetensors file any more; bring the model here again.")
    count = 0
    try:
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                count += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise Unavailable(f"{folder}: its weights cannot be read ({error}).") from None
    return count


def _free(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()

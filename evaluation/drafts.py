"""Drafts for replay, with a target that returns recorded tokens; only drafts without hidden states need no base."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoding.drafters import make_drafter
from decoding.drafters.base import Drafter
from decoding.drafters.ngram import NgramDrafter
from decoding.drafters.standalone import StandaloneDrafter
from decoding.recorded import ForcedTarget, RecordedTarget, UnloadedBase, forced_target
from decoding.target import fast_target
from decoding.tree import chain_shape, shape_from_choices
from decoding.tuning import measure_forward
from evaluation.costs import Costs
from evaluation.machine import describe_machine
from models.base import LoadedBase, decoding_dtype, load_base, load_tokenizer, read_eos_ids
from models.checkpoints import is_checkpoint
from speculoos.errors import BadInput

MAX_LENGTH = 4096
ROUNDS = 5


@dataclass(frozen=True)
class Opened:
    """A target, and `make`, which creates a drafter for each recording."""

    target: ForcedTarget | RecordedTarget
    make: Callable[[], Drafter]

    def costs(self) -> Costs | None:
        """Measured costs of the base's forwards at the length of the last recording; None without a base."""
        if not isinstance(self.target, ForcedTarget) or not self.target.ids:
            return None
        forward = measure_forward(self.target, rounds=ROUNDS)
        return Costs({1: forward}, machine=describe_machine(self.target.base.device)) if forward else None


def open_with_base(base: LoadedBase, draft: Any, options: dict[str, Any]) -> Opened:
    """A draft with its base model."""
    target = forced_target(base, MAX_LENGTH)
    return Opened(target, lambda: make_drafter(target, draft, options))


def open_small_model(folder: Path, options: dict[str, Any], dtype: str = "float32", device: str = "cpu") -> Opened:
    """A small model with the same tokenizer as the recorded model, without that model."""
    if is_checkpoint(folder):
        raise BadInput(f"{folder}: is a checkpoint made for a base; give BASE@CHECKPOINT, or a model's folder.")
    model = load_base(folder, decoding_dtype(dtype, device), device)
    _check(options, ("depth", "tree"))
    tree = options.get("tree")
    shape = shape_from_choices(tree) if tree else chain_shape(int(options.get("depth", 4)))
    target = fast_target(model, MAX_LENGTH)
    reader = UnloadedBase(model.tokenizer, model.eos_ids, model.vocab_size)
    return Opened(RecordedTarget(reader, target.max_length), lambda: StandaloneDrafter(target, shape, model.vocab_size))


def open_prompt_lookup(folder: Path, options: dict[str, Any]) -> Opened:
    """Prompt lookup, which needs only a tokenizer."""
    tokenizer = load_tokenizer(folder)
    reader = UnloadedBase(tokenizer, read_eos_ids(folder, tokenizer), len(tokenizer))
    lookup = {name: value for name, value in options.items() if name != "drafter"}
    _check(lookup, ("depth", "width", "max_ngram", "min_ngram"))
    return Opened(RecordedTarget(reader, MAX_LENGTH), lambda: NgramDrafter(**lookup))


def _check(options: dict[str, Any], known: tuple[str, ...]) -> None:
    if unknown := set(options) - set(known):
        raise BadInput(f"--set {sorted(unknown)[0]}: this draft takes {', '.join(known)}.")
    for name, value in options.items():
        if name != "tree" and (type(value) is not int or not 1 <= value <= 1024):
            raise BadInput(f"--set {name}: expected a whole number from 1 to 1024, got {value!r}.")

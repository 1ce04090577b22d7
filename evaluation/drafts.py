"""A draft with a target that says what was recorded: with its base, or alone where it needs no hidden states."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoding.drafters import make_drafter
from decoding.drafters.base import Drafter
from decoding.drafters.ngram import NgramDrafter
from decoding.drafters.standalone import StandaloneDrafter
from decoding.recorded import ForcedTarget, Reader, RecordedTarget, forced_target
from decoding.target import fast_target
from decoding.tree import chain_shape, shape_from_choices
from decoding.tuning import measure_forward
from evaluation.costs import Costs
from evaluation.machine import describe_machine
from models.base import Base, decoding_dtype, load_base, load_tokenizer, read_eos_ids
from models.checkpoints import is_checkpoint
from speculoos.errors import BadInput

MAX_LENGTH = 4096
ROUNDS = 5


@dataclass(frozen=True)
class Opened:
    """`make` gives a new drafter for each recording."""

    target: ForcedTarget | RecordedTarget
    make: Callable[[], Drafter]

    def costs(self) -> Costs | None:
        """What forwards of the base cost here, where it is here, at the length of the last recording."""
        if not isinstance(self.target, ForcedTarget) or not self.target.ids:
            return None
        forward = measure_forward(self.target, rounds=ROUNDS)
        return Costs({1: forward}, machine=describe_machine(self.target.base.device)) if forward else None


def open_draft(
    *,
    base: Base | None = None,
    draft: Any = None,
    folder: Path | None = None,
    tokenizer: Path | None = None,
    options: dict[str, Any] | None = None,
    dtype: str = "float32",
    device: str = "cpu",
) -> Opened:
    """`base` with its `draft`; or a small model's `folder`; or, for prompt lookup, the folder of a `tokenizer`."""
    options = dict(options or {})
    if base is not None:
        target = forced_target(base, MAX_LENGTH)
        return Opened(target, lambda: make_drafter(target, draft, options))
    if folder is not None:
        return _alone(folder, options, dtype, device)
    found = load_tokenizer(tokenizer)
    reader = Reader(found, read_eos_ids(tokenizer, found), len(found))
    options.pop("drafter", None)
    _check(options, ("depth", "width", "max_ngram", "min_ngram"))
    return Opened(RecordedTarget(reader, MAX_LENGTH), lambda: NgramDrafter(**options))


def _alone(folder: Path, options: dict[str, Any], dtype: str, device: str) -> Opened:
    """A small model that shares the tokens of whoever wrote the recording."""
    if is_checkpoint(folder):
        raise BadInput(f"{folder}: is a checkpoint made for a base; give BASE@CHECKPOINT, or a model's folder.")
    small = load_base(folder, decoding_dtype(dtype, device), device)
    _check(options, ("depth", "tree"))
    tree = options.get("tree")
    shape = shape_from_choices(tree) if tree else chain_shape(int(options.get("depth", 4)))
    own = fast_target(small, MAX_LENGTH)
    reader = Reader(small.tokenizer, small.eos_ids, small.vocab_size)
    return Opened(RecordedTarget(reader, own.max_length), lambda: StandaloneDrafter(own, shape, small.vocab_size))


def _check(options: dict[str, Any], known: tuple[str, ...]) -> None:
    if wrong := set(options) - set(known):
        raise BadInput(f"--set {sorted(wrong)[0]}: this draft takes {', '.join(known)}.")
    for name, value in options.items():
        if name != "tree" and (type(value) is not int or not 1 <= value <= 1024):
            raise BadInput(f"--set {name}: expected a whole number from 1 to 1024, got {value!r}.")

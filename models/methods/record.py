"""Description of a drafting method: names, settings, sizes, and the classes of its network, trainer and drafter. No
torch: classes are given as `module:Name` and imported when needed."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.methods.settings import TrainConfig


@dataclass(frozen=True)
class DraftSize:
    """Cost of a draft, for estimates. `parameters`: trained; `active_parameters`: used per token and pass; passes of
    the network per training step and per evaluation; `features`: hidden states of the base stored per token."""

    parameters: float
    active_parameters: float
    passes_per_step: int = 1
    features: int = 1
    passes_per_evaluation: int = 1


@dataclass(frozen=True)
class Method:
    """A drafting method. `docs/architecture.md` describes the interface of each part."""

    name: str
    """Used in files, rows and requests: `eagle3`."""
    title: str
    """Shown on pages: `EAGLE-3`."""
    noun: str
    """Name of a checkpoint of this method: `EAGLE-3 draft`."""
    about: str
    network: str
    trainer: str
    drafter: str
    """Module with `make(target, draft, options)` and `tuning(draft)` (decoding/drafters/)."""
    drafting: tuple[str, ...]
    config: type[TrainConfig]
    size: Callable[[float, int, Any], DraftSize]
    """(hidden size and vocabulary of the base, settings) → cost of the draft."""
    shares_hidden_size: bool = True
    """Whether the draft has the hidden size of its base; false for a model that shares only the vocabulary."""
    check: Callable[[Mapping[str, Any], Any], None] | None = None
    """(card of the base, settings): raises BadInput when they do not match."""

    def load(self, part: str) -> Any:
        """Import the class or module of `part`: network, trainer or drafter."""
        module, _, name = getattr(self, part).partition(":")
        imported = importlib.import_module(module)
        return getattr(imported, name) if name else imported

"""What is known of a drafting method before anything of it is loaded: names, words, settings, sizes, and where its
network, trainer and drafter are. No torch: classes are named as `module:Name` and imported when they are needed.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.methods.settings import TrainConfig


@dataclass(frozen=True)
class DraftSize:
    """What a draft costs, for estimates. `parameters` are trained; a token passes `multiplied` of them in each of the
    `passes` of a training step and of the `measured` ones of a measurement, and `features` hidden states of the base
    are kept for it."""

    parameters: float
    multiplied: float
    passes: int = 1
    features: int = 1
    measured: int = 1


@dataclass(frozen=True)
class Method:
    """One drafting method. `docs/architecture.md` says what each part has to offer."""

    name: str
    """In files, rows and requests: `eagle3`."""
    title: str
    """On pages: `EAGLE-3`."""
    noun: str
    """What a checkpoint of it is: `EAGLE-3 draft`."""
    about: str
    """One line of trade-offs."""
    network: str
    """The draft network (models/)."""
    trainer: str
    """The network with its loss (training/)."""
    drafter: str
    """Module with `make(target, draft, options)` and `tuning(draft)` (decoding/drafters/)."""
    drafting: tuple[str, ...]
    """Options its drafter takes."""
    config: type[TrainConfig]
    """Its training settings."""
    size: Callable[[float, int, Any], DraftSize]
    """(hidden size and vocabulary of the base, settings) → what the draft costs."""
    shares_hidden_size: bool = True
    """Whether the draft is as wide as its base: false for a model that shares only the tokens."""
    check: Callable[[Mapping[str, Any], Any], None] | None = None
    """(a base's card, settings): raises BadInput where the two do not fit together."""

    def load(self, part: str) -> Any:
        """The class or module that `network`, `trainer` or `drafter` names."""
        module, _, name = getattr(self, part).partition(":")
        imported = importlib.import_module(module)
        return getattr(imported, name) if name else imported

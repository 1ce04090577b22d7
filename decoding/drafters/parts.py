"""Shared by the modules of all drafters: limits, tuning space, checks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from decoding.target import Target
from models.runtime.forward import FastForward
from speculoos.errors import BadInput

MAX_OPTION = 1024
"""Largest value of a drafter's numeric option."""
MAX_TUNING_DEPTH = 5
WIDEST_TREE = {"top_k": 4, "nodes": 32}
"""The widest tuned tree; its traces also give the results of narrower trees."""


@dataclass(frozen=True)
class TuningSpace:
    """The tunable options of a kind of draft: its greatest depth, and the drafter's options for a depth."""

    deepest: int
    at_depth: Callable[[int], dict[str, Any]]
    dynamic: bool = False


def check_columns(ranks: Sequence[int], columns: int) -> None:
    """Raise BadInput for ranks beyond the draft's vocabulary size `columns`."""
    if max(ranks, default=0) >= columns:
        raise BadInput(
            f"The tree needs the {max(ranks) + 1} best tokens, but this draft has {columns}; use a narrower tree."
        )


def is_fast(target: Target) -> bool:
    """Whether the target uses the fast runtime, so that the draft can use it too."""
    return isinstance(target.forward, FastForward)

"""What the makers of drafters share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from decoding.target import Target
from models.runtime.forward import FastForward
from speculoos.errors import BadInput

LARGEST = 1024
"""Choices and ranks of a tree, and any other count."""
DEEPEST = 5
WIDE = {"top_k": 4, "nodes": 32}
"""The widest tree whose traces tell what narrower ones would give."""


@dataclass(frozen=True)
class TuningSpace:
    """What can be tuned about a kind of draft: its widest setting, and the options of a given depth."""

    deepest: int
    at_depth: Callable[[int], dict[str, Any]]
    dynamic: bool = False


def check_columns(ranks: Sequence[int], columns: int) -> None:
    """Raises BadInput for ranks beyond the tokens a draft knows."""
    if max(ranks, default=0) >= columns:
        raise BadInput(
            f"The tree asks for the {max(ranks) + 1} best tokens and this draft knows {columns}; use a narrower one."
        )


def is_fast(target: Target) -> bool:
    """Whether the target runs on our own forward, so that the draft may too."""
    return isinstance(target.forward, FastForward)

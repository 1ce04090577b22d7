"""What a generation is asked to do, checked as it is made. No torch here."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from speculoos.errors import BadInput


@dataclass(frozen=True)
class GenerateConfig:
    """Settings of one generation. Raises BadInput with the name of the field that is wrong."""

    max_tokens: int = 128
    """Most new tokens, end-of-turn included."""
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """Sample among the k likeliest; 0 means all."""
    top_p: float = 1.0
    """Sample among the likeliest that hold this much of the mass."""
    seed: int | None = None
    """Same seed, same tokens; None draws one."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it."""
    eos_ids: frozenset[int] | None = None
    """Ids that end the answer; None takes the base's; an empty set never stops."""
    acceptance: Literal["exact", "typical"] = "exact"
    """exact keeps the base's distribution; typical is Medusa's rule, which is lossy."""
    epsilon: float = 0.09
    """Typical acceptance: highest threshold."""
    alpha: float = 0.3
    """Typical acceptance: share of exp(-entropy)."""
    probabilities: bool = False
    """Record what the base gave every drafted token too. Its logits are then computed where greedy decoding would
    leave them out, which takes time; what is emitted stays the same."""
    should_stop: Callable[[], bool] | None = None
    """Asked between steps; True ends the generation as cancelled."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()))
        _need(self.max_tokens >= 1, "max_tokens", "1 or more", self.max_tokens)
        _need(0 <= self.temperature < math.inf, "temperature", "0 or more", self.temperature)
        _need(self.top_k >= 0, "top_k", "0 or more", self.top_k)
        _need(0 < self.top_p <= 1, "top_p", "more than 0 and at most 1", self.top_p)
        _need(self.seed is None or -(2**63) <= self.seed < 2**63, "seed", "a number of 64 bits", self.seed)
        _need(all(self.stop), "stop", "texts that are not empty", "an empty one")
        _need(self.acceptance in ("exact", "typical"), "acceptance", "exact or typical (lossy)", self.acceptance)
        _need(0 < self.epsilon <= 1, "epsilon", "more than 0 and at most 1", self.epsilon)
        _need(0 < self.alpha <= 1, "alpha", "more than 0 and at most 1", self.alpha)


def _need(holds: bool, name: str, expected: str, got: object) -> None:
    if not holds:
        raise BadInput(f"{name}: expected {expected}, got {got}.")

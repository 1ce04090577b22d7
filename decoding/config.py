"""Settings of a generation, validated when they are created. No torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from speculoos.errors import BadInput


@dataclass(frozen=True)
class GenerateConfig:
    """Settings of one generation. Raises BadInput with the name of an invalid field."""

    max_tokens: int = 128  # largest number of new tokens, including end-of-turn
    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # sample from the k likeliest tokens; 0 means all
    top_p: float = 1.0  # sample from the smallest set of likeliest tokens with this probability mass
    seed: int | None = None  # the same seed gives the same tokens; None draws a seed
    stop: tuple[str, ...] = ()  # stop texts: they end the response and are not part of it
    eos_ids: frozenset[int] | None = None  # token ids that end the response; None: the base model's; an empty set: none
    acceptance: Literal["exact", "typical"] = "exact"
    """exact keeps the base model's distribution; typical is Medusa's rule, which is lossy."""
    epsilon: float = 0.09  # typical acceptance: largest threshold
    alpha: float = 0.3  # typical acceptance: factor of exp(-entropy)
    probabilities: bool = False
    """Also record the base model's probability of every draft token. This computes logits that greedy decoding does not
    need, so it takes longer; the emitted tokens stay the same."""
    should_stop: Callable[[], bool] | None = None  # called between steps; True ends the generation as cancelled

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()))
        for valid, name, expected in (
            (self.max_tokens >= 1, "max_tokens", "1 or more"),
            (0 <= self.temperature < math.inf, "temperature", "0 or more"),
            (self.top_k >= 0, "top_k", "0 or more"),
            (0 < self.top_p <= 1, "top_p", "more than 0 and at most 1"),
            (self.seed is None or -(2**63) <= self.seed < 2**63, "seed", "a 64-bit integer"),
            (all(self.stop), "stop", "texts that are not empty"),
            (self.acceptance in ("exact", "typical"), "acceptance", "exact or typical (lossy)"),
            (0 < self.epsilon <= 1, "epsilon", "more than 0 and at most 1"),
            (0 < self.alpha <= 1, "alpha", "more than 0 and at most 1"),
        ):
            if not valid:
                raise BadInput(f"{name}: expected {expected}, got {getattr(self, name)}.")

"""Plain decoding speeds that a speedup may be counted against: those of answers made under the same conditions.

Speeds here leave the prefill out, on both sides: tokens after the first, over the time of the steps that made them.
"""

import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from speculoos.other_work import alike

ENOUGH_TOKENS = 16
KEPT = 16
"""Plain answers of a base that are remembered."""
RECENT_SECONDS = 600.0
LENGTHS = 1.25
"""How many times as long one text may be as the other."""
SHORT = 64
"""Tokens by which lengths may differ anyhow: a plain step's time hardly depends on them."""


@dataclass(frozen=True)
class Conditions:
    """What a decoding speed depends on, besides the base: the prompt, how much text there was when the middle token
    was made, the job that held the device, and the share of the machine that others used."""

    prompt: int
    length: float
    shared_with: str = ""
    other_load: float | None = None

    @classmethod
    def of(
        cls, prompt_ids: Sequence[int], steps: Sequence[Any], shared_with: str, other_load: float | None
    ) -> "Conditions":
        """Of an answer to `prompt_ids`."""
        return cls(hash(tuple(prompt_ids)), len(prompt_ids) + _tokens(steps) / 2, shared_with, other_load)

    def are_like(self, other: "Conditions") -> bool:
        """The same load, and the same prompt or a text of the same length."""
        same_load = self.shared_with == other.shared_with and alike(self.other_load, other.other_load)
        return same_load and (self.prompt == other.prompt or _close(self.length, other.length))


@dataclass(frozen=True)
class PlainSpeed:
    """A plain answer's speed. `at` is a reading of the monotonic clock."""

    tokens_per_second: float
    tokens: int
    conditions: Conditions
    at: float

    def to_json(self, conditions: Conditions) -> dict[str, Any]:
        """As it stands in the summary of an answer under `conditions`."""
        same = self.conditions.prompt == conditions.prompt
        shared = self.conditions.shared_with
        return {"source": "plain run", "same_prompt": same, "tokens": self.tokens, "shared_with": shared}


class PlainBaselines:
    """The last plain answers of each base. A speedup is only said against one under the same conditions; where there
    is none, none is said."""

    def __init__(self) -> None:
        self._speeds: dict[Hashable, deque[PlainSpeed]] = {}

    def offer(self, key: Hashable, steps: Sequence[Any], conditions: Conditions) -> None:
        """Take a plain answer as a reference when it is long enough."""
        speed, tokens = decode_speed(steps), _tokens(steps)
        if speed and tokens >= ENOUGH_TOKENS:
            kept = self._speeds.setdefault(key, deque(maxlen=KEPT))
            kept.append(PlainSpeed(speed, tokens, conditions, time.monotonic()))

    def compare(self, key: Hashable, steps: Sequence[Any], conditions: Conditions) -> dict[str, Any]:
        """`decode_tokens_per_second` and, where a plain answer under the same conditions is known,
        `plain_tokens_per_second`, `plain_reference` and `speedup`."""
        own, reference = decode_speed(steps), self._reference(key, conditions)
        figures: dict[str, Any] = {"decode_tokens_per_second": own and round(own, 2)}
        if reference and own:
            figures["plain_tokens_per_second"] = round(reference.tokens_per_second, 2)
            figures["plain_reference"] = reference.to_json(conditions)
            figures["speedup"] = round(own / reference.tokens_per_second, 3)
        return figures

    def _reference(self, key: Hashable, conditions: Conditions) -> PlainSpeed | None:
        """The last one of the same prompt, else the last one of the same length."""
        since = time.monotonic() - RECENT_SECONDS
        fitting = [s for s in self._speeds.get(key, ()) if s.at >= since and s.conditions.are_like(conditions)]
        return max(fitting, key=lambda s: (s.conditions.prompt == conditions.prompt, s.at), default=None)


def decode_speed(steps: Sequence[Any]) -> float | None:
    """Tokens per second of the steps after the prefill; None when there are none."""
    later = [step for step in steps if step.kind != "prefill"]
    seconds = sum(step.ms_draft + step.ms_verify + step.ms_other for step in later) / 1000
    return _tokens(steps) / seconds if _tokens(steps) and seconds > 0 else None


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= SHORT or max(one, other) <= LENGTHS * min(one, other)


def _tokens(steps: Sequence[Any]) -> int:
    return sum(len(step.tokens) for step in steps if step.kind != "prefill")

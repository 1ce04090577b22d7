"""Plain decoding speeds as baselines of speedups. A baseline must have been measured under the same conditions.

Speeds exclude the prefill: tokens after the first, divided by the time of the steps that emitted them.
"""

import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from speculoos.cpu_load import are_loads_comparable

MIN_TOKENS = 16
MAX_BASELINES = 16  # number of plain speeds kept per base model
RECENT_SECONDS = 600.0
MAX_LENGTH_RATIO = 1.25  # texts whose lengths differ by at most this factor count as equally long
MAX_LENGTH_DIFFERENCE = 64
"""Tokens by which lengths may always differ, because they hardly change the time of a plain step."""


@dataclass(frozen=True)
class Conditions:
    """Conditions of a speed measurement: hash of the prompt ids, text length in tokens at the middle of the response,
    job that held the device, and share of the machine used by other programs."""

    prompt: int
    length: float
    shared_with: str = ""
    other_load: float | None = None

    @classmethod
    def of(
        cls, prompt_ids: Sequence[int], steps: Sequence[Any], shared_with: str, other_load: float | None
    ) -> "Conditions":
        return cls(hash(tuple(prompt_ids)), len(prompt_ids) + _tokens(steps) / 2, shared_with, other_load)

    def are_like(self, other: "Conditions") -> bool:
        """Whether the load is the same, and either the prompt or (about) the text length."""
        if self.shared_with != other.shared_with or not are_loads_comparable(self.other_load, other.other_load):
            return False
        shorter, longer = sorted((self.length, other.length))
        close = longer - shorter <= MAX_LENGTH_DIFFERENCE or longer <= MAX_LENGTH_RATIO * shorter
        return close or self.prompt == other.prompt


class PlainSpeed(NamedTuple):
    tokens_per_second: float
    tokens: int
    conditions: Conditions
    at: float  # monotonic time


class PlainBaselines:
    """The last plain speeds of each base model. A speedup is reported only against one under the same conditions."""

    def __init__(self) -> None:
        self._speeds: dict[Hashable, deque[PlainSpeed]] = {}

    def offer(self, key: Hashable, steps: Sequence[Any], conditions: Conditions) -> None:
        """Add the speed of a plain generation if it is long enough."""
        speed, tokens = _decode_speed(steps), _tokens(steps)
        if speed and tokens >= MIN_TOKENS:
            speeds = self._speeds.setdefault(key, deque(maxlen=MAX_BASELINES))
            speeds.append(PlainSpeed(speed, tokens, conditions, time.monotonic()))

    def compare(self, key: Hashable, steps: Sequence[Any], conditions: Conditions) -> dict[str, Any]:
        """`decode_tokens_per_second` and, with a baseline, plain tokens per second, its source and `speedup`. The
        baseline is the last speed with the same prompt, else the last with about the same length."""
        speed, since = _decode_speed(steps), time.monotonic() - RECENT_SECONDS
        figures: dict[str, Any] = {"decode_tokens_per_second": speed and round(speed, 2)}
        speeds = [s for s in self._speeds.get(key, ()) if s.at >= since and s.conditions.are_like(conditions)]
        if speeds and speed:
            plain = max(speeds, key=lambda s: (s.conditions.prompt == conditions.prompt, s.at))
            figures["plain_tokens_per_second"] = round(plain.tokens_per_second, 2)
            figures["plain_reference"] = {
                "source": "plain run",
                "same_prompt": plain.conditions.prompt == conditions.prompt,
                "tokens": plain.tokens,
                "shared_with": plain.conditions.shared_with,
            }
            figures["speedup"] = round(speed / plain.tokens_per_second, 3)
        return figures


def _decode_speed(steps: Sequence[Any]) -> float | None:
    later = [step for step in steps if step.kind != "prefill"]
    seconds = sum(step.ms_draft + step.ms_verify + step.ms_other for step in later) / 1000
    return _tokens(steps) / seconds if _tokens(steps) and seconds > 0 else None


def _tokens(steps: Sequence[Any]) -> int:
    return sum(len(step.tokens) for step in steps if step.kind != "prefill")

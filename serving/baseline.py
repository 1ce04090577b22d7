"""Plain decoding speed of a base on this machine: what a speedup is measured against, and where it comes from.

Speeds here leave the prefill out, on both sides: tokens after the first, over the time of the steps that made them.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

PROMPT = "Write a long story about a lighthouse keeper who learns to sail."
WARM_UP_TOKENS = 4
TOKENS = 32
MAX_SECONDS = 3.0
ENOUGH_TOKENS = 16


@dataclass(frozen=True)
class PlainSpeed:
    """`source`: "short run" (of our own, after loading) or "plain run" (the user's last one, or a plain column)."""

    tokens_per_second: float
    tokens: int
    source: str
    shared_with: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source, "tokens": self.tokens, "shared_with": self.shared_with}


class PlainBaselines:
    """The last plain measurement of each base, apart for a device of its own and for one shared with a job: a speedup
    is only said between two figures that were taken under the same conditions."""

    def __init__(self) -> None:
        self._speeds: dict[tuple[Hashable, str], PlainSpeed] = {}

    def is_missing(self, key: Hashable, shared_with: str) -> bool:
        """True when a short run is worth its time: the device is free and this base was not measured yet."""
        return not shared_with and (key, "") not in self._speeds

    def measure(self, key: Hashable, target: Any, beat: Callable[[], None] = lambda: None) -> None:
        """Decode TOKENS plain tokens, MAX_SECONDS long at most, after a few to warm up. Empties the target's cache.
        `beat` is called between steps."""
        target.rewind(0)
        for _ in _plain_steps(target, WARM_UP_TOKENS):
            beat()
        target.rewind(0)
        deadline = time.monotonic() + MAX_SECONDS
        steps = []
        for step in _plain_steps(target, TOKENS):
            steps.append(step)
            beat()
            if time.monotonic() > deadline:
                break
        target.rewind(0)
        self._keep(key, steps, "short run", "")

    def offer(self, key: Hashable, steps: Sequence[Any], shared_with: str) -> None:
        """Take a user's plain run as the reference when it is long enough."""
        if _tokens(steps) >= ENOUGH_TOKENS:
            self._keep(key, steps, "plain run", shared_with)

    def compare(self, key: Hashable, steps: Sequence[Any], shared_with: str) -> dict[str, Any]:
        """`decode_tokens_per_second` and, where a plain run under the same conditions is known,
        `plain_tokens_per_second`, `plain_reference` and `speedup`."""
        own, baseline = decode_speed(steps), self._speeds.get((key, shared_with))
        figures: dict[str, Any] = {"decode_tokens_per_second": own and round(own, 2)}
        if baseline:
            figures["plain_tokens_per_second"] = round(baseline.tokens_per_second, 2)
            figures["plain_reference"] = baseline.to_json()
        if baseline and own:
            figures["speedup"] = round(own / baseline.tokens_per_second, 3)
        return figures

    def _keep(self, key: Hashable, steps: Sequence[Any], source: str, shared_with: str) -> None:
        if speed := decode_speed(steps):
            self._speeds[key, shared_with] = PlainSpeed(speed, _tokens(steps), source, shared_with)


def decode_speed(steps: Sequence[Any]) -> float | None:
    """Tokens per second of the steps after the prefill; None when there are none."""
    later = [step for step in steps if step.kind != "prefill"]
    seconds = sum(step.ms_draft + step.ms_verify + step.ms_other for step in later) / 1000
    return _tokens(steps) / seconds if _tokens(steps) and seconds > 0 else None


def _tokens(steps: Sequence[Any]) -> int:
    return sum(len(step.tokens) for step in steps if step.kind != "prefill")


def _plain_steps(target: Any, count: int) -> Any:
    from decoding.config import GenerateConfig
    from decoding.drafters import make_drafter
    from decoding.generate import generate

    prompt = target.base.tokenizer(PROMPT)["input_ids"][: target.max_length - count - 1]
    config = GenerateConfig(max_tokens=count, eos_ids=frozenset())
    return generate(target, make_drafter(target, None, {"drafter": "none"}), prompt, config)

"""Loads of a server: numbers of concurrent requests at which it was measured (`evaluation.load`)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

MAX_CONCURRENCY = 256
ROUNDS = 4


def requests_at(load: int, prompts: int) -> int:
    """Number of requests per side: every prompt once, and at least `load` in each of the ROUNDS rounds."""
    return ROUNDS * max(load, math.ceil(prompts / ROUNDS))


def stops_paying_at(loads: Sequence[Mapping[str, Any]]) -> int | None:
    """The lowest load that was measured to be slower with the draft: the whole interval of its speedup is below 1. None
    without one; loads between those measured are not estimated."""
    slower = (load["concurrency"] for load in loads if load.get("speedup_interval") and load["speedup_interval"][1] < 1)
    return min(slower, default=None)


def undecided(loads: Sequence[Mapping[str, Any]]) -> list[int]:
    """The loads whose interval of the speedup contains 1."""
    between = [(load["concurrency"], load.get("speedup_interval")) for load in loads]
    return [concurrency for concurrency, ends in between if ends and ends[0] <= 1 <= ends[1]]


def verdict(loads: Sequence[Mapping[str, Any]]) -> str:
    """When the draft pays, in English; "" if no speedup was measured."""
    compared = [load["concurrency"] for load in loads if load.get("speedup_interval")]
    slower, open_loads = stops_paying_at(loads), ", ".join(map(str, undecided(loads)))
    if not compared:
        return ""
    if slower:
        return (
            f"Decoding with the draft is slower at {slower} concurrent requests: the whole interval of the speedup is "
            "below 1."
        )
    if open_loads:
        return (
            f"No load tried is measurably slower with the draft; at {open_loads} concurrent requests the interval "
            "contains 1."
        )
    return "Decoding with the draft is faster at every load tried."

"""What a static tree is expected to give: τ from the acceptance of each place, speed from what steps cost.

A node is accepted when all on its path are: its chance is the product of the shares with which its rank was the
accepted one at its depth (the estimate by which Cai et al. 2024, Medusa, section 2.3.3, grow trees; Chen et al. 2024,
Sequoia, section 3, call the shares positional acceptance). Places count as independent, which they are not quite: a
tree that was measured as a whole (decoding.tuning) is known better. Plain numbers only.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.methods.trees import nodes

Path = tuple[int, ...]
LARGEST = 64
"""Nodes with the root of a tree that is looked for."""


@dataclass(frozen=True)
class Measured:
    """What trees are reckoned from. `by_rank[d][r]`: how often rank r was the accepted one at depth d + 1, None where
    it was not drafted; `forward_ms` by nodes with the root, `draft_ms[d]` of drafting to depth d + 1; both empty where
    nothing was timed."""

    by_rank: tuple[tuple[float | None, ...], ...]
    forward_ms: Mapping[int, float]
    draft_ms: tuple[float, ...]
    other_ms: float = 0.0

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Measured | None":
        """Of a tuning's finding, or an evaluation's `acceptance_by_rank` alone; None where neither is there."""
        shares = found.get("by_rank") or found.get("acceptance_by_rank")
        if not isinstance(shares, list) or not shares:
            return None
        costs = {int(size): float(ms) for size, ms in (found.get("forward_ms") or {}).items()}
        drafting = tuple(map(float, found.get("draft_ms") or ()))
        return cls(tuple(map(tuple, shares)), costs, drafting, float(found.get("other_ms") or 0.0))

    def share(self, depth: int, rank: int) -> float | None:
        """At `depth`, counted from 1; None where it was not measured."""
        ranks = self.by_rank[depth - 1] if depth <= len(self.by_rank) else ()
        return ranks[rank] if rank < len(ranks) else None

    def step_ms(self, size: int, depth: int) -> float | None:
        """A step with `size` nodes and the root; None where nothing like it was timed."""
        if not self.forward_ms or size > max(self.forward_ms) or (depth and not self.draft_ms):
            return None
        return interpolate(self.forward_ms, size) + (_line(self.draft_ms, depth) if depth else 0.0) + self.other_ms


@dataclass(frozen=True)
class Expected:
    """Of one tree: its nodes in order with the chance of each, τ, milliseconds a step and speed against plain (None
    where that was not measured), and how many nodes nothing is known of: they count as never accepted."""

    chances: dict[Path, float]
    tau: float
    step_ms: float | None
    speedup: float | None
    unknown: int


def expected(tree: Sequence[Sequence[int]], measured: Measured) -> Expected:
    """Of a tree as `models.methods.trees.parse` gives it."""
    chances: dict[Path, float] = {(): 1.0}
    unknown = 0
    for path in sorted(nodes(tree), key=lambda path: (len(path), path)):
        share = measured.share(len(path), path[-1])
        unknown += share is None
        chances[path] = chances[path[:-1]] * (share or 0.0)
    tau = sum(chances.values())
    step = measured.step_ms(len(chances), max(map(len, chances)))
    plain = measured.step_ms(1, 0)
    del chances[()]
    return Expected(chances, tau, step, tau * plain / step if step and plain else None, unknown)


def suggested(measured: Measured) -> list[list[int]]:
    """The tree with the most expected tokens a second; where nothing was timed, the 16 likeliest nodes."""
    timed, best, tree = bool(measured.forward_ms), 0.0, [[0]]
    for depth in range(1, len(measured.by_rank) + 1):
        chosen: list[Path] = []
        for path in _likeliest(measured, depth):
            chosen.append(path)
            found = expected(chosen, measured)
            worth = found.speedup if timed else found.tau if len(chosen) <= 16 else None
            if worth is not None and worth > best:
                best, tree = worth, [list(each) for each in chosen]
    return sorted(tree, key=lambda path: (len(path), path))


def _likeliest(measured: Measured, deepest: int) -> list[Path]:
    """Nodes no deeper than that, the likeliest first: a child is never likelier than its parent, so none comes before
    it."""
    waiting = [(-1.0, 0, ())]
    found: list[Path] = []
    while waiting and len(found) < LARGEST:
        chance, depth, path = heapq.heappop(waiting)
        if path:
            found.append(path)
        if depth < deepest:
            shares = enumerate(measured.by_rank[depth])
            children = ((chance * share, depth + 1, (*path, rank)) for rank, share in shares if share)
            for child in children:
                heapq.heappush(waiting, child)
    return found


def rising(costs: Mapping[int, float]) -> dict[int, float]:
    """Measured milliseconds by amount of work, so that more work never costs less.

    Other programs only add time, so what a larger amount took bounds the smaller ones from above: each becomes the
    least of itself and all larger ones. With such costs no expected speedup exceeds the expected τ.
    """
    least, found = float("inf"), {}
    for amount in sorted(costs, reverse=True):
        least = min(least, costs[amount])
        found[amount] = least
    return dict(sorted(found.items()))


def interpolate(points: Mapping[int, float], at: int) -> float:
    """Piecewise linear through `points`, level beyond its ends."""
    low = max((n for n in points if n <= at), default=min(points))
    high = min((n for n in points if n >= at), default=max(points))
    share = (at - low) / (high - low) if high > low else 0.0
    return points[low] + share * (points[high] - points[low])


def _line(values: Sequence[float], depth: int) -> float:
    """values[depth - 1]; beyond their end as the last step goes on."""
    if depth <= len(values):
        return values[depth - 1]
    slope = values[-1] - values[-2] if len(values) > 1 else 0.0
    return values[-1] + slope * (depth - len(values))

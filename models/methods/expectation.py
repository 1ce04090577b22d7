"""Expected accepted length τ and speedup of a static tree, from acceptance rates by depth and rank and step costs.

A node is accepted when all nodes on its path are: its probability is the product of the rates with which its rank was
accepted at its depth (the estimate by which Cai et al. 2024, Medusa, section 2.3.3, grow trees; Chen et al. 2024,
Sequoia, section 3, call the rates positional acceptance). This assumes independent positions, which is only
approximate: measuring a whole tree (decoding.tuning) is more accurate. No torch.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.methods.trees import nodes

Path = tuple[int, ...]
MAX_SUGGESTED_NODES = 64


@dataclass(frozen=True)
class TreeMeasurements:
    """Measurements for estimates. `by_rank[d][r]`: rate with which rank r was accepted at depth d + 1, None if never
    drafted; `forward_ms`: by number of nodes with the root; `draft_ms[d]`: drafting to depth d + 1; both empty without
    timings."""

    by_rank: tuple[tuple[float | None, ...], ...]
    forward_ms: Mapping[int, float]
    draft_ms: tuple[float, ...]
    other_ms: float = 0.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "TreeMeasurements | None":
        """From a tuning result or an evaluation's `acceptance_by_rank`; None without either."""
        shares = values.get("by_rank") or values.get("acceptance_by_rank")
        if not isinstance(shares, list) or not shares:
            return None
        costs = {int(size): float(ms) for size, ms in (values.get("forward_ms") or {}).items()}
        drafting = tuple(map(float, values.get("draft_ms") or ()))
        return cls(tuple(map(tuple, shares)), costs, drafting, float(values.get("other_ms") or 0.0))

    def share(self, depth: int, rank: int) -> float | None:
        """Acceptance rate of `rank` at `depth` (1-based); None if not measured."""
        ranks = self.by_rank[depth - 1] if depth <= len(self.by_rank) else ()
        return ranks[rank] if rank < len(ranks) else None

    def step_ms(self, size: int, depth: int) -> float | None:
        """Milliseconds of a step with `size` nodes including the root; None without a comparable timing."""
        if not self.forward_ms or size > max(self.forward_ms) or (depth and not self.draft_ms):
            return None
        return interpolate(self.forward_ms, size) + (_extended(self.draft_ms, depth) if depth else 0.0) + self.other_ms


@dataclass(frozen=True)
class TreeEstimate:
    """Estimates of a tree: acceptance probability of each node in order, τ, milliseconds per step and speedup over
    plain decoding (None without timings), and the number of nodes without a measured rate, which count as rejected."""

    chances: dict[Path, float]
    tau: float
    step_ms: float | None
    speedup: float | None
    unknown: int


def estimate_tree(tree: Sequence[Sequence[int]], measured: TreeMeasurements) -> TreeEstimate:
    """Estimates of a tree as returned by `models.methods.trees.parse`."""
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
    return TreeEstimate(chances, tau, step, tau * plain / step if step and plain else None, unknown)


def suggest_tree(measured: TreeMeasurements) -> list[list[int]]:
    """The tree with the highest expected speedup; without timings, the 16 most probable nodes."""
    timed, best, tree = bool(measured.forward_ms), 0.0, [[0]]
    for depth in range(1, len(measured.by_rank) + 1):
        chosen: list[Path] = []
        for path in _most_probable(measured, depth):
            chosen.append(path)
            estimate = estimate_tree(chosen, measured)
            score = estimate.speedup if timed else estimate.tau if len(chosen) <= 16 else None
            if score is not None and score > best:
                best, tree = score, [list(each) for each in chosen]
    return sorted(tree, key=lambda path: (len(path), path))


def _most_probable(measured: TreeMeasurements, max_depth: int) -> list[Path]:
    """Nodes up to `max_depth`, most probable first; a parent always comes before its children."""
    heap = [(-1.0, 0, ())]
    paths: list[Path] = []
    while heap and len(paths) < MAX_SUGGESTED_NODES:
        chance, depth, path = heapq.heappop(heap)
        if path:
            paths.append(path)
        if depth < max_depth:
            shares = enumerate(measured.by_rank[depth])
            children = ((chance * share, depth + 1, (*path, rank)) for rank, share in shares if share)
            for child in children:
                heapq.heappush(heap, child)
    return paths


def non_decreasing(costs: Mapping[int, float]) -> dict[int, float]:
    """Make milliseconds by amount of work non-decreasing: each becomes the minimum of itself and all larger ones.
    Interference only adds time, so the time of more work is an upper bound for less work. With such costs no expected
    speedup exceeds the expected τ."""
    least, result = float("inf"), {}
    for amount in sorted(costs, reverse=True):
        least = min(least, costs[amount])
        result[amount] = least
    return dict(sorted(result.items()))


def interpolate(points: Mapping[int, float], at: int) -> float:
    """Piecewise linear interpolation of `points`, constant beyond the ends."""
    low = max((n for n in points if n <= at), default=min(points))
    high = min((n for n in points if n >= at), default=max(points))
    weight = (at - low) / (high - low) if high > low else 0.0
    return points[low] + weight * (points[high] - points[low])


def _extended(values: Sequence[float], depth: int) -> float:
    """values[depth - 1], linearly extrapolated beyond the end."""
    if depth <= len(values):
        return values[depth - 1]
    slope = values[-1] - values[-2] if len(values) > 1 else 0.0
    return values[-1] + slope * (depth - len(values))

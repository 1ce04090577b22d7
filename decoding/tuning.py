"""Which tree gives the most tokens per second here: what the draft gets right, weighed against what a forward costs.

A static tree node is a tuple of ranks, (1, 0): the best token below the second best. Its value is the share of
verifications whose accepted path runs through it, read off traces of a wide tree. A tree yields 1 + the sum of its
nodes' values tokens per verification (the one is the base's own token), so for every size the best tree simply holds
the most valuable nodes: a child is never worth more than its parent, hence the choice is closed under ancestors.
Source of the greedy construction: Cai et al. 2024 (Medusa), section 2.3.3; of weighing it by hardware: Chen et al.
2024 (Sequoia), section 3.3.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from decoding.step import Step
from decoding.target import Target
from decoding.tree import DraftTree
from models.methods.expectation import interpolate

Choice = tuple[int, ...]
PLAIN_IS_FASTER = "Plain decoding is faster than any tree of this draft on this machine."
SIZES = (1, 2, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class SizePlan:
    """The best tree of one size: nodes with the root, expected τ, milliseconds a step, and speed against plain."""

    nodes: int
    depth: int
    expected_tau: float
    ms_per_step: float
    speedup: float


@dataclass(frozen=True)
class TreePlan:
    """The chosen tree and the curve it was chosen from. `nodes` (with the root) is 0 when plain decoding is faster;
    `choices` are Medusa's, empty for trees without a fixed shape."""

    nodes: int
    depth: int
    choices: tuple[Choice, ...]
    expected_tau: float
    expected_speedup: float
    sizes: tuple[SizePlan, ...]
    verdict: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def values_from_steps(steps: Iterable[Step]) -> dict[Choice, float]:
    """Share of counted verifications whose accepted path runs through each node that ever was accepted."""
    through: Counter[Choice] = Counter()
    counted = [step for step in steps if step.counted and step.kind == "verify"]
    for step in counted:
        ranks = tuple(step.drafted.ranks[node] for node in step.accepted)
        through.update(ranks[:depth] for depth in range(1, len(ranks) + 1))
    return {choice: count / len(counted) for choice, count in through.items()}


def best_choices(values: Mapping[Choice, float], nodes: int, max_depth: int | None = None) -> tuple[Choice, ...]:
    """The `nodes` - 1 most valuable nodes no deeper than `max_depth`, shallower first among equals."""
    allowed = (c for c in values if max_depth is None or len(c) <= max_depth)
    ordered = sorted(allowed, key=lambda c: (-values[c], len(c), c))
    return tuple(sorted(ordered[: nodes - 1], key=lambda c: (len(c), c)))


def expected_tau(values: Mapping[Choice, float], choices: Iterable[Choice]) -> float:
    """Tokens per verification: the base's own and those of every node on the accepted path."""
    return 1.0 + sum(values[choice] for choice in choices)


def plan_tree(
    values: Mapping[Choice, float],
    forward_ms: Mapping[int, float],
    draft_ms: Callable[[int], float],
    other_ms: float = 0.0,
    max_nodes: int = 64,
) -> TreePlan:
    """The tree with the most expected tokens per second.

    `forward_ms` by node count (interpolated between); `draft_ms(depth)` is what drafting to that depth costs;
    `other_ms` the rest of a step. Every size is tried with every depth, since deeper drafts may cost more.
    """
    plain = forward_ms[1] + other_ms
    depths = range(1, max(map(len, values), default=0) + 1)
    best: dict[int, tuple[SizePlan, tuple[Choice, ...]]] = {}
    for nodes in range(2, min(max_nodes, len(values) + 1) + 1):
        tried = [
            _size_plan(values, best_choices(values, nodes, d), forward_ms, draft_ms, other_ms, plain) for d in depths
        ]
        best[nodes] = max(tried, key=lambda pair: pair[0].speedup)
    return _verdict(list(best.values()))


def _verdict(best: Sequence[tuple[SizePlan, tuple[Choice, ...]]]) -> TreePlan:
    """The fastest of the best of each size, or plain decoding."""
    sizes = tuple(size for size, _ in best)
    if not best or max(size.speedup for size in sizes) <= 1.0:
        return TreePlan(0, 0, (), 1.0, 1.0, sizes, PLAIN_IS_FASTER)
    top, choices = max(best, key=lambda pair: pair[0].speedup)
    verdict = f"{top.nodes} nodes, depth {top.depth}: expected τ {top.expected_tau:.2f}, {top.speedup:.2f} × plain."
    return TreePlan(top.nodes, top.depth, choices, top.expected_tau, top.speedup, sizes, verdict)


def _size_plan(
    values: Mapping[Choice, float],
    choices: tuple[Choice, ...],
    forward_ms: Mapping[int, float],
    draft_ms: Callable[[int], float],
    other_ms: float,
    plain_ms: float,
) -> tuple[SizePlan, tuple[Choice, ...]]:
    nodes, depth, tau = len(choices) + 1, max(map(len, choices)), expected_tau(values, choices)
    cost = interpolate(forward_ms, nodes) + draft_ms(depth) + other_ms
    return SizePlan(nodes, depth, tau, cost, tau * plain_ms / cost), choices


def plan_dynamic(
    steps: Sequence[Step],
    forward_ms: Mapping[int, float],
    draft_ms: Callable[[int], float],
    other_ms: float = 0.0,
    sizes: Sequence[int] = SIZES,
) -> TreePlan:
    """The size and depth of EAGLE-2's dynamic tree with the most expected tokens per second, from traces of a larger
    one. `choices` stays empty: the tree has no fixed shape; its `nodes` and `depth` are those of the best of `sizes`.
    """
    plain = forward_ms[1] + other_ms
    depths = range(1, max((max(s.drafted.depths, default=0) for s in steps), default=0) + 1)
    best: dict[int, SizePlan] = {}
    for depth in depths:
        for nodes, tau in lengths_by_size(steps, sizes, depth).items():
            cost = interpolate(forward_ms, nodes) + draft_ms(depth) + other_ms
            candidate = SizePlan(nodes, depth, tau, cost, tau * plain / cost)
            if nodes > 1 and (nodes not in best or candidate.speedup > best[nodes].speedup):
                best[nodes] = candidate
    return _verdict([(size, ()) for size in best.values()])


def lengths_by_size(steps: Iterable[Step], sizes: Sequence[int], max_depth: int | None = None) -> dict[int, float]:
    """Expected τ of EAGLE-2's dynamic tree cut to each size (and depth), from traces of a larger one.

    A smaller tree holds the nodes with the best cumulative log-probability; a trace knows which of those were accepted.
    """
    counted = [step for step in steps if step.counted and step.kind == "verify"]
    totals = dict.fromkeys(sizes, 0)
    for step in counted:
        place = _places(step, max_depth)
        for size in sizes:
            totals[size] += sum(place.get(node, size) < size - 1 for node in step.accepted)
    return {size: 1.0 + total / len(counted) for size, total in totals.items()} if counted else {}


def _places(step: Step, max_depth: int | None) -> dict[int, int]:
    """Place by cumulative log-probability, 0 the best, of the nodes no deeper than `max_depth`."""
    score: list[float] = []
    for node, parent in enumerate(step.drafted.parents):
        score.append(step.drafted.logprobs[node] + (score[parent] if parent >= 0 else 0.0))
    allowed = [n for n in range(len(score)) if max_depth is None or step.drafted.depths[n] <= max_depth]
    order = sorted(allowed, key=lambda node: (-score[node], node))
    return {node: place for place, node in enumerate(order)}


def wide_choices(depth: int, nodes: int = 64, width: int = 10) -> tuple[Choice, ...]:
    """A calibration tree: the nodes most likely under a rule of thumb (rank r is right with 0.5, 0.17, 0.1, …)."""
    odds = [0.5 / (1 + 2 * rank) for rank in range(width)]
    values: dict[Choice, float] = {(): 1.0}
    level: list[Choice] = [()]
    for _ in range(depth):
        level = [(*c, r) for c in level for r in range(width)]
        values.update({c: values[c[:-1]] * odds[c[-1]] for c in level})
        level = sorted(level, key=lambda c: -values[c])[:nodes]
    del values[()]
    return best_choices(values, nodes)


def measure_forward(target: Target, sizes: Sequence[int] = SIZES, rounds: int = 7) -> dict[int, float]:
    """Median milliseconds of one greedy verification by node count, at the target's present length; sizes take turns,
    so that a disturbance hits all alike. Nodes are tokens of the text so far: nonsense makes the best token a close
    call. Leaves the cache as it was."""
    length, tokens = len(target.ids), (target.ids or [0]) * max(sizes)
    times: dict[int, list[float]] = {size: [] for size in sizes if size <= target.room}
    for _ in range(rounds):
        for size, taken in times.items():
            began = time.perf_counter()
            target.score(DraftTree.chain(tokens[:size]), best_only=True)
            target.synchronize()
            taken.append((time.perf_counter() - began) * 1e3)
            target.cache.crop(length)
    return {size: statistics.median(taken) for size, taken in times.items()}

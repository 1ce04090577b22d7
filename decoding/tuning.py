"""The tree with the most expected tokens per second on this machine, from acceptance rates and measured costs.

A node of a static tree is a tuple of ranks: (1, 0) is the best token below the second best. Its value is the share of
verifications whose accepted path contains it, from traces of a wide tree. The expected tokens per verification of a
tree are 1 (the bonus token) plus the sum of its nodes' values. For every size the best tree consists of the most
valuable nodes: a child's value is at most its parent's, so this set contains all ancestors. Source of the greedy
construction: Cai et al. 2024 (Medusa), section 2.3.3; of the hardware costs: Chen et al. 2024 (Sequoia), section 3.3.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from decoding.step import Step
from decoding.step_costs import interpolate
from decoding.target import Target
from decoding.tree import DraftTree

Choice = tuple[int, ...]
PLAIN_IS_FASTER = "Plain decoding is faster than any tree of this draft on this machine."
SIZES = (1, 2, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class SizePlan:
    """The best tree of one size: nodes including the root, and speedup over plain decoding."""

    nodes: int
    depth: int
    expected_tau: float
    speedup: float


@dataclass(frozen=True)
class TreePlan:
    """The chosen tree and the best of every size. `nodes`: 0 if plain decoding is faster; `verdict`: a sentence."""

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
    """For each node that was ever accepted, the share of counted verifications whose accepted path contains it."""
    accepted: Counter[Choice] = Counter()
    counted = [step for step in steps if step.counted and step.kind == "verify"]
    for step in counted:
        ranks = tuple(step.draft_record.ranks[node] for node in step.accepted)
        accepted.update(ranks[:depth] for depth in range(1, len(ranks) + 1))
    return {choice: count / len(counted) for choice, count in accepted.items()}


def best_choices(values: Mapping[Choice, float], nodes: int, max_depth: int | None = None) -> tuple[Choice, ...]:
    """The `nodes` - 1 most valuable nodes of at most `max_depth`; of equal values, the less deep node."""
    allowed = (c for c in values if max_depth is None or len(c) <= max_depth)
    ordered = sorted(allowed, key=lambda c: (-values[c], len(c), c))
    return tuple(sorted(ordered[: nodes - 1], key=lambda c: (len(c), c)))


def expected_tau(values: Mapping[Choice, float], choices: Iterable[Choice]) -> float:
    """Expected tokens per verification: the bonus token and the accepted draft tokens."""
    return 1.0 + sum(values[choice] for choice in choices)


def plan_tree(
    values: Mapping[Choice, float],
    forward_ms: Mapping[int, float],
    draft_ms: Callable[[int], float],
    other_ms: float = 0.0,
    max_nodes: int = 64,
) -> TreePlan:
    """The static tree with the most expected tokens per second. `forward_ms`: cost of a forward by node count,
    interpolated; `draft_ms(depth)`: cost of drafting; `other_ms`: the rest of a step. Every size is tried with every
    depth, because deeper drafts may cost more."""
    sizes = range(2, min(max_nodes, len(values) + 1) + 1)
    depths = range(1, max(map(len, values), default=0) + 1)
    trees = (best_choices(values, nodes, depth) for nodes in sizes for depth in depths)
    candidates = ((expected_tau(values, tree), len(tree) + 1, max(map(len, tree)), tree) for tree in trees)
    return _fastest(candidates, forward_ms, draft_ms, other_ms)


def plan_dynamic(
    steps: Sequence[Step],
    forward_ms: Mapping[int, float],
    draft_ms: Callable[[int], float],
    other_ms: float = 0.0,
    sizes: Sequence[int] = SIZES,
) -> TreePlan:
    """The fastest size and depth of EAGLE-2's dynamic tree, from traces of a larger one."""
    deepest = max((max(step.draft_record.depths, default=0) for step in steps), default=0)
    candidates = (
        (tau, nodes, depth, ())
        for depth in range(1, deepest + 1)
        for nodes, tau in lengths_by_size(steps, sizes, depth).items()
        if nodes > 1
    )
    return _fastest(candidates, forward_ms, draft_ms, other_ms)


def _fastest(
    candidates: Iterable[tuple[float, int, int, tuple[Choice, ...]]],
    forward_ms: Mapping[int, float],
    draft_ms: Callable[[int], float],
    other_ms: float,
) -> TreePlan:
    plain_ms = forward_ms[1] + other_ms
    best: dict[int, tuple[SizePlan, tuple[Choice, ...]]] = {}
    for tau, nodes, depth, choices in candidates:
        cost = interpolate(forward_ms, nodes) + draft_ms(depth) + other_ms
        plan = SizePlan(nodes, depth, tau, tau * plain_ms / cost)
        if nodes not in best or plan.speedup > best[nodes][0].speedup:
            best[nodes] = plan, choices
    sizes = tuple(best[nodes][0] for nodes in sorted(best))
    top = max(sizes, key=lambda size: size.speedup, default=None)
    if top is None or top.speedup <= 1.0:
        return TreePlan(0, 0, (), 1.0, 1.0, sizes, PLAIN_IS_FASTER)
    verdict = (
        f"{top.nodes} nodes, depth {top.depth}: expected τ {top.expected_tau:.2f}, {top.speedup:.2f} × the baseline."
    )
    return TreePlan(top.nodes, top.depth, best[top.nodes][1], top.expected_tau, top.speedup, sizes, verdict)


def lengths_by_size(steps: Iterable[Step], sizes: Sequence[int], max_depth: int | None = None) -> dict[int, float]:
    """Expected τ of EAGLE-2's dynamic tree for each size (and maximum depth), from traces of a larger tree. A smaller
    tree consists of the nodes with the best cumulative log-probability; the trace has the accepted ones."""
    counted = [step for step in steps if step.counted and step.kind == "verify"]
    totals = dict.fromkeys(sizes, 0)
    for step in counted:
        path_logprobs: list[float] = []
        for node, parent in enumerate(step.draft_record.parents):
            path_logprobs.append(step.draft_record.logprobs[node] + (path_logprobs[parent] if parent >= 0 else 0.0))
        allowed = [n for n, depth in enumerate(step.draft_record.depths) if max_depth is None or depth <= max_depth]
        ordered = sorted(allowed, key=lambda node, logprobs=path_logprobs: (-logprobs[node], node))
        order = {node: index for index, node in enumerate(ordered)}
        for size in sizes:
            totals[size] += sum(order.get(node, size) < size - 1 for node in step.accepted)
    return {size: 1.0 + total / len(counted) for size, total in totals.items()} if counted else {}


def wide_choices(depth: int, nodes: int = 64, width: int = 10) -> tuple[Choice, ...]:
    """A calibration tree of the likeliest nodes, if rank r is correct with probability 0.5, 0.17, 0.1, …"""
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
    """Median milliseconds of one greedy verification by node count, at the target's present length. Sizes alternate, so
    that a disturbance affects all; nodes are tokens of the sequence, since random ones give nearly equal logits."""
    length, tokens = len(target.ids), (target.ids or [0]) * max(sizes)
    times: dict[int, list[float]] = {size: [] for size in sizes if size <= target.free_positions}
    for _ in range(rounds):
        for size, samples in times.items():
            start = time.perf_counter()
            target.forward_tree(DraftTree.chain(tokens[:size]), argmax_only=True)
            target.synchronize()
            samples.append((time.perf_counter() - start) * 1e3)
            target.cache.crop(length)
    return {size: statistics.median(samples) for size, samples in times.items()}

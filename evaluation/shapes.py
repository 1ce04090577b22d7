"""Draft shapes (chains and trees) and their expected τ, computed from traces."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from decoding.drafters.base import WIDEST_TREE, TuningSpace
from decoding.step import Step
from decoding.tuning import Choice, best_choices, expected_tau, lengths_by_size, values_from_steps
from speculoos.errors import BadInput

CHAIN, TREE, PLAIN = "chain", "tree", "plain"
CHAINS = (1, 2, 3, 4, 5)
TREES = (4, 6, 8, 10, 12, 16)
"""Nodes of trees, root included."""


@dataclass(frozen=True)
class DraftShape:
    """`nodes`: root included; `tau`: expected tokens per verification; `levels`: rows of each pass of the draft for one
    sequence; `options`: arguments of `make_drafter`."""

    kind: Literal["plain", "chain", "tree"]
    nodes: int = 1
    depth: int = 0
    tau: float = 1.0
    levels: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`chain 3`, `tree of 8`, `plain`."""
        return {CHAIN: f"chain {self.depth}", TREE: f"tree of {self.nodes}"}.get(self.kind, PLAIN)


@dataclass(frozen=True)
class AcceptanceCurves:
    """Acceptance of a draft: `chain`: P(first d tokens accepted) for d = 1, 2, …; for trees either `values` by choice
    (static) or `sizes`: depth → nodes → τ (pruned by path log-probability)."""

    chain: tuple[float, ...]
    sizes: dict[int, dict[int, float]] = field(default_factory=dict)
    values: dict[Choice, float] = field(default_factory=dict)
    one_pass: bool = False
    """Whether all depths are drafted in one pass, as Medusa's heads do."""
    dynamic: bool = True
    verifications: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"chain": [round(share, 4) for share in self.chain], "verifications": self.verifications}

    def chains(self) -> list[DraftShape]:
        """Chains of all depths."""
        shapes = []
        for depth in range(1, len(self.chain) + 1):
            options = chain_options(depth, self.dynamic)
            levels = (1,) if self.one_pass else (1,) * depth
            shapes.append(DraftShape(CHAIN, depth + 1, depth, 1 + sum(self.chain[:depth]), levels, options))
        return shapes

    def trees(self) -> list[DraftShape]:
        """Trees of all sizes and feasible depths."""
        return [*self._static(), *self._dynamic()]

    def _dynamic(self) -> Iterable[DraftShape]:
        for depth, by_size in self.sizes.items():
            levels = (1,) if self.one_pass else (1, *[WIDEST_TREE["top_k"]] * (depth - 1))
            for nodes in (n for n in TREES if n in by_size and depth < n <= max_tree_nodes(depth)):
                options = {"depth": depth - 1, "top_k": WIDEST_TREE["top_k"], "nodes": nodes}
                yield DraftShape(TREE, nodes, depth, by_size[nodes], levels, options)

    def _static(self) -> Iterable[DraftShape]:
        for depth in range(1, max(map(len, self.values), default=0) + 1):
            for nodes in TREES:
                choices = best_choices(self.values, nodes, depth)
                if len(choices) == nodes - 1 and max(map(len, choices)) == depth:
                    levels = (1,) if self.one_pass else (1, *[WIDEST_TREE["top_k"]] * (depth - 1))
                    options = {"tree": [list(choice) for choice in choices]}
                    yield DraftShape(TREE, nodes, depth, expected_tau(self.values, choices), levels, options)


def chain_options(depth: int, dynamic: bool) -> dict[str, Any]:
    """Arguments of `make_drafter` for a chain of `depth`; `dynamic`: whether the draft's trees are dynamic."""
    return {"depth": depth - 1, "top_k": 1, "nodes": depth + 1} if dynamic else {"tree": [[0] * depth]}


def has_trees(space: TuningSpace) -> bool:
    """Whether trees are tuned too, not only chains as for standalone drafts."""
    return space.at_depth(space.deepest) != chain_options(space.deepest, space.dynamic)


def max_tree_nodes(depth: int) -> int:
    """Maximum nodes of a dynamic tree: the root, its children, and `width` children of each of the `width` best nodes
    of every further level."""
    width = WIDEST_TREE["top_k"]
    return 1 + width + (depth - 1) * width * width


def chain_rates(steps: Iterable[Step], depth: int) -> tuple[float, ...]:
    """P(first d drafted tokens accepted) for d up to `depth`, over the counted verifications of a chain."""
    counted = [step for step in steps if step.counted and step.kind == "verify"]
    if not counted:
        raise BadInput("No verification was complete: longer answers or more prompts are needed.")
    return tuple(sum(len(step.accepted) >= d for step in counted) / len(counted) for d in range(1, depth + 1))


def curves_of_trace(steps: Sequence[Step]) -> AcceptanceCurves:
    """Acceptance of chains and of trees within the drafted trees of a trace, pruned by path log-probability."""
    counted = [step for step in steps if step.counted and step.kind == "verify"]
    if not counted:
        raise BadInput("This trace has no complete verification.")
    values = values_from_steps(steps)
    deepest = max(max(step.draft_record.depths, default=0) for step in counted)
    chain = tuple(values.get((0,) * depth, 0.0) for depth in range(1, deepest + 1))
    max_nodes = max(len(step.draft_record.tokens) for step in counted) + 1
    sizes = [size for size in TREES if size <= max_nodes]
    by_depth = {depth: lengths_by_size(steps, sizes, depth) for depth in range(1, deepest + 1)}
    return AcceptanceCurves(chain, by_depth, verifications=len(counted))


def curves_of_rates(by_depth: Sequence[float]) -> AcceptanceCurves:
    """Chains only, from an evaluation's acceptance by depth (conditional on the previous depth)."""
    return AcceptanceCurves(tuple(math.prod(by_depth[:depth]) for depth in range(1, len(by_depth) + 1)))


def expected_chain(acceptance: float, depth: int) -> float:
    """τ of a chain whose tokens are each accepted with probability `acceptance` (Leviathan et al. 2023, equation 1)."""
    return 1.0 + sum(acceptance**d for d in range(1, depth + 1))

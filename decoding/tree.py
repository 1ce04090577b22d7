"""Draft trees: the parents of draft tokens, and the mask and positions to verify all of them in one forward.

Node 0 is the root: the last emitted token, whose key and value are not in the cache yet. Independent of models and
caches.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count

import numpy as np
import torch

from speculoos.errors import BadInput


@dataclass(frozen=True)
class TreeShape:
    """The parents of all nodes; `parents[i] < i`, `parents[0] == -1`. Children are tried in the order of their indices.
    `ranks`: each node's 0-based rank among the drafter's candidates after its parent; default: among its siblings."""

    parents: tuple[int, ...] = (-1,)
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.parents[0] == -1 and all(0 <= p < i for i, p in enumerate(self.parents) if i), self.parents
        if not self.ranks:
            siblings = defaultdict(count)
            object.__setattr__(self, "ranks", tuple(next(siblings[parent]) for parent in self.parents))

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of each node from the root; the root's is 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each node, best first."""
        lists: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], 1):
            lists[parent].append(node)
        return tuple(map(tuple, lists))

    @cached_property
    def mask(self) -> torch.Tensor:
        """Bool [n, n]: mask[i, j] is whether node i attends to node j, which is i or an ancestor of i."""
        mask = np.zeros((len(self), len(self)), dtype=bool)
        for node, parent in enumerate(self.parents):
            if node:
                mask[node] = mask[parent]
            mask[node, node] = True
        return torch.from_numpy(mask)

    @property
    def is_chain(self) -> bool:
        """Whether every node is the child of the node before, so that the mask is causal."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def max_depth(self) -> int:
        return max(self.depths)

    @property
    def width(self) -> int:
        """The most children of a node."""
        return max(map(len, self.children))

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root's child down to `node`; empty for the root."""
        steps = []
        while node > 0:
            steps.append(node)
            node = self.parents[node]
        return tuple(reversed(steps))

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Every root-to-leaf path, without the root."""
        return tuple(self.path(node) for node in range(len(self)) if not self.children[node] and node)


@dataclass(frozen=True)
class DraftTree:
    """A shape with tokens. `logprobs[i]` is the draft's log-probability of node i given its parent (0 for the root).
    `proposals`: if children were *sampled* (in order, without replacement), each parent's distribution q [V] of them,
    after temperature, top-k and top-p. Else they were chosen deterministically, which residual sampling treats as
    q = 1."""

    tokens: tuple[int, ...]
    shape: TreeShape = field(default_factory=TreeShape)
    logprobs: tuple[float, ...] = ()
    proposals: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.shape), "a tree needs one token per node"
        assert not self.proposals or all(
            node in self.proposals for node, children in enumerate(self.shape.children) if children
        ), "the children of some parents were sampled, those of others were not"

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def build(cls, tokens: Sequence[int], parents: Sequence[int], logprobs: Sequence[float] = ()) -> "DraftTree":
        return cls(tuple(tokens), TreeShape(tuple(parents)), tuple(logprobs))

    @classmethod
    def chain(cls, tokens: Sequence[int], logprobs: Sequence[float] = ()) -> "DraftTree":
        """A chain with the root first."""
        return cls(tuple(tokens), chain_shape(len(tokens) - 1), tuple(logprobs))

    def clipped(self, max_nodes: int) -> "DraftTree":
        """The first `max_nodes` nodes, including the root, for a cache that is almost full."""
        if len(self) <= max_nodes:
            return self
        shape = TreeShape(self.shape.parents[:max_nodes], self.shape.ranks[:max_nodes])
        return DraftTree(self.tokens[:max_nodes], shape, self.logprobs[:max_nodes], self.proposals)


@lru_cache(maxsize=64)
def chain_shape(depth: int) -> TreeShape:
    """A chain of `depth` draft tokens below the root."""
    return TreeShape(tuple(range(-1, depth)))


def shape_from_choices(choices: Iterable[Iterable[int]]) -> TreeShape:
    """The shape of Medusa choices: all nodes, or root-to-leaf paths only. The choice [1, 0] is the best token at depth
    2 below the second best at depth 1; ranks may skip candidates. Raises BadInput for an empty path or a negative
    rank."""
    nodes: set[tuple[int, ...]] = set()
    for choice in choices:
        ranks = tuple(choice)
        if not ranks or any(not isinstance(r, int) or isinstance(r, bool) or r < 0 for r in ranks):
            raise BadInput(f"Tree choice {list(ranks)}: expected one or more ranks counted from 0, such as [0, 1].")
        nodes.update(ranks[: depth + 1] for depth in range(len(ranks)))
    ordered = sorted(nodes, key=lambda node: (len(node), node))
    index = {(): 0} | {node: i for i, node in enumerate(ordered, 1)}
    return TreeShape((-1, *(index[node[:-1]] for node in ordered)), (0, *(node[-1] for node in ordered)))

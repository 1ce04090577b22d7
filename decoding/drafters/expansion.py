"""Growing a tree with a draft that needs one forward per level: static shapes and EAGLE-2's dynamic trees.

Everything between the draft's logits and the finished tree is computed on the draft's device without waiting for it, so
that on a GPU the growth of a whole tree is one CUDA graph."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch.nn import functional as F

from decoding.drafters.base import ChildSampling, Drafter
from decoding.sampling import draw_distinct
from decoding.tree import DraftTree, TreeShape
from models.methods import trees
from models.runtime.cache import upload
from speculoos.errors import BadInput

MAX_CANDIDATES = 65_536  # largest number of candidates of a dynamic tree in one step
Grown = tuple[torch.Tensor, torch.Tensor | None]
"""Nodes without the root, float64 [rows, n] (token, log-probability, …), and distributions of sampled children."""


class Expander(Protocol):
    """A draft model with the state of one tree. Nodes are numbered in the order they are added; the root is 0."""

    def root(self) -> torch.Tensor:
        """Start a tree: draft logits [1, V'] after the root."""

    def add(self, ids: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Add a level: tokens `ids` [n] below the nodes `parents` [n]; draft logits [n, V'] after each of them, or
        [1, V'] if all have the same."""

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        """The base model's token ids of indices into V' (a draft may have a smaller vocabulary)."""


class PositionLogits:
    """An Expander of logits [depths, V'] that one forward has drafted: all nodes of a depth have the same, whatever
    their parents are. `token_ids`: as in Expander."""

    def __init__(self, logits: torch.Tensor, token_ids: Callable[[torch.Tensor], torch.Tensor]):
        self.logits, self.level, self.token_ids = logits, 0, token_ids

    def root(self) -> torch.Tensor:
        return self.logits[:1]

    def add(self, ids: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        self.level += 1
        return self.logits[self.level : self.level + 1]


class TreeMask:
    """Attention among the nodes of a tree, level by level. The root is node 0 and has no row."""

    def __init__(self, device: torch.device):
        self.level = 0
        self._visible = torch.zeros(1, 0, dtype=torch.bool, device=device)

    def add(self, parents: torch.Tensor) -> torch.Tensor:
        """Add a level below the nodes `parents` [n]; bool [n, rows of the tree]: the rows that its nodes attend to."""
        n, self.level = len(parents), self.level + 1
        diagonal = torch.eye(n, dtype=torch.bool, device=parents.device)
        visible = torch.cat([self._visible.index_select(0, parents), diagonal], dim=1)
        self._visible = torch.cat([F.pad(self._visible, (0, n)), visible])
        return visible


class StaticTree:
    """Fills `shape` level by level. Children are the draft's best tokens by rank, or, with ChildSampling, sampled from
    its warped distribution without replacement."""

    def __init__(self, shape: TreeShape, device: torch.device):
        self.shape, self.max_depth, self.nodes = shape, shape.max_depth, len(shape)
        self.levels: list[_Level] = []
        self._order: list[int] = []
        """The shape's nodes in the order in which they are grown."""
        self._parents: list[int] = []
        """Nodes with children, in the order in which their children are sampled."""
        grown, numbers = [0], {0: 0}  # nodes of the level before, and the expander's numbers of nodes with children
        while nodes := [node for node in grown if shape.children[node]]:
            self.levels.append(_Level(shape, nodes, grown, numbers, len(self._order), device))
            numbers |= {node: number for number, node in enumerate(nodes, len(numbers)) if node}
            grown = [child for node in nodes for child in shape.children[node]]
            self._parents += nodes
            self._order += grown
        self.rows = max(len(self._parents) - 1, 0)
        """Cache rows of a tree: nodes with children, without the root."""

    def grow(
        self, expander: Expander, sampling: ChildSampling | None = None, uniforms: torch.Tensor | None = None
    ) -> Grown:
        """Tokens and log-probabilities [2, n], and, with `sampling`, the distributions [parents, V]. `uniforms` [n] in
        [0, 1) draw the children. A token of −1: no probability mass remained for it."""
        tokens, logprobs, proposals, ids = [], [], [], torch.empty(0)
        for number, level in enumerate(self.levels):
            logits = expander.add(ids.index_select(0, level.nodes), level.parents) if number else expander.root()
            if sampling is None:
                values, choices = (each.expand(len(level.nodes), -1) for each in _best(logits, level.width))
                valid = None
            else:
                q = sampling.warp(logits).expand(len(level.nodes), -1)
                choices = draw_distinct(q, uniforms[level.uniforms])
                valid, choices = (choices >= 0).flatten()[level.sampled], choices.clamp_min(0)
                values = logits.float().log_softmax(-1).expand(len(q), -1).gather(1, choices)
                all_ids = expander.token_ids(torch.arange(q.shape[1], device=q.device))
                proposals.append(q.new_zeros(len(q), sampling.vocab_size).index_copy_(1, all_ids, q))
            children = level.best if sampling is None else level.sampled
            ids = expander.token_ids(choices).flatten()[children]
            tokens.append(ids if valid is None else torch.where(valid, ids, -1))
            logprobs.append(values.flatten()[children])
        nodes = torch.stack([torch.cat(tokens).double(), torch.cat(logprobs).double()])
        return nodes, torch.cat(proposals) if proposals else None

    def tree(self, token: int, grown: Grown) -> DraftTree:
        """The grown tree below the root `token`. Nodes without a token are left out, with all nodes below them."""
        (ids, logprobs), proposals, shape = grown[0].tolist(), grown[1], self.shape
        nodes = {0: (token, 0.0)}
        for node, id_, logprob in sorted(zip(self._order, ids, logprobs, strict=True)):
            if id_ >= 0 and shape.parents[node] in nodes:
                nodes[node] = int(id_), logprob
        new = {old: index for index, old in enumerate(nodes)}
        if len(nodes) < len(shape):
            parents = tuple(new.get(shape.parents[n], -1) for n in nodes)
            shape = TreeShape(parents, tuple(shape.ranks[n] for n in nodes))
        tokens, logprobs = zip(*nodes.values(), strict=True)
        rows = () if proposals is None else zip(self._parents, proposals, strict=True)
        return DraftTree(tokens, shape, logprobs, {new[n]: q for n, q in rows if n in new})


class TreeDrafter(Drafter, ABC):
    """A drafter that grows its trees with an Expander: on a GPU a whole tree in one CUDA graph if `graphed`."""

    growth: "StaticTree | DynamicTree"
    device: torch.device
    graphed: bool
    sampling: ChildSampling | None = None

    @abstractmethod
    def expander(self) -> Expander:
        """An empty tree after the sequence, outside of graphs."""

    @abstractmethod
    def grow_captured(self, *uniforms: torch.Tensor) -> Grown:
        """Grow the tree in one graph; `uniforms`: as `StaticTree.grow` takes them, on the CPU."""

    @torch.inference_mode()
    def propose(self, token: int) -> DraftTree:
        if self.growth.nodes == 1:
            return DraftTree((token,))
        uniforms = () if self.sampling is None else (self.sampling.uniforms(self.growth.nodes - 1),)
        if self.graphed:
            return self.growth.tree(token, self.grow_captured(*uniforms))
        uniforms = (upload(numbers, self.device) for numbers in uniforms)
        return self.growth.tree(token, self.growth.grow(self.expander(), self.sampling, *uniforms))

    def buffers(self, most: int, *uniforms: torch.Tensor) -> list[torch.Tensor]:
        """Buffers of a graph: token ids [most], first row and number of rows [2], random numbers."""
        integers = torch.zeros(most + 2, dtype=torch.int64, device=self.device)
        return [integers[:most], integers[most:], *(numbers.to(self.device) for numbers in uniforms)]


class _Level:
    """Index tensors for the L `nodes` of a level that have children, and for these children."""

    def __init__(
        self,
        shape: TreeShape,
        nodes: Sequence[int],
        grown: Sequence[int],
        numbers: dict[int, int],
        first: int,
        device: torch.device,
    ):
        """`grown`: all nodes of the level; `numbers`: the expander's of their parents; `first`: nodes before the
        children, without the root."""
        children = [shape.children[node] for node in nodes]
        ranks = [[shape.ranks[child] for child in siblings] for siblings in children]
        self.nodes = upload([grown.index(node) for node in nodes], device)
        """Indices of the nodes among all of the level."""
        self.parents = upload([numbers[max(shape.parents[node], 0)] for node in nodes], device)
        self.width = max(map(max, ranks)) + 1
        """Best tokens needed after each node."""
        self.best = upload([row * self.width + rank for row, siblings in enumerate(ranks) for rank in siblings], device)
        """Indices of the children among the best tokens [L · width]."""
        most, offsets = max(map(len, children)), [0, *accumulate(map(len, children))]
        self.sampled = upload(
            [row * most + i for row, siblings in enumerate(children) for i in range(len(siblings))], device
        )
        """Indices of the children among the sampled tokens [L · most]."""
        draws = [
            [first + offsets[row] + min(i, len(siblings) - 1) for i in range(most)]
            for row, siblings in enumerate(children)
        ]
        self.uniforms = upload(draws, device)
        """Indices [L, most] of the random numbers that draw the children."""


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's tree: the best `nodes` (including the root) by the log-probability of their path from the root. The
    root gets `top_k` children; then, `depth` times, the `top_k` best nodes of the last level get `top_k` children each,
    so there are at most depth + 1 levels. A node's value is at most its parent's, so the best nodes form a tree.
    Source: Li et al. 2024 (EAGLE-2), section 4; defaults of its code: depth 7, top_k 10, 60 nodes."""

    depth: int = 7
    top_k: int = 10
    nodes: int = 60

    def __post_init__(self) -> None:
        for name in ("depth", "top_k", "nodes"):
            if getattr(self, name) < (minimum := 0 if name == "depth" else 1):
                raise BadInput(f"{name}: expected {minimum} or more, got {getattr(self, name)}.")
        if self.depth > trees.MAX_DEPTH or self.depth * self.top_k**2 > MAX_CANDIDATES:
            raise BadInput(
                f"depth is at most {trees.MAX_DEPTH}, and depth times top_k squared at most {MAX_CANDIDATES:,}; "
                f"got depth {self.depth}, top_k {self.top_k}."
            )

    @property
    def max_depth(self) -> int:
        return self.depth + 1

    @property
    def rows(self) -> int:
        """Cache rows of a tree, before the best nodes are kept."""
        return self.depth * self.top_k

    def grow(self, expander: Expander, sampling: None = None, uniforms: None = None) -> Grown:
        """Tokens, log-probabilities and parents [3, n]; children come after their parents, siblings best first."""
        values, choices = _best(expander.root(), self.top_k)
        k, device = values.shape[1], values.device
        tokens, logprobs = [expander.token_ids(choices[0])], [values[0]]
        scores, parents = [values[0]], [torch.zeros(k, dtype=torch.int64, device=device)]
        frontier, above = torch.arange(k, device=device), parents[0]  # to expand, and the expander's numbers above them
        first = 1  # number of the last level's first candidate; the root is 0
        for level in range(self.depth):
            logits = expander.add(tokens[-1].index_select(0, frontier), above)
            values, choices = (each.expand(k, k) for each in _best(logits, k))
            parents.append((first + frontier)[:, None].expand(k, k).flatten())
            tokens.append(expander.token_ids(choices).flatten())
            logprobs.append(values.flatten())
            scores.append((scores[-1].index_select(0, frontier)[:, None] + values).flatten())
            first += len(tokens[-2])
            frontier = scores[-1].topk(k).indices
            above = 1 + level * k + frontier // k
        selected = torch.cat(scores).sort(descending=True, stable=True).indices[: self.nodes - 1].sort().values
        new = torch.zeros(first + len(tokens[-1]), dtype=torch.int64, device=device)
        new.index_copy_(0, selected + 1, torch.arange(1, len(selected) + 1, device=device))
        selected_rows = torch.cat(tokens)[selected], torch.cat(logprobs)[selected], new[torch.cat(parents)[selected]]
        return torch.stack([row.double() for row in selected_rows]), None

    def tree(self, token: int, grown: Grown) -> DraftTree:
        """The grown tree below the root `token`."""
        ids, logprobs, parents = grown[0].tolist()
        return DraftTree.build([token, *map(int, ids)], [-1, *map(int, parents)], [0.0, *logprobs])


def _best(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and indices [n, count] of the best tokens."""
    logits = logits.float()
    best = logits.topk(min(count, logits.shape[-1]), dim=-1)
    return best.values - logits.logsumexp(-1, keepdim=True), best.indices

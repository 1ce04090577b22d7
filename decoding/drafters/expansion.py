"""Growing a tree with a draft that needs one forward per level: static shapes and EAGLE-2's dynamic trees.

The log-probabilities are computed by an Expander.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from decoding.drafters.base import Sampling
from decoding.sampling import draw_distinct
from decoding.tree import DraftTree, TreeShape


class Expander(Protocol):
    """A draft model with the state of one tree. Nodes are numbered in the order they are added; the root is 0."""

    def root(self, token: int) -> torch.Tensor:
        """Start a tree with the root `token`: draft logits [V'] after it."""

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Add nodes below earlier nodes: draft logits [n, V'] after each of them."""

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        """The target's token ids of indices into V' (a draft may have a smaller vocabulary)."""


def grow_static(shape: TreeShape, token: int, expander: Expander, sampling: Sampling | None = None) -> DraftTree:
    """Fill `shape` level by level. Children are the draft's best tokens by rank, or, with `sampling`, sampled from its
    warped distribution without replacement and stored as `proposals`. A shape with only a root drafts nothing."""
    if len(shape) == 1:
        return DraftTree((token,))
    filler = _Filler(shape, token, expander, sampling)
    level, logits = [0], expander.root(token)[None]
    while level:
        level, logits = filler.fill(level, logits)
    return filler.tree()


class _Filler:
    """State of one `grow_static`: tokens by node of the shape, and the expander's number of each node."""

    def __init__(self, shape: TreeShape, token: int, expander: Expander, sampling: Sampling | None):
        self.shape, self.expander, self.sampling = shape, expander, sampling
        self.tokens: dict[int, int] = {0: token}
        self.logprobs: dict[int, float] = {0: 0.0}
        self.proposals: dict[int, torch.Tensor] = {}
        self.number = {0: 0}

    def fill(self, level: list[int], logits: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        """Choose the children of the nodes in `level`. Returns the children that have children, and the logits after
        them."""
        if self.sampling is None:
            self._rank(level, logits)
        else:
            for node, row in zip(level, logits, strict=True):
                self._sample(node, row)
        children = self.shape.children
        parents = [c for node in level for c in children[node] if children[c] and c in self.tokens]
        if not parents:
            return [], logits
        for node in parents:
            self.number[node] = len(self.number)
        numbers = [self.number[self.shape.parents[node]] for node in parents]
        return parents, self.expander.add([self.tokens[node] for node in parents], numbers)

    def _rank(self, level: list[int], logits: torch.Tensor) -> None:
        """Set the children of all nodes of a level to their parent's best tokens by rank."""
        children, ranks = self.shape.children, self.shape.ranks
        count = max(ranks[c] for node in level for c in children[node]) + 1
        best = logits.float().log_softmax(-1).topk(count, dim=-1)
        ids, values = self.expander.token_ids(best.indices).tolist(), best.values.tolist()
        for node, own_ids, own_values in zip(level, ids, values, strict=True):
            for child in children[node]:
                self.tokens[child], self.logprobs[child] = own_ids[ranks[child]], own_values[ranks[child]]

    def _sample(self, node: int, logits: torch.Tensor) -> None:
        children = self.shape.children[node]
        picked = self._draw(node, logits, len(children))
        ids = self.expander.token_ids(picked).tolist()
        values = logits.float().log_softmax(-1)[picked].tolist()
        for child, token, value in zip(children, ids, values, strict=False):  # fewer if no probability mass remains
            self.tokens[child], self.logprobs[child] = token, value

    def _draw(self, node: int, logits: torch.Tensor, count: int) -> torch.Tensor:
        warp, generator, vocab = self.sampling
        q = warp(logits)
        row = torch.zeros(vocab, dtype=q.dtype, device=q.device)
        self.proposals[node] = row.index_put((self.expander.token_ids(torch.arange(len(q), device=q.device)),), q)
        return draw_distinct(q, count, generator).to(q.device)

    def tree(self) -> DraftTree:
        """The tree of the nodes that have a token; a node without a token has no descendants."""
        keep = [n for n in range(len(self.shape)) if n in self.tokens]
        new = {old: i for i, old in enumerate(keep)}
        shape = self.shape
        if len(keep) < len(shape):
            parents = tuple(new.get(shape.parents[n], -1) for n in keep)
            shape = TreeShape(parents, tuple(self.shape.ranks[n] for n in keep))
        return DraftTree(
            tuple(self.tokens[n] for n in keep),
            shape,
            tuple(self.logprobs[n] for n in keep),
            {new[n]: q for n, q in self.proposals.items()},
        )


def grow_dynamic(token: int, expander: Expander, depth: int, top_k: int, nodes: int) -> DraftTree:
    """EAGLE-2's tree: the best `nodes` (including the root) by score, the log-probability of the path from the root.

    The root gets `top_k` children; then, `depth` times, the `top_k` best nodes of the last level get `top_k` children
    each, so there are at most depth + 1 levels. A node's score is at most its parent's, so the best nodes form a tree.
    Source: Li et al. 2024 (EAGLE-2), section 4; defaults of its code: depth 7, top_k 10, 60 nodes.
    """
    tokens, parents, scores, logprobs = [token], [-1], [0.0], [0.0]
    number = {0: 0}  # the expander's number of a candidate

    def candidates(frontier: Sequence[int], logits: torch.Tensor) -> list[int]:
        best = logits.float().log_softmax(-1).topk(min(top_k, logits.shape[-1]), dim=-1)
        ids, values = expander.token_ids(best.indices).tolist(), best.values.tolist()
        first = len(tokens)
        for node, row_ids, row_values in zip(frontier, ids, values, strict=True):
            tokens.extend(row_ids)
            parents.extend([node] * len(row_ids))
            logprobs.extend(row_values)
            scores.extend(scores[node] + value for value in row_values)
        return sorted(range(first, len(tokens)), key=lambda c: -scores[c])[:top_k]

    frontier = candidates([0], expander.root(token)[None])
    for _ in range(depth):
        for node in frontier:
            number[node] = len(number)
        logits = expander.add([tokens[n] for n in frontier], [number[parents[n]] for n in frontier])
        frontier = candidates(frontier, logits)
    keep = sorted(sorted(range(len(tokens)), key=lambda c: (-scores[c], c))[:nodes])
    new = {old: i for i, old in enumerate(keep)}
    return DraftTree.build(
        [tokens[n] for n in keep], [new.get(parents[n], -1) for n in keep], [logprobs[n] for n in keep]
    )

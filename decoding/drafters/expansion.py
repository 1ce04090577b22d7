"""Growing a tree with a draft that needs one forward per level: static shapes and EAGLE-2's dynamic trees.

The log-probabilities are computed by an Expander.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from decoding.drafters.base import SamplingParams
from decoding.sampling import draw_distinct
from decoding.tree import DraftTree, TreeShape


class Expander(Protocol):
    """A draft model with the state of one tree. Nodes are numbered in the order they are added; the root is 0."""

    def root(self, token: int) -> torch.Tensor:
        """Start a tree with the root `token`: draft logits [V'] after it."""

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Add nodes below earlier nodes: draft logits [n, V'] after each of them."""

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        """The base model's token ids of indices into V' (a draft may have a smaller vocabulary)."""


def grow_static(shape: TreeShape, token: int, expander: Expander, sampling: SamplingParams | None = None) -> DraftTree:
    """Fill `shape` level by level. Children are the draft's best tokens by rank, or, with `sampling`, sampled from its
    warped distribution without replacement and stored as `proposals`. A shape with only a root drafts nothing."""
    if len(shape) == 1:
        return DraftTree((token,))
    nodes, number = {0: (token, 0.0)}, {0: 0}  # token and log-probability of each node, and its number in the expander
    proposals: dict[int, torch.Tensor] = {}
    level, logits = [0], expander.root(token)[None]
    while level:
        if sampling is None:
            nodes |= _best_children(shape, level, logits, expander)
        else:
            for node, node_logits in zip(level, logits, strict=True):
                sampled, proposals[node] = _sampled_children(shape.children[node], node_logits, expander, sampling)
                nodes |= sampled
        level = [c for node in level for c in shape.children[node] if shape.children[c] and c in nodes]
        if level:
            number |= {node: index for index, node in enumerate(level, len(number))}
            logits = expander.add([nodes[n][0] for n in level], [number[shape.parents[n]] for n in level])
    kept = sorted(nodes)
    new = {old: index for index, old in enumerate(kept)}
    if len(kept) < len(shape):  # a node without a token has no descendants
        parents = tuple(new.get(shape.parents[n], -1) for n in kept)
        shape = TreeShape(parents, tuple(shape.ranks[n] for n in kept))
    tokens, logprobs = zip(*(nodes[n] for n in kept), strict=True)
    return DraftTree(tokens, shape, logprobs, {new[n]: q for n, q in proposals.items()})


def _best_children(
    shape: TreeShape, level: list[int], logits: torch.Tensor, expander: Expander
) -> dict[int, tuple[int, float]]:
    children, ranks = shape.children, shape.ranks
    count = max(ranks[c] for node in level for c in children[node]) + 1
    best = logits.float().log_softmax(-1).topk(count, dim=-1)
    candidates = zip(level, expander.token_ids(best.indices).tolist(), best.values.tolist(), strict=True)
    return {c: (ids[ranks[c]], values[ranks[c]]) for node, ids, values in candidates for c in children[node]}


def _sampled_children(
    children: Sequence[int], logits: torch.Tensor, expander: Expander, sampling: SamplingParams
) -> tuple[dict[int, tuple[int, float]], torch.Tensor]:
    """Sampled children of a node (fewer if no mass remains) and their distribution over the base model's vocabulary."""
    warp, generator, vocab_size = sampling
    q = warp(logits)
    all_ids = expander.token_ids(torch.arange(len(q), device=q.device))
    proposal = torch.zeros(vocab_size, dtype=q.dtype, device=q.device).index_put((all_ids,), q)
    picked = draw_distinct(q, len(children), generator).to(q.device)
    values = logits.float().log_softmax(-1)[picked].tolist()
    return dict(zip(children, zip(all_ids[picked].tolist(), values, strict=True), strict=False)), proposal


def grow_dynamic(token: int, expander: Expander, depth: int, top_k: int, nodes: int) -> DraftTree:
    """EAGLE-2's tree: the best `nodes` (including the root) by the log-probability of their path from the root.
    The root gets `top_k` children; then, `depth` times, the `top_k` best nodes of the last level get `top_k` children
    each, so there are at most depth + 1 levels. A node's value is at most its parent's, so the best nodes form a tree.
    Source: Li et al. 2024 (EAGLE-2), section 4; defaults of its code: depth 7, top_k 10, 60 nodes."""
    tokens, parents, path_logprobs, logprobs = [token], [-1], [0.0], [0.0]
    number = {0: 0}  # the expander's number of a candidate

    def candidates(frontier: Sequence[int], logits: torch.Tensor) -> list[int]:
        best = logits.float().log_softmax(-1).topk(min(top_k, logits.shape[-1]), dim=-1)
        ids, values = expander.token_ids(best.indices).tolist(), best.values.tolist()
        first = len(tokens)
        for node, child_ids, child_logprobs in zip(frontier, ids, values, strict=True):
            tokens.extend(child_ids)
            parents.extend([node] * len(child_ids))
            logprobs.extend(child_logprobs)
            path_logprobs.extend(path_logprobs[node] + value for value in child_logprobs)
        return sorted(range(first, len(tokens)), key=lambda c: -path_logprobs[c])[:top_k]

    frontier = candidates([0], expander.root(token)[None])
    for _ in range(depth):
        for node in frontier:
            number[node] = len(number)
        logits = expander.add([tokens[n] for n in frontier], [number[parents[n]] for n in frontier])
        frontier = candidates(frontier, logits)
    keep = sorted(sorted(range(len(tokens)), key=lambda c: (-path_logprobs[c], c))[:nodes])
    new = {old: i for i, old in enumerate(keep)}
    return DraftTree.build(
        [tokens[n] for n in keep], [new.get(parents[n], -1) for n in keep], [logprobs[n] for n in keep]
    )

"""Acceptance rules: the accepted path of a draft tree and the base model's next token. Pure functions.

`exact` is greedy at temperature 0 and lossless sampling above it: the output has the base model's distribution,
whatever the draft proposes. `typical` is Medusa's rule and is lossy: it changes the distribution."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from decoding.config import GenerateConfig
from decoding.sampling import LogitsWarper, draw, normalized
from decoding.tree import DraftTree, TreeShape
from models.runtime.cache import upload
from models.runtime.graphs import CapturedFunction, Tensors, captured
from models.runtime.interface import ForwardOutput

Rows = Callable[[torch.Tensor], torch.Tensor]
"""From nodes [B] to distributions [B, V]."""


@dataclass(frozen=True)
class Verification:
    """Accepted nodes from a child of the root downwards (may be none), and the bonus token: the one that the base model
    itself adds after the last of them (a correction if children were rejected)."""

    path: tuple[int, ...]
    bonus_token: int


def make_rule(
    config: GenerateConfig, generator: torch.Generator, graphs: OrderedDict[Any, CapturedFunction] | None = None
) -> "GreedyRule | LosslessRule | TypicalRule":
    """The acceptance rule of a config. `rule.first(target_output)`: the response's first token, from the logits [1, V]
    after the prompt; `rule(tree, target_output)`: verify a tree with its logits [n, V] from `Target.forward_tree`.
    `argmax_only`: it needs only the best tokens, no logits. `graphs`: those of the target's cache."""
    if config.temperature == 0:
        return GreedyRule()
    warp = LogitsWarper(config.temperature, config.top_k, config.top_p)
    if config.acceptance == "typical":
        return TypicalRule(warp, config.epsilon, config.alpha, generator)
    return LosslessRule(warp, generator, OrderedDict() if graphs is None else graphs)


def accept_greedy(shape: TreeShape, tokens: tuple[int, ...], best: list[int]) -> Verification:
    """Follow the base model's best token `best[i]` after node i while it is a drafted child of node i."""
    node = 0
    while (child := next((c for c in shape.children[node] if tokens[c] == best[node]), None)) is not None:
        node = child
    return Verification(shape.path(node), best[node])


class GreedyRule:
    """Exact greedy: the output equals plain greedy decoding, token by token."""

    argmax_only = True

    def first(self, target_output: ForwardOutput) -> int:
        return int(target_output.best[-1])

    def __call__(self, tree: DraftTree, target_output: ForwardOutput) -> Verification:
        return accept_greedy(tree.shape, tree.tokens, target_output.best.tolist())


def child_table(shape: TreeShape, width: int) -> list[list[int]]:
    """The children of each node, padded with −1 to `width`."""
    return [[*children, *[-1] * (width - len(children))] for children in shape.children]


def accept_lossless(
    children: torch.Tensor,
    depth: int,
    tokens: torch.Tensor,
    probs_after: Rows,
    proposals_after: Rows | None,
    uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Walk B trees of one shape at once: (last accepted node [B], next token [B]).

    `children` [n, k]: see `child_table`; `depth`: levels below the root; `tokens` [B, n]; `probs_after(nodes [B])`
    returns the base model's probabilities [B, V] after each node, `proposals_after(nodes [B])` the distributions [B, V]
    from which their children were sampled (None: children were chosen deterministically); `uniforms` [B, n] in [0, 1):
    number i decides on node i, number 0 draws the bonus token.

    Children are tried in order with the residual distribution p of the children rejected before. A deterministic child
    x counts as q(x) = 1: accept with p(x), else p(x) = 0 and renormalize. A child sampled from q: accept with min(1,
    p(x)/q(x)), else p = norm(max(p - q, 0)) and, as siblings are drawn without replacement, q(x) = 0 and renormalize.
    Sources: Leviathan et al. 2023, appendix A.1; SpecInfer (Miao et al. 2024), multi-step speculative sampling, with
    the without-replacement form of Jeon et al. 2024.

    On a CPU the walk ends when no tree goes on; on a GPU this would need a synchronization at every level."""
    current = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
    p, on_cpu = probs_after(current), _is_cpu(tokens.device)
    alive = torch.ones_like(current, dtype=torch.bool)
    for _ in range(depth):
        slots = children[current]
        exist = (slots >= 0) & alive[:, None]
        if on_cpu and not exist.any():
            break
        slots = torch.where(exist, slots, slots[:, :1].clamp_min(1))  # the first child stands in for missing ones
        candidates = Candidates(tokens.gather(1, slots), exist, uniforms.gather(1, slots))
        if proposals_after is None:
            choice, alive, residual = _try_deterministic(p, candidates)
        else:
            choice, alive, residual = _try_sampled(p, proposals_after(current), candidates, on_cpu)
        current = torch.where(alive, slots.gather(1, choice[:, None])[:, 0], current)
        if on_cpu and not alive.any():
            p = residual
            break
        p = torch.where(alive[:, None], probs_after(current), residual)
    return current, draw(p, uniforms[:, 0])


class Candidates(NamedTuple):
    """Children of B nodes [B, k]: tokens, whether there is such a child, and uniform numbers that decide on them."""

    tokens: torch.Tensor
    exist: torch.Tensor
    uniforms: torch.Tensor


Tried = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The accepted child [B], whether any is accepted [B], and p after all children were rejected [B, V]."""


def _try_deterministic(p: torch.Tensor, candidates: Candidates) -> Tried:
    """All children at once: after i − 1 rejected children, child i is accepted with p(x_i) / (1 − Σ p(x_j), j < i)."""
    tokens, exist, uniforms = candidates
    gathered = p.gather(1, tokens)
    probs = gathered * exist
    accepted = exist & (uniforms < probs / (1 - probs.cumsum(1) + probs))
    residual = p.scatter(1, tokens, gathered.masked_fill(exist[:, :1], 0.0))
    # rounding can reject all children
    is_accepted, empty = accepted.any(dim=1), (residual.sum(dim=1) <= 0) & exist[:, 0]
    choice = torch.where(is_accepted, accepted.int().argmax(dim=1), probs.argmax(dim=1))
    return choice, is_accepted | empty, normalized(residual)


def _try_sampled(p: torch.Tensor, q: torch.Tensor, candidates: Candidates, on_cpu: bool) -> Tried:
    choice = torch.zeros(len(p), dtype=torch.long, device=p.device)
    is_accepted = torch.zeros_like(choice, dtype=torch.bool)
    for number, (token, exists, uniform) in enumerate(zip(*(part.unbind(1) for part in candidates), strict=True)):
        active, token = exists & ~is_accepted, token[:, None]
        if on_cpu and not active.any():
            break
        residual = (p - q).clamp_min(0.0)
        accept_ratio, mass = (p.gather(1, token) / q.gather(1, token))[:, 0], residual.sum(dim=-1)
        accepted = active & ((uniform < accept_ratio) | (mass <= 0))
        p = torch.where((active & ~accepted)[:, None], normalized(residual), p)
        q = normalized(q.scatter(1, token, 0.0))
        choice, is_accepted = torch.where(accepted, number, choice), is_accepted | accepted
    return choice, is_accepted, p


def _is_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


class LosslessRule:
    """Exact sampling: tokens have the base model's distribution with temperature, top-k and top-p. On a GPU the walk
    over a tree is one of the CUDA `graphs`."""

    argmax_only = False

    def __init__(self, warp: LogitsWarper, generator: torch.Generator, graphs: OrderedDict[Any, CapturedFunction]):
        self.warp, self.generator, self.graphs = warp, generator, graphs

    def first(self, target_output: ForwardOutput) -> int:
        logits = target_output.logits[-1]
        return int(draw(self.warp(logits), self._uniforms(1).to(logits.device)[0]))

    def __call__(self, tree: DraftTree, target_output: ForwardOutput) -> Verification:
        logits, uniforms = target_output.logits, self._uniforms(len(tree))
        walk = self._walk if _is_cpu(logits.device) else self._walk_captured
        last, bonus_token = walk(tree, logits, uniforms).tolist()
        return Verification(tree.shape.path(last), bonus_token)

    def _walk(self, tree: DraftTree, logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """[last node, next token]."""
        ends = accept_lossless(
            torch.tensor(child_table(tree.shape, tree.shape.width)),
            tree.shape.max_depth,
            torch.tensor([tree.tokens]),
            lambda nodes: self.warp(logits[nodes]),
            (lambda nodes: tree.proposals[int(nodes)][None]) if tree.proposals else None,
            uniforms[None],
        )
        return torch.cat(ends)

    @torch.inference_mode()
    def _walk_captured(self, tree: DraftTree, logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """As `_walk`, by a graph for this number of nodes; depth and width are rounded up to have fewer graphs."""
        depth, width = _power_of_two(tree.shape.max_depth), _power_of_two(tree.shape.width)
        inputs = [torch.tensor(tree.tokens), torch.tensor(child_table(tree.shape, width)), uniforms, logits]
        if tree.proposals:
            rows = {parent: row for row, parent in enumerate(tree.proposals)}
            inputs += [torch.tensor([rows.get(node, 0) for node in range(len(tree))])]
            inputs += [torch.stack(list(tree.proposals.values()))]

        def compute(tokens: torch.Tensor, children: torch.Tensor, *rest: torch.Tensor) -> Tensors:
            uniforms, logits, *q = rest
            ends = accept_lossless(
                children,
                depth,
                tokens[None],
                lambda nodes: self.warp(logits.index_select(0, nodes)),
                (lambda nodes: q[1].index_select(0, q[0].index_select(0, nodes))) if q else None,
                uniforms[None],
            )
            return (torch.cat(ends),)

        key = "walk", len(tree), depth, width, self.warp, len(tree.proposals)
        function = captured(self.graphs, key, lambda: CapturedFunction(compute, [i.to(logits.device) for i in inputs]))
        function.fill(*inputs)
        return function()[0]

    def _uniforms(self, count: int) -> torch.Tensor:
        return torch.rand(count, generator=self.generator, dtype=torch.float64)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length() if number else 0


def typical_threshold(probs: torch.Tensor, epsilon: float, alpha: float) -> torch.Tensor:
    """min(ε, α·exp(-H(p))) [...] of `probs` [..., V]: the probability above which a token counts as typical. Source:
    Cai et al. 2024 (Medusa), section 2.3.1; H adds 1e-5 inside the logarithm as the reference code does."""
    entropy = -(probs * (probs + 1e-5).log()).sum(dim=-1)
    return (alpha * (-entropy).exp()).clamp_max(epsilon)


def accept_typical(
    shape: TreeShape, tokens: tuple[int, ...], probs: torch.Tensor, epsilon: float, alpha: float
) -> tuple[int, ...]:
    """The longest path of nodes that are typical after their parents; of equal paths, the likelier. `probs` [n, V]."""
    threshold = typical_threshold(probs, epsilon, alpha)
    parents = upload(torch.tensor(shape.parents[1:], dtype=torch.long), probs.device)
    node_probs = probs[parents, upload(torch.tensor(tokens[1:], dtype=torch.long), probs.device)]
    values = torch.stack([(node_probs > threshold[parents]).double(), node_probs.double().clamp_min(1e-30).log()])
    typical, likelihood = values.tolist()
    likelihood = [0.0, *likelihood]
    best, alive = 0, [True]
    for node, parent in enumerate(shape.parents[1:], 1):
        alive.append(alive[parent] and typical[node - 1] > 0)
        likelihood[node] += likelihood[parent]
        if alive[node] and (shape.depths[node], likelihood[node]) > (shape.depths[best], likelihood[best]):
            best = node
    return shape.path(best)


class TypicalRule:
    """Medusa's typical acceptance. Lossy. The bonus token is drawn from the typical tokens after the path."""

    argmax_only = False

    def __init__(self, warp: LogitsWarper, epsilon: float, alpha: float, generator: torch.Generator):
        self.warp, self.epsilon, self.alpha, self.generator = warp, epsilon, alpha, generator

    def first(self, target_output: ForwardOutput) -> int:
        return self._draw(self.warp(target_output.logits[-1]))

    def __call__(self, tree: DraftTree, target_output: ForwardOutput) -> Verification:
        probs = self.warp(target_output.logits)
        path = accept_typical(tree.shape, tree.tokens, probs, self.epsilon, self.alpha)
        return Verification(path, self._draw(probs[path[-1] if path else 0]))

    def _draw(self, probs: torch.Tensor) -> int:
        typical = probs.masked_fill(probs <= typical_threshold(probs, self.epsilon, self.alpha), 0.0)
        typical[probs.argmax()] = probs.max()
        uniform = torch.rand((), generator=self.generator, dtype=torch.float64)
        return int(draw(normalized(typical), uniform.to(typical.device)))

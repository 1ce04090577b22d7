"""Acceptance rules: the accepted path of a draft tree and the base model's next token. Pure functions.

`exact` is greedy at temperature 0 and lossless sampling above it: the output has the base model's distribution,
whatever the draft proposes. `typical` is Medusa's rule and is lossy: it changes the distribution."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from decoding.config import GenerateConfig
from decoding.sampling import LogitsWarper, draw, normalized
from decoding.tree import DraftTree, TreeShape
from models.runtime.interface import ForwardOutput


@dataclass(frozen=True)
class Verification:
    """Accepted nodes from a child of the root downwards (may be none), and the bonus token: the one that the base model
    itself adds after the last of them (a correction if children were rejected)."""

    path: tuple[int, ...]
    bonus_token: int


def make_rule(config: GenerateConfig, generator: torch.Generator) -> "GreedyRule | LosslessRule | TypicalRule":
    """The acceptance rule of a config. `rule.first(target_output)`: the response's first token, from the logits [1, V]
    after the prompt; `rule(tree, target_output)`: verify a tree with its logits [n, V] from `Target.forward_tree`.
    `argmax_only`: it needs only the best tokens, no logits."""
    if config.temperature == 0:
        return GreedyRule()
    warp = LogitsWarper(config.temperature, config.top_k, config.top_p)
    if config.acceptance == "typical":
        return TypicalRule(warp, config.epsilon, config.alpha, generator)
    return LosslessRule(warp, generator)


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


def accept_lossless(
    shape: TreeShape,
    tokens: torch.Tensor,
    probs_after: Callable[[torch.Tensor], torch.Tensor],
    proposals: dict[int, torch.Tensor],
    uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Walk B trees of one shape at once: (last accepted node [B], next token [B]).

    `tokens` [B, n]; `probs_after(nodes [B])` returns the base model's probabilities [B, V] after each node;
    `proposals` [B, V] by parent; `uniforms` [B, n] in [0, 1): number i decides on node i, number 0 draws the
    bonus token.

    Children are tried in order with the residual distribution p of the children rejected before. A deterministic child
    x counts as q(x) = 1: accept with p(x), else p(x) = 0 and renormalize. A child sampled from q: accept with min(1,
    p(x)/q(x)), else p = norm(max(p - q, 0)) and, as siblings are drawn without replacement, q(x) = 0 and renormalize.
    Sources: Leviathan et al. 2023, appendix A.1; SpecInfer (Miao et al. 2024), multi-step speculative sampling, with
    the without-replacement form of Jeon et al. 2024.

    On a CPU, nodes that no tree reaches are skipped; on a GPU this would need a synchronization at every node.
    """
    on_cpu = _is_cpu(tokens.device)
    current = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
    p = probs_after(current)
    residual_q = dict(proposals)
    for node, parent in enumerate(shape.parents[1:], 1):
        active = current == parent
        if on_cpu and not active.any():
            continue
        accept_ratio, residual, q = _try_child(p, residual_q.get(parent), tokens[:, node : node + 1])
        if q is not None:
            residual_q[parent] = q
        mass = residual.sum(dim=-1)
        accepted = active & ((uniforms[:, node] < accept_ratio) | (mass <= 0))
        p = torch.where((active & ~accepted)[:, None], normalized(residual), p)
        if not on_cpu or accepted.any():
            current = torch.where(accepted, node, current)
            p = torch.where(accepted[:, None], probs_after(current), p)
    return current, draw(p, uniforms[:, 0])


def _is_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def _try_child(
    p: torch.Tensor, q: torch.Tensor | None, token: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(accept ratio p/q [B], min(1, ·) implied; residual p if rejected [B, V]; residual q [B, V]) of a child [B, 1]."""
    if q is None:
        return p.gather(1, token)[:, 0], p.scatter(1, token, 0.0), None
    accept_ratio = (p.gather(1, token) / q.gather(1, token))[:, 0]
    return accept_ratio, (p - q).clamp_min(0.0), normalized(q.scatter(1, token, 0.0))


class LosslessRule:
    """Exact sampling: tokens have the base model's distribution with temperature, top-k and top-p."""

    argmax_only = False

    def __init__(self, warp: LogitsWarper, generator: torch.Generator):
        self.warp, self.generator = warp, generator

    def first(self, target_output: ForwardOutput) -> int:
        logits = target_output.logits[-1]
        return int(draw(self.warp(logits), self._uniforms(1, logits.device)[0]))

    def __call__(self, tree: DraftTree, target_output: ForwardOutput) -> Verification:
        logits, probs_after = target_output.logits, lambda nodes: self.warp(logits[nodes])
        if not _is_cpu(logits.device):  # for all nodes at once
            probs_after = self.warp(logits).__getitem__
        node, token = accept_lossless(
            tree.shape,
            torch.tensor([tree.tokens], device=logits.device),
            probs_after,
            {parent: q[None].to(logits.device) for parent, q in tree.proposals.items()},
            self._uniforms(len(tree), logits.device)[None],
        )
        last, bonus_token = torch.cat([node, token]).tolist()
        return Verification(tree.shape.path(last), bonus_token)

    def _uniforms(self, count: int, device: torch.device) -> torch.Tensor:
        return torch.rand(count, generator=self.generator, dtype=torch.float64).to(device)


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
    parents = torch.tensor(shape.parents[1:], dtype=torch.long, device=probs.device)
    node_probs = probs[parents, torch.tensor(tokens[1:], dtype=torch.long, device=probs.device)]
    typical = (node_probs > threshold[parents]).tolist()
    likelihood = [0.0, *node_probs.clamp_min(1e-30).log().tolist()]
    best, alive = 0, [True]
    for node, parent in enumerate(shape.parents[1:], 1):
        alive.append(alive[parent] and typical[node - 1])
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

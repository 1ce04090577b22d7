"""Medusa: heads on the base model's last hidden state predict the tokens after the next one, for a static tree."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from decoding.drafters.base import WIDEST_TREE, Drafter, PrefillContext, TuningSpace, check_ranks, is_fast
from decoding.target import Target
from decoding.tree import DraftTree, TreeShape, shape_from_choices
from decoding.tuning import wide_choices
from models.runtime.graphs import CapturedFunction, Tensors
from models.runtime.interface import ForwardOutput
from models.runtime.linear import pack_module
from speculoos.errors import BadInput

DEFAULT_CHOICES = ((0,), (0, 0), (1,), (0, 0, 0), (0, 1), (2,), (0, 0, 0, 0))
"""Eight nodes including the root: on a CPU a forward of eight costs little more than a forward of one. Choices deeper
than the number of heads are dropped."""


class MedusaDrafter(Drafter):
    """Node (r1, …, rd) of the tree is candidate rd of head d - 1; all heads use the same hidden state."""

    name = "medusa"

    def __init__(self, heads: Any, choices: Sequence[Sequence[int]] | None = None, graphed: bool = False):
        """`heads` maps hidden [H] to logits [num_heads, V], on a GPU in a CUDA graph if `graphed`. Raises BadInput for
        choices deeper than the heads."""
        self.heads, self.num_heads = heads, heads.config.medusa_num_heads
        if choices is None:
            choices = [c for c in DEFAULT_CHOICES if len(c) <= self.num_heads]
        self.shape = shape_from_choices(choices)
        if self.shape.max_depth > self.num_heads:
            raise BadInput(
                f"The tree is {self.shape.max_depth} deep and this draft has {self.num_heads} Medusa heads; "
                "use a shallower tree."
            )
        self.hidden: torch.Tensor | None = None
        self.graphed = graphed
        self._graph: CapturedFunction | None = None

    def nbytes(self) -> int:
        return self._graph.nbytes if self._graph else 0

    def prefill(self, start: PrefillContext) -> None:
        self.hidden = start.target_output.hidden[-1]

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        self.hidden = target_output.hidden[nodes[-1]]

    @torch.inference_mode()
    def propose(self, token: int) -> DraftTree:
        if len(self.shape) == 1:
            return DraftTree((token,))
        (candidates,) = self._captured() if self.graphed else self._candidates(self.hidden)
        return fill_shape(self.shape, token, *candidates.tolist())

    def _captured(self) -> Tensors:
        if self._graph is None:
            self._graph = CapturedFunction(self._candidates, [torch.empty_like(self.hidden)])
        self._graph.fill(self.hidden)
        return self._graph()

    def _candidates(self, hidden: torch.Tensor) -> Tensors:
        logits = self.heads(hidden, self.shape.max_depth).float()
        return (best_candidates(self.shape, logits, self.heads.to_target),)

    def network_pass(self, rows: int) -> Callable[[], Any]:
        hidden = self.hidden.expand(rows, -1).contiguous()
        return torch.inference_mode()(lambda: self.heads(hidden, self.shape.max_depth))


def best_candidates(
    shape: TreeShape, logits: torch.Tensor, token_ids: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Token ids and log probabilities [2, depths, ranks] of the best tokens at each depth, fp32, which holds token ids
    exactly. `logits`: fp32 [depths, V']; `token_ids` maps indices into V'."""
    best = logits.topk(max(shape.ranks) + 1, dim=-1)
    return torch.stack([token_ids(best.indices), best.values - logits.logsumexp(dim=-1, keepdim=True)])


def fill_shape(shape: TreeShape, token: int, ids: list[list[float]], logprobs: list[list[float]]) -> DraftTree:
    """The tree with the root `token` and the candidate `ids[depth - 1][rank]` at every other node."""
    nodes = list(zip(shape.depths, shape.ranks, strict=True))[1:]
    tokens = (token, *(int(ids[depth - 1][rank]) for depth, rank in nodes))
    return DraftTree(tokens, shape, (0.0, *(logprobs[depth - 1][rank] for depth, rank in nodes)))


def make(target: Target, draft: Any, options: dict[str, Any]) -> MedusaDrafter:
    """The drafter of Medusa heads. For a fast target the heads are packed in place, and a GPU runs them as a graph."""
    if is_fast(target):
        pack_module(draft)
    drafter = MedusaDrafter(draft, options.get("tree"), is_fast(target))
    check_ranks(drafter.shape.ranks, len(draft.draft_ids))
    return drafter


def tuning(draft: Any) -> TuningSpace:
    """Static trees are tuned, up to one level for each head."""
    nodes = WIDEST_TREE["nodes"]
    return TuningSpace(draft.num_heads, lambda depth: {"tree": wide_choices(depth, nodes)}, one_pass=True)

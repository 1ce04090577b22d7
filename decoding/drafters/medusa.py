"""Medusa: heads on the base model's last hidden state predict the tokens after the next one, for a static tree."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from decoding.drafters.base import WIDEST_TREE, PrefillContext, TuningSpace, check_ranks, is_fast
from decoding.drafters.expansion import Grown, PositionLogits, StaticTree, TreeDrafter
from decoding.target import Target
from decoding.tree import shape_from_choices
from decoding.tuning import wide_choices
from models.runtime.graphs import CapturedFunction
from models.runtime.interface import ForwardOutput
from models.runtime.linear import pack_module
from speculoos.errors import BadInput

DEFAULT_CHOICES = ((0,), (0, 0), (1,), (0, 0, 0), (0, 1), (2,), (0, 0, 0, 0))
"""Eight nodes including the root: on a CPU a forward of eight costs little more than a forward of one. Choices deeper
than the number of heads are dropped."""


class MedusaDrafter(TreeDrafter):
    """Node (r1, …, rd) of the tree is candidate rd of head d - 1; all heads use the same hidden state."""

    name = "medusa"

    def __init__(
        self, heads: Any, device: torch.device, choices: Sequence[Sequence[int]] | None = None, graphed: bool = False
    ):
        """`heads` maps hidden [H] to logits [num_heads, V'], on a GPU in a CUDA graph if `graphed`. Raises BadInput for
        choices deeper than the heads."""
        deepest = heads.config.medusa_num_heads
        if choices is None:
            choices = [c for c in DEFAULT_CHOICES if len(c) <= deepest]
        shape = shape_from_choices(choices)
        if shape.max_depth > deepest:
            raise BadInput(
                f"The tree is {shape.max_depth} deep and this draft has {deepest} Medusa heads; use a shallower tree."
            )
        self.heads, self.device, self.graphed = heads, device, graphed
        self.growth = StaticTree(shape, device)
        self.hidden: torch.Tensor | None = None
        self._graph: CapturedFunction | None = None

    def nbytes(self) -> int:
        return self._graph.nbytes if self._graph else 0

    def prefill(self, start: PrefillContext) -> None:
        self.hidden = start.target_output.hidden[-1]

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        self.hidden = target_output.hidden[nodes[-1]]

    def expander(self) -> PositionLogits:
        return self._depths(self.hidden)

    def grow_captured(self) -> Grown:
        if self._graph is None:
            self._graph = CapturedFunction(self._grow, [torch.empty_like(self.hidden)])
        self._graph.fill(self.hidden)
        return self._graph()

    def _grow(self, hidden: torch.Tensor) -> Grown:
        return self.growth.grow(self._depths(hidden))

    def _depths(self, hidden: torch.Tensor) -> PositionLogits:
        return PositionLogits(self.heads(hidden, self.growth.max_depth), self.heads.to_target)

    def network_pass(self, rows: int) -> Callable[[], Any]:
        hidden = self.hidden.expand(rows, -1).contiguous()
        return torch.inference_mode()(lambda: self.heads(hidden, self.growth.max_depth))


def make(target: Target, draft: Any, options: dict[str, Any]) -> MedusaDrafter:
    """The drafter of Medusa heads. For a fast target the heads are packed in place, and a GPU runs them as a graph."""
    if is_fast(target):
        pack_module(draft)
    device = target.base.device
    drafter = MedusaDrafter(draft, device, options.get("tree"), is_fast(target) and device.type == "cuda")
    check_ranks(drafter.growth.shape.ranks, len(draft.draft_ids))
    return drafter


def tuning(draft: Any) -> TuningSpace:
    """Static trees are tuned, up to one level for each head."""
    nodes = WIDEST_TREE["nodes"]
    return TuningSpace(draft.num_heads, lambda depth: {"tree": wide_choices(depth, nodes)}, one_pass=True)

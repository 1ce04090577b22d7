"""P-EAGLE drafter: one forward for all depths; chains, static trees by ranks, EAGLE-2's dynamic trees.

The draft's cache is EAGLE's: a row for every position t of the sequence except the last, the feature of t with token
t+1. A drafting forward computes the rows of the accepted tokens and, after them, one masked row for each further depth;
masked rows are dropped again. All nodes of a depth have the same distribution, whatever their parents are.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from decoding.drafters import eagle
from decoding.drafters.base import MAX_TUNING_DEPTH, WIDEST_TREE, TuningSpace
from decoding.drafters.expansion import PositionLogits
from decoding.target import Target
from models.draft_layers import causal_mask
from models.runtime.cache import upload
from models.runtime.graphs import TreeRows
from speculoos.errors import BadInput


class PEagleDrafter(eagle.EagleDrafter):
    """See `EagleDrafter`. `mask_hidden` [3H] and `mask_token_id` are the inputs of masked rows."""

    def __init__(self, *options: Any, mask_hidden: torch.Tensor, mask_token_id: int):
        super().__init__(*options)
        masked = max(self.growth.max_depth - 1, 0)
        self.mask_feature = self.draft.fuse(mask_hidden[None], mask_hidden[None])
        self.mask_features = self.mask_feature.expand(masked, -1)
        self.mask_ids = torch.full((masked,), mask_token_id, device=self.device)

    @torch.inference_mode()
    def expander(self) -> PositionLogits:
        length, count = len(self.shifted_ids), sum(map(len, self.pending))
        start, outputs = length - count, self.last[:0]
        self.cache.crop(start)
        if rows := count + len(self.mask_ids):
            ids = torch.cat([upload(self.shifted_ids[start:], self.device).long(), self.mask_ids])
            positions = torch.arange(start, start + rows, device=self.device)
            outputs = self.draft(torch.cat([*self.pending, self.mask_features]), ids, positions, self.cache)
        if count:
            self.last, self.pending = outputs[count - 1 : count], []
        self.cache.crop(length)
        return self._depths(torch.cat([self.last, outputs[count:]]))

    def _depths(self, outputs: torch.Tensor) -> PositionLogits:
        """`outputs` [depths, H] of the draft."""
        return PositionLogits(self.draft.logits(outputs), self.draft.to_target)

    def network_pass(self, rows: int) -> Callable[[], Any]:
        """One token and the masked rows of each sequence."""
        count, length = rows * (1 + len(self.mask_ids)), self.cache.length
        features, ids = self.mask_feature.expand(count, -1), torch.zeros(count, dtype=torch.int64, device=self.device)
        positions = length + torch.arange(count, device=self.device)

        @torch.inference_mode()
        def run() -> None:
            self.draft.logits(self.draft(features, ids, positions, self.cache))
            self.cache.crop(length)

        return run

    def captured_expander(self, root: torch.Tensor, tree: TreeRows, rotations: torch.Tensor) -> PositionLogits:
        masked = len(self.mask_ids)
        positions = tree.length + torch.arange(masked, device=self.device)
        view = tree.view(positions, causal_mask(masked, masked, self.device))
        outputs = (
            self.draft.compute(self.mask_features, self.mask_ids, rotations[positions], view) if masked else root[:0]
        )
        return self._depths(torch.cat([root, outputs]))


def make(target: Target, draft: Any, options: dict[str, Any]) -> eagle.EagleDrafter:
    """The drafter of a P-EAGLE draft. Raises BadInput for a tree deeper than the draft was trained for."""
    depths = draft.config.num_depths
    if "tree" not in options:
        options = {"depth": min(eagle.default_tree(target).depth, depths - 1), **options}
    mask = {"mask_hidden": draft.mask_hidden.flatten().detach(), "mask_token_id": draft.config.mask_token_id}
    drafter = eagle.make(target, draft, options, partial(PEagleDrafter, **mask))
    if (depth := drafter.growth.max_depth) > depths:
        raise BadInput(f"The tree is {depth} deep and this draft has {depths} depths; use a shallower tree.")
    return drafter


def tuning(draft: Any) -> TuningSpace:
    deepest = min(draft.config.num_depths, MAX_TUNING_DEPTH)
    return TuningSpace(deepest, lambda depth: {"depth": depth - 1, **WIDEST_TREE}, dynamic=True, one_pass=True)

"""DFlash: one forward of the draft fills a block of tokens after the last one, for a chain or a static tree.

The draft's cache has a row (key and value) for every position of the sequence except the last: features of the base
model, injected as soon as it has computed them. The rows of a block follow them and are overwritten by the next
injection. Positions of a block are predicted independently of each other, so all nodes of a tree at one depth share one
distribution, as with Medusa heads."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from decoding.drafters.base import (
    WIDEST_TREE,
    ChildSampling,
    Drafter,
    PrefillContext,
    TuningSpace,
    check_ranks,
    is_fast,
)
from decoding.drafters.dflash_runners import BlockRunner, PackedBlockRunner, packed_runner
from decoding.drafters.expansion import PositionLogits, StaticTree
from decoding.drafters.medusa import best_tree
from decoding.target import Target, common_prefix
from decoding.tree import DraftTree, TreeShape, chain_shape, shape_from_choices
from decoding.tuning import wide_choices
from models.base import LoadedBase
from models.methods import trees
from models.runtime.cache import upload
from models.runtime.interface import ForwardOutput
from speculoos.errors import BadInput, Unsupported

DEFAULT_DEPTH = 4


class DFlashDrafter(Drafter):
    """Fills `shape`. `sample`: children are sampled if the generation samples."""

    name = "dflash"

    def __init__(
        self, draft: BlockRunner | PackedBlockRunner, shape: TreeShape, base: LoadedBase, sample: bool = False
    ):
        self.draft, self.shape, self.sample, self.vocab_size = draft, shape, sample, base.vocab_size
        self.layers = tuple(draft.layers_wanted)
        self.growth = StaticTree(shape, base.device)
        self.sampling: ChildSampling | None = None
        self.cache = draft.new_cache()
        self.ids: list[int] = []  # of the tokens with rows in the cache
        self.last = -1  # the token after them

    def nbytes(self) -> int:
        return self.cache.nbytes()

    def max_reusable_prefix(self, prompt_ids: Sequence[int]) -> int:
        return common_prefix(self.ids, prompt_ids)

    def prefill(self, start: PrefillContext) -> None:
        self.sampling = start.sampling(self.vocab_size) if self.sample else None
        cached_count = len(start.prompt_ids) - len(start.target_output.hidden)
        self.cache.crop(cached_count)
        self.ids = self.ids[:cached_count]  # if the injection fails, these are the ones with rows
        self.draft.inject(start.target_output.features, self.cache)
        self.ids, self.last = list(start.prompt_ids), start.token

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        features = target_output.features
        self.draft.inject(features[upload(list(nodes), features.device)], self.cache)
        self.ids += [self.last, *tokens[:-1]]
        self.last = tokens[-1]

    @torch.inference_mode()
    def propose(self, token: int) -> DraftTree:
        if len(self.shape) == 1:
            return DraftTree((token,))
        logits = self.draft.logits(self.draft.block(token, self.cache)[1 : self.shape.max_depth + 1]).float()
        if self.sampling is not None:
            uniforms = upload(self.sampling.uniforms(len(self.shape) - 1), logits.device)
            return self.growth.tree(
                token, self.growth.grow(PositionLogits(logits, self.draft.to_target), self.sampling, uniforms)
            )
        return best_tree(self.shape, token, logits, self.draft.to_target)

    def network_pass(self, rows: int) -> Callable[[], Any]:
        """A block of each sequence."""
        drafted = rows * self.shape.max_depth

        return torch.inference_mode()(
            lambda: self.draft.logits(self.draft.block(self.last, self.cache, rows)[:drafted])
        )


def make(target: Target, draft: Any, options: dict[str, Any]) -> DFlashDrafter:
    """The drafter of a DFlash draft. For a fast target the draft's weights are moved to a packed runner."""
    longest = draft.block_size - 1
    tree, depth = options.get("tree"), options.get("depth", min(DEFAULT_DEPTH, longest))
    shape = chain_shape(depth) if tree is None else shape_from_choices(tree)
    if shape.max_depth > longest:
        raise BadInput(
            f"The tree is {shape.max_depth} deep and this draft fills {longest} tokens after the known one; use a "
            "shallower tree."
        )
    check_ranks(shape.ranks, draft.config.draft_vocab_size or target.base.vocab_size)
    if not is_fast(target) and draft.runner is not None:
        raise Unsupported("This draft was packed for a fast target; load it again to use it with another target.")
    runner = packed_runner(draft) if is_fast(target) else BlockRunner(draft)
    return DFlashDrafter(runner, shape, target.base, bool(options.get("sample", False)))


def tuning(draft: Any) -> TuningSpace:
    """Static trees are tuned, up to one level for each drafted position."""
    deepest = min(draft.block_size - 1, trees.MAX_DEPTH)
    return TuningSpace(deepest, lambda depth: {"tree": wide_choices(depth, WIDEST_TREE["nodes"])}, one_pass=True)

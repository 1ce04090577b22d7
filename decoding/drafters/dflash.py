"""DFlash: one forward of the draft fills a block of tokens after the last one, for a chain or a static tree.

The draft's cache has a row (key and value) for every position of the sequence except the last: features of the base
model, injected as soon as it has computed them. The rows of a block follow them and are overwritten by the next
injection. Positions of a block are predicted independently of each other, so all nodes of a tree at one depth share one
distribution, as with Medusa heads.

On a GPU a packed draft injects the accepted tokens' features and fills a block in one CUDA graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from decoding.drafters.base import WIDEST_TREE, PrefillContext, TuningSpace, check_ranks
from decoding.drafters.dflash_runners import BlockRunner, PackedBlockRunner
from decoding.drafters.expansion import Grown, PositionLogits, StaticTree, TreeDrafter
from decoding.drafters.runners import runner_of
from decoding.target import Target, common_prefix
from decoding.tree import TreeShape, chain_shape, shape_from_choices
from decoding.tuning import wide_choices
from models.base import LoadedBase
from models.methods import trees
from models.runtime.cache import upload
from models.runtime.graphs import BucketView, CapturedFunction, bucket_biases, bucket_of, captured
from models.runtime.interface import ForwardOutput
from speculoos.errors import BadInput

DEFAULT_DEPTH = 4


class DFlashDrafter(TreeDrafter):
    """Fills `shape`. `sample`: children are sampled if the generation samples."""

    name = "dflash"

    def __init__(
        self, draft: BlockRunner | PackedBlockRunner, shape: TreeShape, base: LoadedBase, sample: bool = False
    ):
        self.draft, self.sample, self.vocab_size = draft, sample, base.vocab_size
        self.layers = tuple(draft.layers_wanted)
        self.device, self.growth = base.device, StaticTree(shape, base.device)
        self.graphed = base.device.type == "cuda" and isinstance(draft, PackedBlockRunner)
        self.cache = draft.new_cache()
        self.ids: list[int] = []  # of the tokens with features
        self.pending: list[torch.Tensor] = []
        """Features of the last tokens, which have no rows in the cache yet."""
        self.last = -1  # the token after them

    def nbytes(self) -> int:
        return self.cache.nbytes()

    def max_reusable_prefix(self, prompt_ids: Sequence[int]) -> int:
        return common_prefix(self.ids[: self.cache.length], prompt_ids)

    def prefill(self, start: PrefillContext) -> None:
        self.sampling = start.sampling(self.vocab_size) if self.sample else None
        cached_count = len(start.prompt_ids) - len(start.target_output.hidden)
        self.cache.crop(cached_count)
        self.ids = self.ids[:cached_count]  # if the injection fails, these are the ones with rows
        features = start.target_output.features
        self.draft.inject(features, self.cache)
        self.pending = [features.new_empty(0, features.shape[1])]
        self.ids, self.last = list(start.prompt_ids), start.token

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        features = target_output.features
        self.pending.append(features[upload(list(nodes), features.device)])
        self.ids += [self.last, *tokens[:-1]]
        self.last = tokens[-1]

    def expander(self) -> PositionLogits:
        self._inject_pending()
        return self._depths(self.draft.block(self.last, self.cache))

    def _inject_pending(self) -> None:
        features = torch.cat(self.pending)
        if len(features):
            self.draft.inject(features, self.cache)
            self.pending = [features[:0].clone()]

    def _depths(self, block: torch.Tensor) -> PositionLogits:
        """`block`: outputs [S, H] of the draft."""
        return PositionLogits(self.draft.logits(block[1 : self.growth.max_depth + 1]), self.draft.to_target)

    def grow_captured(self, *uniforms: torch.Tensor) -> Grown:
        """Also injects the pending features."""
        most = self.growth.max_depth + 1  # an accepted path with its root
        if sum(map(len, self.pending)) > most:
            self._inject_pending()
        features, start, rows = torch.cat(self.pending), self.cache.length, most + self.draft.size
        self.draft.reserve(self.cache, rows)
        bucket = bucket_of(start + rows, self.cache.capacity)
        key = bucket, self.sampling
        grow = captured(self.cache.replays, key, lambda: self._captured(features, bucket, most, *uniforms))
        grow.fill(features, torch.tensor([self.last]), torch.tensor([start, len(features)]), *uniforms)
        grown = grow()
        self.cache.stage(len(features))
        self.cache.commit_all()
        self.pending = [features[:0].clone()]
        return grown

    def _captured(self, features: torch.Tensor, bucket: int, most: int, *uniforms: torch.Tensor) -> CapturedFunction:
        draft, cache, rotations = self.draft, self.cache, self.draft.rotations.for_length(bucket)

        def compute(aux: torch.Tensor, ids: torch.Tensor, at: torch.Tensor, *uniforms: torch.Tensor) -> Grown:
            """Of the `most` injected rows from at[0], at[1] are real; the block's rows overwrite the others."""
            rows = at[:1] + torch.arange(most, device=at.device)
            for index, keys_values in enumerate(draft.context_rows(aux, rotations[rows])):
                for storage, new in zip((cache.keys, cache.values), keys_values, strict=True):
                    storage[index, 0].index_copy_(1, rows, new.transpose(0, 1))
            length = at.sum()[None]
            rows = length + torch.arange(draft.size, device=at.device)
            visible = torch.ones(draft.size, draft.size, dtype=torch.bool, device=at.device)
            biases = bucket_biases(length, rows, rows, visible, bucket, draft.layout)
            block = draft.compute(ids, rotations[rows], BucketView(cache, rows, bucket, biases))
            return self.growth.grow(self._depths(block), self.sampling, *uniforms)

        pending = features.new_zeros(most, features.shape[1])
        return CapturedFunction(compute, [pending, *self.buffers(1, *uniforms)], rotations)

    def network_pass(self, rows: int) -> Callable[[], Any]:
        """A block of each sequence."""
        drafted = rows * self.growth.max_depth
        self._inject_pending()
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
    runner = runner_of(target, draft, BlockRunner, PackedBlockRunner)
    return DFlashDrafter(runner, shape, target.base, bool(options.get("sample", False)))


def tuning(draft: Any) -> TuningSpace:
    """Static trees are tuned, up to one level for each drafted position."""
    deepest = min(draft.block_size - 1, trees.MAX_DEPTH)
    return TuningSpace(deepest, lambda depth: {"tree": wide_choices(depth, WIDEST_TREE["nodes"])}, one_pass=True)

"""EAGLE-1 and EAGLE-3 drafters: static trees, EAGLE-2's dynamic trees, chains (a dynamic tree of top_k 1).

The draft extrapolates the base model's features. Its cache has a row (key and value) for every position t of the
sequence except the last: the feature of t with token t+1. The rows of the current tree, whose features are predicted,
follow and are dropped.

On a GPU a packed draft computes the accepted tokens' rows and grows a tree in one CUDA graph. Shapes: n positions, H
hidden size of the base model, V' draft vocabulary; no batch dimension.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from decoding.drafters.base import (
    MAX_TUNING_DEPTH,
    WIDEST_TREE,
    ChildSampling,
    PrefillContext,
    TuningSpace,
    check_ranks,
)
from decoding.drafters.expansion import DynamicTree, Expander, Grown, StaticTree, TreeDrafter, TreeMask
from decoding.drafters.runners import EagleRunner, ModuleRunner, PackedRunner, runner_of
from decoding.target import MAX_PREFILL_TOKENS, Target, common_prefix
from decoding.tree import TreeShape, shape_from_choices
from models.base import LoadedBase
from models.runtime.cache import upload
from models.runtime.graphs import CapturedFunction, TreeRows, bucket_of, captured, padded_rows
from models.runtime.interface import ForwardOutput

GPU_TREE = DynamicTree()  # the default of EAGLE's own code; for a GPU
CPU_TREE = DynamicTree(depth=3, top_k=3, nodes=8)
"""For a CPU, where a forward of eight nodes costs little more than a forward of one."""


class EagleDrafter(TreeDrafter):
    """`tree`: static or dynamic. `sample`: children of a static shape are sampled if the generation samples."""

    def __init__(self, draft: EagleRunner, tree: TreeShape | DynamicTree, base: LoadedBase, sample: bool = False):
        self.draft, self.sample = draft, sample
        self.vocab_size, self.device = base.vocab_size, base.device
        self.growth = StaticTree(tree, base.device) if isinstance(tree, TreeShape) else tree
        self.graphed = base.device.type == "cuda" and isinstance(draft, PackedRunner)
        self.name = draft.method
        self.layers = tuple(draft.layers_wanted)
        self.cache = draft.new_cache()
        self.shifted_ids: list[int] = []  # token ids 1, 2, … of the sequence: shifted_ids[t] is that of cache row t
        self.first_id = -1  # token id 0 of the sequence, which has no row
        self.pending: list[torch.Tensor] = []
        """Features of tokens whose rows are not computed yet; with graphs also of the last token."""
        self.last = torch.empty(0)  # the draft's output [1, H] after the sequence, the root of the next tree

    def nbytes(self) -> int:
        return self.cache.nbytes()

    def max_reusable_prefix(self, prompt_ids: Sequence[int]) -> int:
        """One less than the common prefix with the present sequence: its last feature must be computed again."""
        computed = len(self.shifted_ids) - sum(map(len, self.pending))  # later rows are predictions of the last tree
        return max(common_prefix([self.first_id, *self.shifted_ids[:computed]], prompt_ids) - 1, 0)

    def prefill(self, start: PrefillContext) -> None:
        self.sampling = start.sampling(self.vocab_size) if self.sample else None
        prompt_ids, features = start.prompt_ids, self._features(start.target_output)
        self.cache.crop(len(prompt_ids) - len(features))
        self.first_id, self.shifted_ids, self.pending = prompt_ids[0], [*prompt_ids[1:], start.token], [features]
        self._compute_pending(leave=1 if self.graphed else 0)

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        self.pending.append(self._features(target_output, nodes))
        self.shifted_ids += tokens

    @torch.inference_mode()
    def expander(self) -> "EagleExpander":
        if self.pending:
            last = self.pending[-1][-1:]
            self._compute_pending()
            self.pending = [last] if self.graphed else []
        self.cache.crop(len(self.shifted_ids))
        return EagleExpander(self.draft, self.last, self._run)

    def network_pass(self, rows: int) -> Callable[[], Any]:
        expander, ids = self.expander(), torch.tensor(self.shifted_ids[-1:] * rows, device=self.device)
        return lambda: expander.add(ids, torch.zeros_like(ids))

    def _run(self, features: torch.Tensor, ids: torch.Tensor, level: int, visible: torch.Tensor) -> torch.Tensor:
        """Compute the nodes of a level after the sequence and the levels before."""
        length = len(self.shifted_ids)
        positions = torch.full((len(ids),), length - 1 + level, device=ids.device)
        return self.draft(features, ids, positions, self.cache, F.pad(visible, (length, 0), value=True))

    def grow_captured(self, *uniforms: torch.Tensor) -> Grown:
        """Also computes the pending rows."""
        most = self.growth.max_depth + 2  # an accepted path with its root, and the last token again
        if sum(map(len, self.pending)) > most:
            self._compute_pending(leave=most)
        features, length, rows = torch.cat(self.pending), len(self.shifted_ids), most + self.growth.rows
        start = length - len(features)
        self.cache.crop(start)
        self.draft.reserve(self.cache, rows)
        bucket = bucket_of(start + rows, self.cache.capacity)
        key = bucket, most, self.sampling
        grow = captured(self.cache.replays, key, lambda: self._captured(features, *key, *uniforms))
        grow.fill(features, torch.tensor(self.shifted_ids[start:]), torch.tensor([start, len(features)]), *uniforms)
        self.cache.stage(len(features) - 1)
        self.cache.commit_all()
        grown = grow()
        self.pending = [features[-1:]]
        return grown

    def _captured(
        self, features: torch.Tensor, bucket: int, most: int, sampling: ChildSampling | None, *uniforms: torch.Tensor
    ) -> CapturedFunction:
        draft, cache, rotations = self.draft, self.cache, self.draft.rotations.for_length(bucket)

        def compute(features: torch.Tensor, ids: torch.Tensor, at: torch.Tensor, *uniforms: torch.Tensor) -> Grown:
            positions, view, tree = padded_rows(cache, bucket, at, most, draft.layout)
            out = draft.compute(features, ids, rotations[positions], view)
            expander = self.captured_expander(out.index_select(0, at[1:] - 1), tree, rotations)
            return self.growth.grow(expander, sampling, *uniforms)

        pending = features.new_zeros(most, features.shape[1])
        return CapturedFunction(compute, [pending, *self.buffers(most, *uniforms)], rotations)

    def captured_expander(self, root: torch.Tensor, tree: TreeRows, rotations: torch.Tensor) -> Expander:
        """Within a graph, an empty tree after the draft's output `root` [1, H], whose rows are `tree`."""

        def run(x: torch.Tensor, ids: torch.Tensor, level: int, visible: torch.Tensor) -> torch.Tensor:
            positions = (tree.length - 1 + level).expand(len(ids))
            return self.draft.compute(x, ids, rotations[positions], tree.view(positions, visible))

        return EagleExpander(self.draft, root, run)

    @torch.inference_mode()
    def _compute_pending(self, leave: int = 0) -> None:
        """Compute the rows of pending features, except the last `leave`."""
        features = torch.cat(self.pending)
        start, count = len(self.shifted_ids) - len(features), max(len(features) - leave, 0)
        self.cache.crop(start)
        assert self.cache.length == start, (self.cache.length, start)
        for chunk in features[:count].split(MAX_PREFILL_TOKENS) if count else ():  # a long prompt's mask is too large
            ids = upload(self.shifted_ids[start : start + len(chunk)], self.device)
            positions = torch.arange(start, start + len(chunk), device=self.device)
            self.last = self.draft(chunk, ids, positions, self.cache)[-1:]
            start += len(chunk)
        self.pending = [features[count:].clone()] if leave else []  # last, so that a failure leaves all rows pending

    @torch.inference_mode()
    def _features(self, target_output: ForwardOutput, nodes: Sequence[int] | None = None) -> torch.Tensor:
        """Features of all rows, or of the rows `nodes`."""
        hidden, aux = target_output.hidden, target_output.features if self.layers else None
        if nodes is not None:
            index = upload(list(nodes), hidden.device)
            hidden, aux = hidden[index], None if aux is None else aux[index]
        return self.draft.fuse(hidden, aux)


class EagleExpander:
    """The nodes of one tree of an EAGLE draft; the feature of a node is its parent's output."""

    def __init__(self, draft: EagleRunner, root: torch.Tensor, run: Callable[..., torch.Tensor]):
        """`root` [1, H]: the draft's output after the sequence. `run(features [n, H], token ids [n], level, visible)`:
        outputs [n, H] of a level; `visible`: see `TreeMask.add`."""
        self.draft, self.outputs, self.run, self.mask = draft, root, run, TreeMask(root.device)
        self.token_ids = draft.to_target

    def root(self) -> torch.Tensor:
        return self.draft.logits(self.outputs)

    @torch.inference_mode()
    def add(self, ids: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        visible = self.mask.add(parents)
        out = self.run(self.outputs.index_select(0, parents), ids, self.mask.level, visible)
        self.outputs = torch.cat([self.outputs, out])
        return self.draft.logits(out)


def make(
    target: Target, draft: Any, options: dict[str, Any], kind: Callable[..., EagleDrafter] = EagleDrafter
) -> EagleDrafter:
    """The drafter of an EAGLE draft, of the class `kind`. For a fast target the draft's weights are moved to a packed
    runner."""
    sample = bool(options.pop("sample", False))
    tree = tree_of(target, options, getattr(draft.config, "draft_vocab_size", 0) or target.base.vocab_size)
    return kind(runner_of(target, draft, ModuleRunner, PackedRunner), tree, target.base, sample)


def tree_of(target: Target, options: dict[str, Any], draft_vocab_size: int) -> TreeShape | DynamicTree:
    """The static tree of the option `tree`, or the default dynamic tree with the other options. Raises BadInput if it
    needs more tokens than the draft has."""
    if "tree" in options:
        shape = shape_from_choices(options["tree"])
        check_ranks(shape.ranks, draft_vocab_size)
        return shape
    tree = replace(default_tree(target), **options)
    check_ranks([tree.top_k - 1], draft_vocab_size)
    return tree


def default_tree(target: Target) -> DynamicTree:
    return GPU_TREE if target.base.device.type == "cuda" else CPU_TREE


def tuning(draft: Any) -> TuningSpace:
    return TuningSpace(MAX_TUNING_DEPTH, lambda depth: {"depth": depth - 1, **WIDEST_TREE}, dynamic=True)

"""A smaller causal model as drafter, with its own KV cache, which follows the sequence."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from decoding.drafters.base import MAX_TUNING_DEPTH, ChildSampling, PrefillContext, TuningSpace, is_fast
from decoding.drafters.expansion import Grown, StaticTree, TreeDrafter, TreeMask
from decoding.target import Target, common_prefix, fast_target
from decoding.tree import DraftTree, TreeShape, chain_shape, shape_from_choices
from models.runtime.attention import CacheView
from models.runtime.graphs import CapturedFunction, TreeRows, bucket_of, captured, padded_rows
from models.runtime.interface import ForwardOutput, Inputs


class StandaloneDrafter(TreeDrafter):
    """Fills a static shape (a chain by default) level by level; on a GPU in one CUDA graph. If the generation samples,
    so does the drafter; with `sample=False` it proposes its best tokens, which is also lossless, but fewer are accepted
    at high temperature."""

    name = "draft"  # the stored id of the method, not a draft model

    def __init__(self, draft_model: Target, shape: TreeShape, vocab_size: int, sample: bool = True):
        """`draft_model` is a Target of the small model; it must not be the target that verifies."""
        self.draft_model, self.vocab_size, self.sample = draft_model, vocab_size, sample
        self.device = draft_model.base.device
        self.growth = StaticTree(shape, self.device)
        self._most = self.growth.max_depth + 1  # rows that a graph computes before the tree: an accepted path, its end
        self.graphed = self.device.type == "cuda" and is_fast(draft_model)
        self.ids: list[int] = []
        self.synced = 0  # number of leading tokens that the draft's cache and the sequence have in common

    def nbytes(self) -> int:
        return self.draft_model.cache.nbytes()

    def prefill(self, start: PrefillContext) -> None:
        self.sampling = start.sampling(self.vocab_size) if self.sample else None
        self.ids = [*start.prompt_ids, start.token]
        self.synced = 0
        if len(start.prompt_ids) < self.draft_model.max_length:
            self.draft_model.prefill(start.prompt_ids)
            self.synced = len(start.prompt_ids)

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        self.ids += tokens

    def propose(self, token: int) -> DraftTree:
        padding = self._most if self.graphed else 0
        if len(self.ids) + padding + self.growth.nodes > self.draft_model.max_length:
            return DraftTree((token,))  # the draft's context is full, so plain decoding continues
        return super().propose(token)

    def expander(self) -> "StandaloneDrafter":
        return self

    def network_pass(self, rows: int) -> Callable[[], Any] | None:
        if rows > self.draft_model.free_positions:
            return None
        tree = DraftTree.chain((self.draft_model.ids * rows)[:rows])
        return lambda: self.draft_model.forward_tree(tree)

    def _missing(self) -> list[int]:
        """The tokens that the draft's cache lacks, at least the last. Mutates the draft: drops what differs."""
        self.synced += common_prefix(self.draft_model.ids[self.synced :], self.ids[self.synced : -1])
        self.synced = min(self.synced, len(self.ids) - 1)
        self.draft_model.rewind(self.synced)
        return self.ids[self.synced :]

    def root(self) -> torch.Tensor:
        """Update the draft's cache to the sequence; logits [1, V'] after it."""
        *missing, token = self._missing()
        self._tokens: list[int] = []
        self._parents: list[int] = []
        if self.growth.shape.is_chain:
            return self.draft_model.extend([*missing, token], last_only=True).logits[-1:]
        if missing:
            self.draft_model.extend(missing, last_only=True)
        return self.add(torch.tensor([token]), torch.tensor([-1]))

    def add(self, ids: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Chains are cached; for a tree all nodes are computed again, which costs about as much as a forward of one."""
        if self.growth.shape.is_chain:
            return self.draft_model.extend(ids.tolist()).logits
        self._tokens += ids.tolist()
        self._parents += parents.tolist()
        return self.draft_model.forward_tree(DraftTree.build(self._tokens, self._parents)).logits[-len(ids) :]

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        return choices

    def grow_captured(self, *uniforms: torch.Tensor) -> Grown:
        """Also computes the missing rows."""
        model, missing, most = self.draft_model, self._missing(), self._most
        if len(missing) > most:
            model.extend(missing[:-most], last_only=True)
        last, start = missing[-most:], len(model.ids)
        heads, rows = model.forward.heads, most + self.growth.nodes
        model.cache.reserve(heads.num_kv_heads, heads.dim, model.base.dtype, self.device, rows)
        key = bucket_of(start + rows, model.cache.capacity), most, self.sampling
        grow = captured(model.cache.replays, ("tree", *key), lambda: self._captured(*key, *uniforms))
        grow.fill(torch.tensor(last), torch.tensor([start, len(last)]), *uniforms)
        model.cache.stage(len(last))
        model.cache.commit_all()
        model.ids += last
        self.synced = len(model.ids)
        return grow()

    def _captured(
        self, bucket: int, most: int, sampling: ChildSampling | None, *uniforms: torch.Tensor
    ) -> CapturedFunction:
        forward, cache = self.draft_model.forward, self.draft_model.cache
        rotations = forward.rotations.for_length(bucket)

        def run(ids: torch.Tensor, positions: torch.Tensor, view: CacheView) -> torch.Tensor:
            return forward.compute(Inputs(ids, positions, 0, (len(ids),)), rotations[positions], view).logits

        def compute(ids: torch.Tensor, at: torch.Tensor, *uniforms: torch.Tensor) -> Grown:
            positions, view, tree = padded_rows(cache, bucket, at, most, forward.layout)
            root = run(ids, positions, view).index_select(0, at[1:] - 1)
            return self.growth.grow(_Expander(root, run, tree), sampling, *uniforms)

        return CapturedFunction(compute, self.buffers(most, *uniforms), rotations)


class _Expander:
    """The nodes of one tree within a graph."""

    def __init__(self, logits: torch.Tensor, run: Callable[..., torch.Tensor], rows: TreeRows):
        """`logits` [1, V']: after the sequence. `run(ids [n], positions [n], view)`: logits [n, V'] of a level."""
        self.logits, self.run, self.rows, self.mask = logits, run, rows, TreeMask(logits.device)

    def root(self) -> torch.Tensor:
        return self.logits

    def add(self, ids: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        visible = self.mask.add(parents)
        positions = (self.rows.length - 1 + self.mask.level).expand(len(ids))
        return self.run(ids, positions, self.rows.view(positions, visible))

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        return choices


def make(target: Target, draft: Any, options: dict[str, Any]) -> StandaloneDrafter:
    """The drafter of a standalone draft. For a fast target the small model uses the fast runtime if supported."""
    shape = shape_from_choices(options["tree"]) if "tree" in options else chain_shape(options.get("depth", 4))
    draft_model = (fast_target if is_fast(target) else Target)(draft.as_base(target.base), target.max_length)
    return StandaloneDrafter(draft_model, shape, target.base.vocab_size, bool(options.get("sample", True)))


def tuning(draft: Any) -> TuningSpace:
    return TuningSpace(MAX_TUNING_DEPTH, lambda depth: {"tree": [[0] * depth]})

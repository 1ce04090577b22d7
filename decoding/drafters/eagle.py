"""EAGLE-1 and EAGLE-3 drafters: static trees, EAGLE-2's dynamic trees, chains (a dynamic tree of top_k 1).

The draft extrapolates the base model's features. Its cache has a row for every position t of the text except the last:
the feature of t with token t+1. The rows of the current tree, whose features are predicted, follow and are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F

from decoding.drafters.base import (
    MAX_TUNING_DEPTH,
    WIDEST_TREE,
    Drafter,
    DrafterStart,
    Sampling,
    TuningSpace,
    check_columns,
    is_fast,
)
from decoding.drafters.expansion import grow_dynamic, grow_static
from decoding.eagle_runner import EagleRunner, ModuleRunner, packed_runner
from decoding.target import PREFILL_ROWS, Target, common_prefix
from decoding.tree import DraftTree, TreeShape, shape_from_choices
from models.methods import trees
from models.runtime.interface import ForwardOutput
from speculoos.errors import BadInput, Unsupported

MAX_CANDIDATES = 65_536  # largest number of candidates of a dynamic tree in one step


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's settings: `depth` expansions after the first level, `top_k` candidates each, `nodes` with the root."""

    depth: int = 7
    top_k: int = 10
    nodes: int = 60

    def __post_init__(self) -> None:
        for name in ("depth", "top_k", "nodes"):
            if getattr(self, name) < (minimum := 0 if name == "depth" else 1):
                raise BadInput(f"{name}: expected {minimum} or more, got {getattr(self, name)}.")
        if self.depth > trees.MAX_DEPTH or self.depth * self.top_k**2 > MAX_CANDIDATES:
            raise BadInput(
                f"depth is at most {trees.MAX_DEPTH}, and depth times top_k squared at most {MAX_CANDIDATES:,}; "
                f"got depth {self.depth}, top_k {self.top_k}."
            )


GPU_TREE = DynamicTree()  # the default of EAGLE's own code; for a GPU
CPU_TREE = DynamicTree(depth=3, top_k=3, nodes=8)
"""For a CPU, where a forward of eight nodes costs little more than a forward of one."""


class EagleDrafter(Drafter):
    """`tree`: static or dynamic. `sample`: children of a static shape are sampled if the generation samples."""

    def __init__(self, draft: EagleRunner, tree: TreeShape | DynamicTree, vocab_size: int, sample: bool = False):
        self.draft, self.tree, self.vocab_size, self.sample = draft, tree, vocab_size, sample
        self.name = draft.method
        self.layers = tuple(draft.layers_wanted)
        self.cache = draft.new_cache()
        self.text: list[int] = []  # tokens 1, 2, … of the text: text[t] is the token of cache row t
        self.first = -1  # token 0 of the text, which has no row
        self.pending: list[torch.Tensor] = []  # features of tokens whose rows are not computed yet
        self.last = torch.empty(0)  # the draft's output [1, H] after the text, the root of the next tree
        self.sampling: Sampling | None = None
        self._outputs = self.last  # outputs [1 + nodes, H] of the current tree; the root's (`last`) is first
        self._visible: list[list[int]] = []
        """For each of these nodes, the tree's rows it attends to: its ancestors' and its own."""
        self._depths: list[int] = []

    def reusable(self, prompt_ids: Sequence[int]) -> int:
        """One less than the common prefix with the present text: its last feature must be computed again."""
        computed = len(self.text) - sum(map(len, self.pending))  # later rows are predictions of the last tree
        return max(common_prefix([self.first, *self.text[:computed]], prompt_ids) - 1, 0)

    def prefill(self, start: DrafterStart) -> None:
        self.sampling = start.sampling(self.vocab_size) if self.sample else None
        prompt_ids, scored = start.prompt_ids, start.scored
        self.cache.crop(len(prompt_ids) - len(scored.hidden))
        self.first, self.text = prompt_ids[0], [*prompt_ids[1:], start.token]
        self.pending = [self._features(scored, slice(None))]
        self._compute_pending()

    def observe(self, tokens: Sequence[int], scored: ForwardOutput, rows: Sequence[int]) -> None:
        self.text += tokens
        self.pending.append(self._features(scored, list(rows)))

    def propose(self, token: int) -> DraftTree:
        if isinstance(self.tree, DynamicTree):
            return grow_dynamic(token, self, self.tree.depth, self.tree.top_k, self.tree.nodes)
        return grow_static(self.tree, token, self, self.sampling)

    @torch.inference_mode()
    def root(self, token: int) -> torch.Tensor:
        """Draft logits [V'] after the text."""
        if self.pending:
            self._compute_pending()
        self.cache.crop(len(self.text))
        self._outputs = self.last
        self._visible, self._depths = [[]], [0]
        return self.draft.logits(self.last)[0]

    @torch.inference_mode()
    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Draft logits [n, V'] after new nodes; the feature of a node is its parent's output."""
        rows, first = len(self._visible) - 1, len(self._visible)
        for index, parent in enumerate(parents):
            self._visible.append([*self._visible[parent], rows + index])
            self._depths.append(self._depths[parent] + 1)
        mask = self._mask(self._visible[first:], rows + len(tokens))
        features = self._outputs.index_select(0, torch.tensor(parents, device=self._outputs.device))
        positions = [len(self.text) - 1 + depth for depth in self._depths[first:]]
        out = self.draft(features, tokens, positions, self.cache, mask)
        self._outputs = torch.cat([self._outputs, out])
        return self.draft.logits(out)

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        return self.draft.to_target(choices)

    def _mask(self, visible: Sequence[Sequence[int]], rows: int) -> torch.Tensor:
        """Bool [nodes, text + rows]: each node attends to the whole text and its `visible` rows of the tree."""
        mask = [[False] * rows for _ in visible]
        for row, columns in zip(mask, visible, strict=True):
            for column in columns:
                row[column] = True
        return F.pad(torch.tensor(mask, device=self.last.device), (len(self.text), 0), value=True)

    @torch.inference_mode()
    def _compute_pending(self) -> None:
        features = torch.cat(self.pending)
        start = len(self.text) - len(features)
        self.cache.crop(start)
        assert self.cache.length == start, (self.cache.length, start)
        for rows in features.split(PREFILL_ROWS):  # the mask of a long prompt would be quadratic in its length
            ids = self.text[start : start + len(rows)]
            positions = range(start, start + len(rows))
            self.last = self.draft(rows, ids, positions, self.cache)[-1:]
            start = positions.stop
        self.pending = []

    @torch.inference_mode()
    def _features(self, scored: ForwardOutput, rows: slice | list[int]) -> torch.Tensor:
        return self.draft.fuse(scored.hidden[rows], scored.features[rows] if self.layers else None)


def make(target: Target, draft: Any, options: dict[str, Any]) -> EagleDrafter:
    """The drafter of an EAGLE draft. For a fast target the draft's weights are moved to a packed runner."""
    sample = bool(options.pop("sample", False))
    if "tree" in options:
        tree = shape_from_choices(options["tree"])
    else:
        tree = replace(GPU_TREE if target.base.device.type == "cuda" else CPU_TREE, **options)
    columns = getattr(draft.config, "draft_vocab_size", 0) or target.base.vocab_size
    check_columns(tree.ranks if isinstance(tree, TreeShape) else [tree.top_k - 1], columns)
    if not is_fast(target) and draft.runner is not None:
        raise Unsupported("This draft was packed for a fast target; load it again to use it with another target.")
    runner = packed_runner(draft) if is_fast(target) else ModuleRunner(draft)
    return EagleDrafter(runner, tree, target.base.vocab_size, sample)


def tuning(draft: Any) -> TuningSpace:
    return TuningSpace(MAX_TUNING_DEPTH, lambda depth: {"depth": depth - 1, **WIDEST_TREE}, dynamic=True)

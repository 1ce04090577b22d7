"""A smaller causal model as drafter, with its own KV cache, which follows the sequence."""

from collections.abc import Sequence
from typing import Any

import torch

from decoding.drafters.base import MAX_TUNING_DEPTH, Drafter, PrefillContext, SamplingParams, TuningSpace, is_fast
from decoding.drafters.expansion import grow_static
from decoding.target import Target, common_prefix, fast_target
from decoding.tree import DraftTree, TreeShape, chain_shape, shape_from_choices
from models.runtime.interface import ForwardOutput


class StandaloneDrafter(Drafter):
    """Fills a static shape (a chain by default) level by level. If the generation samples, so does the drafter; with
    `sample=False` it proposes its best tokens, which is also lossless, but fewer are accepted at high temperature."""

    name = "draft"  # the stored id of the method, not a draft model

    def __init__(self, draft_model: Target, shape: TreeShape, vocab_size: int, sample: bool = True):
        """`draft_model` is a Target of the small model; it must not be the target that verifies."""
        self.draft_model, self.shape, self.vocab_size, self.sample = draft_model, shape, vocab_size, sample
        self.sampling: SamplingParams | None = None
        self.ids: list[int] = []
        self.synced = 0  # number of leading tokens that the draft's cache and the sequence have in common

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
        if len(self.ids) + len(self.shape) > self.draft_model.max_length:
            return DraftTree((token,))  # the draft's context is full, so plain decoding continues
        return grow_static(self.shape, token, self, self.sampling)

    def root(self, token: int) -> torch.Tensor:
        """Update the draft's cache to the sequence, whose last token is `token`; logits [V'] after it."""
        self.synced += common_prefix(self.draft_model.ids[self.synced :], self.ids[self.synced : -1])
        self.draft_model.rewind(self.synced)
        missing = self.ids[self.synced : -1]
        self._tokens: list[int] = []
        self._parents: list[int] = []
        if self.shape.is_chain:
            return self.draft_model.extend([*missing, token], last_only=True).logits[-1]
        if missing:
            self.draft_model.extend(missing, last_only=True)
        return self.add([token], [-1])[0]

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Chains are cached; of a tree all nodes are output again, which costs about as much as a forward of one."""
        if self.shape.is_chain:
            return self.draft_model.extend(tokens).logits
        self._tokens += tokens
        self._parents += parents
        return self.draft_model.forward_tree(DraftTree.build(self._tokens, self._parents)).logits[-len(tokens) :]

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        return choices


def make(target: Target, draft: Any, options: dict[str, Any]) -> StandaloneDrafter:
    """The drafter of a standalone draft. For a fast target the small model uses the fast runtime if supported."""
    shape = shape_from_choices(options["tree"]) if "tree" in options else chain_shape(options.get("depth", 4))
    draft_model = (fast_target if is_fast(target) else Target)(draft.as_base(target.base), target.max_length)
    return StandaloneDrafter(draft_model, shape, target.base.vocab_size, bool(options.get("sample", True)))


def tuning(draft: Any) -> TuningSpace:
    return TuningSpace(MAX_TUNING_DEPTH, lambda depth: {"tree": [[0] * depth]})

"""A smaller causal model as drafter, with a cache of its own that is kept in step with the text."""

from collections.abc import Sequence
from typing import Any

import torch

from decoding.drafters.base import Drafter, DrafterStart, Sampling
from decoding.drafters.expansion import grow_static
from decoding.drafters.parts import DEEPEST, TuningSpace, is_fast
from decoding.target import Target, common_prefix, fast_target
from decoding.tree import DraftTree, TreeShape, chain_shape, shape_from_choices
from models.runtime.interface import Scored


class StandaloneDrafter(Drafter):
    """Fills a static shape (a chain by default) level by level with the draft's own tokens.

    Where the generation samples, so does the drafter, from the same temperature, top-k and top-p; with
    `sample=False` it always takes its best tokens, which is lossless too but accepts less often at high temperature.
    """

    name = "draft"

    def __init__(self, draft: Target, shape: TreeShape, vocab_size: int, sample: bool = True):
        """`draft` is a Target of the small model; it must not be the target that verifies."""
        self.draft, self.shape, self.vocab_size, self.sample = draft, shape, vocab_size, sample
        self.sampling: Sampling | None = None
        self.ids: list[int] = []
        self.in_step = 0
        """Leading tokens the draft's cache is known to share with the text."""

    def prefill(self, opening: DrafterStart) -> None:
        self.sampling = opening.sampling(self.vocab_size) if self.sample else None
        self.ids = [*opening.prompt_ids, opening.token]
        self.in_step = 0
        if len(opening.prompt_ids) < self.draft.max_length:
            self.draft.prefill(opening.prompt_ids)
            self.in_step = len(opening.prompt_ids)

    def observe(self, tokens: Sequence[int], scored: Scored, rows: Sequence[int]) -> None:
        self.ids += tokens

    def propose(self, token: int) -> DraftTree:
        if len(self.ids) + len(self.shape) > self.draft.max_length:
            return DraftTree((token,))  # the draft's context is full; the target goes on alone
        return grow_static(self.shape, token, self, self.sampling)

    def root(self, token: int) -> torch.Tensor:
        """Bring the draft's cache up to the text, whose last token is `token`; its logits [V'] there."""
        self.in_step += common_prefix(self.draft.ids[self.in_step :], self.ids[self.in_step : -1])
        self.draft.rewind(self.in_step)
        missing = self.ids[self.in_step : -1]
        self._tokens: list[int] = []
        self._parents: list[int] = []
        if self.shape.is_chain:
            return self.draft.extend([*missing, token], last_only=True).logits[-1]
        if missing:
            self.draft.extend(missing, last_only=True)
        return self.add([token], [-1])[0]

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """A chain's token goes into the cache. Of a tree nothing is kept and all nodes so far are scored again: a
        forward of a few nodes costs what one costs, and the cache stays that of the text."""
        if self.shape.is_chain:
            return self.draft.extend(tokens).logits
        self._tokens += tokens
        self._parents += parents
        return self.draft.score(DraftTree.build(self._tokens, self._parents)).logits[-len(tokens) :]

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        return choices


def make(target: Target, draft: Any, options: dict[str, Any]) -> StandaloneDrafter:
    """The small model beside a fast target runs on our own forward too, where it can."""
    shape = shape_from_choices(options["tree"]) if "tree" in options else chain_shape(options.get("depth", 4))
    own = (fast_target if is_fast(target) else Target)(draft.as_base(target.base), target.max_length)
    return StandaloneDrafter(own, shape, target.base.vocab_size, bool(options.get("sample", True)))


def tuning(draft: Any) -> TuningSpace:
    """Chains."""
    return TuningSpace(DEEPEST, lambda depth: {"tree": [[0] * depth]})

"""What a drafter is to the loop. Drafters differ; the loop does not."""

from collections.abc import Sequence
from typing import Literal, Protocol

import torch

from decoding.config import GenerateConfig
from decoding.tree import DraftTree
from runtime.interface import Scored


class Drafter(Protocol):
    """Guesses trees of tokens for one sequence and is told what became of them."""

    name: str
    """none, ngram, medusa, eagle, eagle3 or draft."""
    kind: Literal["verify", "plain"]
    """What its steps are called in the trace."""
    own: Literal["target", "plain"]
    """Origin of the base's own tokens in the trace."""
    layers: Sequence[int]
    """0-based layers of the base whose outputs it wants as features."""

    def reusable(self, prompt_ids: Sequence[int]) -> int | None:
        """How many leading tokens the target need not compute again for its sake; None: any."""

    def prefill(
        self,
        prompt_ids: Sequence[int],
        token: int,
        scored: Scored,
        config: GenerateConfig,
        generator: torch.Generator,
    ) -> None:
        """A generation begins: `token` follows the prompt; `scored` has rows of its last `len(hidden)` tokens."""

    def propose(self, token: int) -> DraftTree:
        """A tree whose root is `token`, the last one emitted."""

    def observe(self, tokens: Sequence[int], scored: Scored, rows: Sequence[int]) -> None:
        """`tokens` were emitted. `rows` are the rows of `scored` whose tokens are in the cache now, the old root
        first; row rows[i] is followed by tokens[i]."""


class Speculative:
    """Defaults of drafters that need no features and keep nothing of the target's."""

    name = ""
    kind: Literal["verify", "plain"] = "verify"
    own: Literal["target", "plain"] = "target"
    layers: Sequence[int] = ()

    def reusable(self, prompt_ids: Sequence[int]) -> int | None:
        return None

    def prefill(
        self,
        prompt_ids: Sequence[int],
        token: int,
        scored: Scored,
        config: GenerateConfig,
        generator: torch.Generator,
    ) -> None:
        pass

    def propose(self, token: int) -> DraftTree:
        return DraftTree((token,))

    def observe(self, tokens: Sequence[int], scored: Scored, rows: Sequence[int]) -> None:
        pass

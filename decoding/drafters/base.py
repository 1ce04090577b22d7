"""What a drafter is to the loop. Drafters differ; the loop does not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from decoding.config import GenerateConfig
from decoding.sampling import Warp
from decoding.tree import DraftTree
from models.runtime.interface import Scored

Sampling = tuple[Warp, torch.Generator, int]
"""How drafted tokens are drawn: warp, generator, the target's vocabulary size."""


@dataclass(frozen=True)
class DrafterStart:
    """How a generation begins: `token` follows the prompt; `scored` has rows of its last `len(hidden)` tokens."""

    prompt_ids: Sequence[int]
    token: int
    scored: Scored
    config: GenerateConfig
    generator: torch.Generator

    def sampling(self, vocab_size: int) -> Sampling | None:
        """How a drafter that samples draws: as the generation does; None where it is greedy."""
        if not self.config.temperature:
            return None
        warp = Warp(self.config.temperature, self.config.top_k, self.config.top_p)
        return warp, self.generator, vocab_size


class Drafter:
    """Guesses trees of tokens for one sequence and is told what became of them. As it stands here, it guesses nothing,
    needs no features and keeps nothing of the target's."""

    name = ""
    """none, ngram, or a method's."""
    kind: Literal["verify", "plain"] = "verify"
    """What its steps are called in the trace."""
    own: Literal["target", "plain"] = "target"
    """Origin of the base's own tokens in the trace."""
    layers: Sequence[int] = ()
    """0-based layers of the base whose outputs it wants as features."""

    def reusable(self, prompt_ids: Sequence[int]) -> int | None:
        """How many leading tokens the target need not compute again for its sake; None: any."""
        return None

    def prefill(self, opening: DrafterStart) -> None:
        """A generation begins."""

    def propose(self, token: int) -> DraftTree:
        """A tree whose root is `token`, the last one emitted."""
        return DraftTree((token,))

    def observe(self, tokens: Sequence[int], scored: Scored, rows: Sequence[int]) -> None:
        """`tokens` were emitted. `rows` are the rows of `scored` whose tokens are in the cache now, the old root
        first; row rows[i] is followed by tokens[i]."""

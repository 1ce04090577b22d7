"""The interface between the decoding loop and drafters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from decoding.config import GenerateConfig
from decoding.sampling import Warp
from decoding.tree import DraftTree
from models.runtime.interface import ForwardOutput

Sampling = tuple[Warp, torch.Generator, int]
"""Sampling of draft tokens: warp, random generator, the target's vocabulary size."""


@dataclass(frozen=True)
class DrafterStart:
    """The state after the prefill: `token` follows the prompt; `scored` has the rows of the last `len(hidden)` prompt
    tokens."""

    prompt_ids: Sequence[int]
    token: int
    scored: ForwardOutput
    config: GenerateConfig
    generator: torch.Generator

    def sampling(self, vocab_size: int) -> Sampling | None:
        """Sampling of draft tokens with the generation's settings; None if the generation is greedy."""
        if not self.config.temperature:
            return None
        warp = Warp(self.config.temperature, self.config.top_k, self.config.top_p)
        return warp, self.generator, vocab_size


class Drafter:
    """Proposes trees of tokens for one sequence and receives the emitted tokens. This base class proposes no tokens and
    needs no features."""

    name = ""
    """none, ngram, or a method."""
    kind: Literal["verify", "plain"] = "verify"
    """Kind of its steps in the trace; the origin of the base model's tokens is target or plain."""
    layers: Sequence[int] = ()
    """0-based layers of the base model whose outputs it needs as features."""

    def reusable(self, prompt_ids: Sequence[int]) -> int | None:
        """Number of leading prompt tokens whose features it does not need again; None: all."""
        return None

    def prefill(self, start: DrafterStart) -> None:
        """Start a generation."""

    def propose(self, token: int) -> DraftTree:
        """A tree whose root is `token`, the last emitted token."""
        return DraftTree((token,))

    def observe(self, tokens: Sequence[int], scored: ForwardOutput, rows: Sequence[int]) -> None:
        """Receive the emitted `tokens`. `rows` are the rows of `scored` that were committed to the cache, the old root
        first; tokens[i] follows row rows[i]."""


class PlainDrafter(Drafter):
    """Plain decoding: proposes trees with only a root."""

    name, kind = "none", "plain"

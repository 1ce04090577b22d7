"""The interface between the decoding loop and drafters, and what the modules of all drafters share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from decoding.config import GenerateConfig
from decoding.sampling import LogitsWarper
from decoding.target import Target
from decoding.tree import DraftTree
from models.runtime.forward import FastForward
from models.runtime.interface import ForwardOutput
from speculoos.errors import BadInput

MAX_TUNING_DEPTH = 5
WIDEST_TREE = {"top_k": 4, "nodes": 32}  # the widest tuned tree; its traces also give the results of narrower trees


@dataclass(frozen=True)
class ChildSampling:
    """How draft tokens are sampled: the generation's settings, the base model's vocabulary size, random numbers."""

    warp: LogitsWarper
    vocab_size: int
    generator: torch.Generator = field(compare=False)

    def uniforms(self, count: int) -> torch.Tensor:
        """Random numbers in [0, 1), float64 [count], on the CPU."""
        return torch.rand(count, generator=self.generator, dtype=torch.float64)


@dataclass(frozen=True)
class PrefillContext:
    """The state after the prefill: `token` follows the prompt; `target_output` is the base model's output for the
    last `len(target_output.hidden)` prompt tokens."""

    prompt_ids: Sequence[int]
    token: int
    target_output: ForwardOutput
    config: GenerateConfig
    generator: torch.Generator

    def sampling(self, vocab_size: int) -> ChildSampling | None:
        """Sampling of draft tokens with the generation's settings; None if the generation is greedy."""
        if not self.config.temperature:
            return None
        warp = LogitsWarper(self.config.temperature, self.config.top_k, self.config.top_p)
        return ChildSampling(warp, vocab_size, self.generator)


class Drafter:
    """Proposes trees of tokens for one sequence and receives the emitted tokens. This one proposes nothing."""

    name = ""  # none, ngram, or a method
    kind: Literal["verify", "plain"] = "verify"
    """Kind of its steps in the trace; the origin of the base model's tokens is target or plain."""
    layers: Sequence[int] = ()  # 0-based layers of the base model whose outputs it needs as features

    def nbytes(self) -> int:
        """Bytes of its KV cache and CUDA graphs."""
        return 0

    def max_reusable_prefix(self, prompt_ids: Sequence[int]) -> int | None:
        """Number of leading prompt tokens whose features it does not need again; None: all."""
        return None

    def prefill(self, start: PrefillContext) -> None:
        """Start a generation."""

    def propose(self, token: int) -> DraftTree:
        """A tree whose root is `token`, the last emitted token."""
        return DraftTree((token,))

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        """Receive the emitted `tokens`; tokens[i] follows the verified tree's node nodes[i], which is in the
        cache now. `target_output`: the base model's output for all nodes of the tree."""

    def network_pass(self, rows: int) -> Callable[[], Any] | None:
        """For measurements: a function that runs the draft network once on `rows` rows at the end of the text, logits
        included; if one pass drafts all depths, on what `rows` sequences need. None: no network, or too many rows."""
        return None


class PlainDrafter(Drafter):
    """Plain decoding: proposes trees with only a root."""

    name, kind = "none", "plain"


class ClientDrafter(Drafter):
    """Proposes a client's `tokens` once, as one chain after the prefill, and then delegates to `inner`. The prefill
    emits the first token of the response, so the chain is proposed only if this token is tokens[0]."""

    def __init__(self, inner: Drafter, tokens: Sequence[int]):
        self.inner, self.tokens = inner, tuple(tokens)
        self.name = "client" if inner.name == "none" else inner.name
        self.layers = inner.layers
        self._chain: tuple[int, ...] = ()

    def max_reusable_prefix(self, prompt_ids: Sequence[int]) -> int | None:
        return self.inner.max_reusable_prefix(prompt_ids)

    def prefill(self, start: PrefillContext) -> None:
        self._chain = self.tokens[1:] if self.tokens[:1] == (start.token,) else ()
        self.inner.prefill(start)

    def propose(self, token: int) -> DraftTree:
        if self._chain:
            chain, self._chain = self._chain, ()
            return DraftTree.chain((token, *chain))
        self.kind = self.inner.kind
        return self.inner.propose(token)

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        self.inner.update(tokens, target_output, nodes)


@dataclass(frozen=True)
class TuningSpace:
    """The tunable options of a kind of draft: its greatest depth, and the drafter's options for a depth. `one_pass`:
    all depths are drafted in one pass of the network."""

    deepest: int
    at_depth: Callable[[int], dict[str, Any]]
    dynamic: bool = False
    one_pass: bool = False


def check_ranks(ranks: Sequence[int], draft_vocab_size: int) -> None:
    """Raise BadInput for ranks beyond the number of tokens that the draft can propose."""
    if max(ranks, default=0) >= draft_vocab_size:
        raise BadInput(
            f"The tree needs the {max(ranks) + 1} best tokens, but this draft has {draft_vocab_size}; "
            "use a narrower tree."
        )


def is_fast(target: Target) -> bool:
    """Whether the target uses the fast runtime, so that the draft can use it too."""
    return isinstance(target.forward, FastForward)

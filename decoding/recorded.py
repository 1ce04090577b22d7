"""Targets that say what was recorded: a draft is judged on the outputs of a model that need not be here. Greedy.

The loop, the rules and τ stay as they are: only the base's own best token is another's. `ForcedTarget` runs the base
for drafts that look at its hidden states; `RecordedTarget` runs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from decoding.target import Target
from decoding.tree import DraftTree
from models.base import LoadedBase
from models.runtime.forward import fastest
from models.runtime.interface import Forward, Scored
from models.runtime.precision import exact_products

NOTHING = -1
"""The token after a recording's last one: nobody drafts it."""


def best_after(tree: DraftTree, recorded: Sequence[int], done: int) -> list[int]:
    """The recorded token after every node of `tree`, whose root is recorded[done - 1].

    Nodes off the recorded path get what lies at their depth too: no walk reaches them.
    """
    places = (done + depth for depth in tree.shape.depths)
    return [recorded[at] if at < len(recorded) else NOTHING for at in places]


class ForcedTarget(Target):
    """A base whose answer is a recording: hidden states are its own, as they are after the recorded tokens."""

    def __init__(self, base: LoadedBase, max_length: int = 2048, forward: Forward | None = None):
        super().__init__(base, max_length, forward)
        self.recorded: list[int] = []
        self.begins = 0
        """Tokens of the prompt."""

    def play(self, recorded: Sequence[int]) -> None:
        """Say these new tokens in the next generation, which begins with a prefill."""
        self.recorded = list(recorded)

    def prefill(
        self,
        prompt_ids: Sequence[int],
        reusable: int | None = None,
        layers: Sequence[int] = (),
        best_only: bool = False,
    ) -> Scored:
        self.begins = len(prompt_ids)
        scored = super().prefill(prompt_ids, reusable, layers, best_only)
        return replace(scored, best_ids=torch.tensor(self.recorded[:1]))

    def score(self, tree: DraftTree, layers: Sequence[int] = (), best_only: bool = False) -> Scored:
        done = len(self.ids) - self.begins + 1  # the root is emitted and not in the cache yet
        scored = super().score(tree, layers, best_only)
        return replace(scored, best_ids=torch.tensor(best_after(tree, self.recorded, done)))


def forced_target(base: LoadedBase, max_length: int = 2048) -> ForcedTarget:
    """A ForcedTarget on the fastest forward this base has; the first call takes the base's weights over."""
    exact_products(base.device)
    return ForcedTarget(base, max_length, fastest(base))


@dataclass(frozen=True)
class Reader:
    """What the loop asks of a base that is not here."""

    tokenizer: Any
    eos_ids: frozenset[int]
    vocab_size: int
    device: torch.device = torch.device("cpu")


class RecordedTarget:
    """A recording in a base's place, for drafts that need no hidden states: prompt lookup and models of their own."""

    def __init__(self, base: Reader, max_length: int):
        self.base, self.max_length = base, max_length
        self.forward, self.notice = None, ""
        self.ids: list[int] = []
        self.recorded: list[int] = []
        self.begins = 0

    play = ForcedTarget.play

    @property
    def room(self) -> int:
        return self.max_length - len(self.ids)

    def prefill(
        self,
        prompt_ids: Sequence[int],
        reusable: int | None = None,
        layers: Sequence[int] = (),
        best_only: bool = False,
    ) -> Scored:
        """See Target; without hidden states."""
        Target._check(self, prompt_ids)  # type: ignore[arg-type]
        self.ids, self.begins = list(prompt_ids), len(prompt_ids)
        return _said(self.recorded[:1])

    def score(self, tree: DraftTree, layers: Sequence[int] = (), best_only: bool = False) -> Scored:
        """See Target."""
        return _said(best_after(tree, self.recorded, len(self.ids) - self.begins + 1))

    def commit(self, tree: DraftTree, nodes: Sequence[int]) -> None:
        """See Target."""
        self.ids += [tree.tokens[node] for node in nodes]

    def rewind(self, length: int) -> None:
        """See Target."""
        del self.ids[length:]

    def synchronize(self) -> None:
        """There is nothing to wait for."""


def _said(tokens: Sequence[int]) -> Scored:
    return Scored(None, torch.empty(len(tokens), 0), None, torch.tensor(tokens))

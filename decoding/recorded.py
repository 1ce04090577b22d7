"""Targets that replay recorded responses, to measure a draft on the outputs of a model that is not loaded. Greedy.

The loop, the rules and τ are unchanged; only the base model's best token is replaced with the recorded one.
`TeacherForcedTarget` runs a base model for drafts that need its hidden states; `RecordedTarget` runs no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from decoding.target import Target
from decoding.tree import DraftTree
from models.base import LoadedBase
from models.runtime.cache import KVCache
from models.runtime.forward import fastest_forward
from models.runtime.interface import ForwardOutput
from models.runtime.precision import disable_tf32

END = -1  # the token after the end of a recording; no drafter proposes it


class TeacherForcedTarget(Target):
    """A base model that generates the recorded tokens; hidden states are its own, after these tokens."""

    recorded: Sequence[int] = ()
    prompt_length = 0

    def load(self, recorded: Sequence[int], prompt_length: int) -> None:
        """Generate these new tokens in the next generation, after a prompt of `prompt_length` tokens."""
        self.recorded, self.prompt_length = recorded, prompt_length

    def _run(self, ids: Sequence[int], positions: Sequence[int], *args: Any, **options: Any) -> ForwardOutput:
        return replace(super()._run(ids, positions, *args, **options), best_ids=self._recorded_after(positions))

    def _recorded_after(self, positions: Sequence[int]) -> torch.Tensor:
        """The recorded token after each position; tree nodes off the path get one too, but are never reached."""
        indices = (position + 1 - self.prompt_length for position in positions)
        return torch.tensor([self.recorded[i] if 0 <= i < len(self.recorded) else END for i in indices])


def forced_target(base: LoadedBase, max_length: int = 2048) -> TeacherForcedTarget:
    """A TeacherForcedTarget on the base model's fastest forward; the first call moves the base model's weights."""
    disable_tf32(base.device)
    return TeacherForcedTarget(base, max_length, fastest_forward(base))


@dataclass(frozen=True)
class UnloadedBase:
    """The properties that the loop needs of a base model that is not loaded."""

    tokenizer: Any
    eos_ids: frozenset[int]
    vocab_size: int
    device: torch.device = torch.device("cpu")


class RecordedTarget(TeacherForcedTarget):
    """A recording instead of a base model, for drafts that need no hidden states. Its cache only counts tokens."""

    def __init__(self, base: UnloadedBase, max_length: int):
        self.base, self.max_length = base, max_length
        self.forward, self.notice = None, ""
        self.cache = KVCache(0, max_length)
        self.ids: list[int] = []

    def commit(self, tree: DraftTree, nodes: Sequence[int]) -> None:
        self.cache.commit(range(len(nodes)))
        self.ids += [tree.tokens[node] for node in nodes]

    def _run(self, ids: Sequence[int], positions: Sequence[int], *_: Any, **__: Any) -> ForwardOutput:
        self.cache.stage(len(ids))
        return ForwardOutput(None, torch.empty(len(ids), 0), None, self._recorded_after(positions))

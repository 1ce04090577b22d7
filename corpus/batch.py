"""Many answers at once with one base: prompts laid end to end, one token a forward, finished rows replaced as they end.

Knows a base and token ids; not files or jobs. Row i of the running answers is sequence i of the cache.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from corpus.sampling import pick
from models.base import Base
from runtime.cache import KVCache
from runtime.forward import fastest
from runtime.interface import Forward, Inputs, Scored, Selection

PREFILL_ROWS = 2048
"""Prompt tokens per forward, or one prompt where that is longer: bounds the memory of activations."""


@dataclass(eq=False)
class Answer:
    """One answer in the making. `tag` is the caller's; `numbers` gives its random draws."""

    prompt: list[int]
    max_tokens: int
    numbers: random.Random
    tag: Any = None
    tokens: list[int] = field(default_factory=list)
    finish: str = ""

    def take(self, token: int, eos_ids: frozenset[int]) -> None:
        """Append a token; an end-of-turn token belongs to the answer and ends it."""
        self.tokens.append(token)
        if token in eos_ids:
            self.finish = "stop"
        elif len(self.tokens) >= self.max_tokens:
            self.finish = "length"


def answer_all(
    base: Base,
    source: Callable[[int], list[Answer]],
    batch_size: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
) -> Iterator[tuple[list[Answer], list[Answer]]]:
    """Yield after every forward (answers that just ended, answers still running), until `source` is dry.

    `source(n)` gives up to n new answers, [] when there are none now; it is asked whenever a quarter of the batch is
    free. The caller may stop at any yield. The first call takes the base's weights over (`runtime.forward.fastest`).
    """
    batch = _Batch(base, fastest(base), batch_size, temperature, top_p)
    few = max(1, batch_size // 4)
    while True:
        free = batch_size - len(batch.answers)
        fresh = source(free) if free >= few else []
        if not fresh and not batch.answers:
            return
        yield (batch.admit(fresh) if fresh else batch.step()), list(batch.answers)


class _Batch:
    """The running answers and their cache."""

    def __init__(self, base: Base, forward: Forward, size: int, temperature: float, top_p: float):
        self.base, self.forward, self.temperature, self.top_p = base, forward, temperature, top_p
        self.cache = KVCache.for_batch(base.num_layers, base.max_length, size)
        self.selection = Selection(last_only=True, best_only=temperature <= 0)
        self.answers: list[Answer] = []

    def admit(self, fresh: Sequence[Answer]) -> list[Answer]:
        """Prefill new answers' prompts and put them beside the running ones; those that ended at once."""
        for group in _groups(fresh):
            first = self.cache.admit(len(group))
            self._forward([answer.prompt for answer in group], first, group)
            self.answers += group
        return self._drop_ended()

    def step(self) -> list[Answer]:
        """One token for every running answer; those that ended."""
        self._forward([answer.tokens[-1:] for answer in self.answers], 0, self.answers)
        return self._drop_ended()

    @torch.inference_mode()
    def _forward(self, texts: Sequence[Sequence[int]], first: int, answers: Sequence[Answer]) -> None:
        """The next token of `answers`, whose new `texts` go into the cache."""
        starts = self.cache.lengths[first : first + len(texts)]
        inputs = Inputs.batch(texts, starts, self.base.device, first)
        scored = self.forward(inputs, self.cache, self.selection)
        self.cache.stage(*inputs.counts, first=first)
        self.cache.commit_all()
        for answer, token in zip(answers, self._tokens(scored, answers), strict=True):
            answer.take(token, self.base.eos_ids)

    def _tokens(self, scored: Scored, answers: Sequence[Answer]) -> list[int]:
        if self.temperature <= 0:
            return scored.best.tolist()
        return pick(scored.logits, [answer.numbers.random() for answer in answers], self.temperature, self.top_p)

    def _drop_ended(self) -> list[Answer]:
        """Take ended answers out; the last running one moves into each one's place, in the cache too."""
        ended = []
        for row in reversed(range(len(self.answers))):
            if self.answers[row].finish:
                self.cache.remove(row)
                self.answers[row], last = self.answers[-1], self.answers[row]
                ended.append(last)
                self.answers.pop()
        return ended[::-1]


def _groups(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    """Answers whose prompts are prefilled together, in order."""
    group, rows = [], 0
    for answer in answers:
        if group and rows + len(answer.prompt) > PREFILL_ROWS:
            yield group
            group, rows = [], 0
        group.append(answer)
        rows += len(answer.prompt)
    if group:
        yield group

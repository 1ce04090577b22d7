"""Many answers at once with one base: prefill in groups, one token a forward, finished rows replaced as they end.

Knows a base and token ids; not files or jobs.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from corpus.sampling import pick
from corpus.slots import Slots, merge
from decoding.forward import CacheView
from models.base import Base


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
    free. The caller may stop at any yield.
    """
    rows: list[Answer] = []  # of the slots; ended ones stay until a quarter of the batch can go at once
    slots: Slots | None = None
    while True:
        running = [answer for answer in rows if not answer.finish]
        wanted, many = batch_size - len(running), max(1, batch_size // 4)
        fresh = source(wanted) if wanted >= many else []
        if not fresh and not running:
            return
        if slots and (fresh or slots.full or len(rows) - len(running) >= many):
            slots, rows = _drop_ended(slots, rows)
        if fresh:
            slots, rows = _admit(base, slots, rows, fresh, temperature, top_p)
        else:
            _step(base, slots, rows, temperature, top_p)
        yield [a for a in (*running, *fresh) if a.finish], [a for a in rows if not a.finish]


@torch.inference_mode()
def _admit(
    base: Base, slots: Slots | None, live: list[Answer], fresh: list[Answer], temperature: float, top_p: float
) -> tuple[Slots, list[Answer]]:
    """Prefill the new answers' prompts together and put them beside the running ones."""
    new = Slots(base.num_layers, [len(answer.prompt) for answer in fresh], spare=0)
    longest = max(new.lengths)
    ids = torch.tensor([[0] * (longest - len(a.prompt)) + a.prompt for a in fresh])
    _emit(base, new, ids, fresh, temperature, top_p)
    new.filled()
    return (merge(slots, range(len(live)), new), [*live, *fresh]) if live else (merge(None, (), new), fresh)


@torch.inference_mode()
def _step(base: Base, slots: Slots, live: list[Answer], temperature: float, top_p: float) -> None:
    ids = torch.tensor([[answer.tokens[-1]] for answer in live])
    _emit(base, slots, ids, live, temperature, top_p)
    slots.grow()


def _emit(base: Base, slots: Slots, ids: torch.Tensor, answers: list[Answer], temperature: float, top_p: float) -> None:
    """One forward over `ids` [B, n] after the slots' columns; every answer takes its next token."""
    mask = slots.mask(extra=ids.shape[1] if slots.length else 0)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    out = base.model(
        input_ids=ids.to(base.device),
        attention_mask=mask.to(base.device),
        position_ids=positions.to(base.device),
        past_key_values=CacheView(slots),
        use_cache=True,
        logits_to_keep=1,
    )
    draws = [answer.numbers.random() if temperature > 0 and not answer.finish else 0.0 for answer in answers]
    for answer, token in zip(answers, pick(out.logits[:, -1], draws, temperature, top_p), strict=True):
        if not answer.finish:
            answer.take(token, base.eos_ids)


def _drop_ended(slots: Slots, live: list[Answer]) -> tuple[Slots | None, list[Answer]]:
    keep = [i for i, answer in enumerate(live) if not answer.finish]
    if not keep:
        return None, []
    return merge(slots, keep, None), [live[i] for i in keep]

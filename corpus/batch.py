"""Continuous batching with one base model: packed prefill, one token per forward, finished rows replaced at once.

Works on token ids, without files or jobs. Row i of the running answers is sequence i of the cache.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

from decoding.sampling import draw
from decoding.target import common_prefix
from models.base import LoadedBase
from models.runtime.argmax import argmax
from models.runtime.cache import KVCache
from models.runtime.forward import fastest_forward
from models.runtime.interface import Forward, ForwardOutput, Inputs, Selection

MAX_PREFILL_TOKENS = 2048
"""Maximum prompt tokens per forward (a single longer prompt is allowed): bounds the memory of activations."""
MIN_SHARED_PREFIX = 16
"""Minimum length of a prefix shared with another prompt (system prompt, another sample) to copy its KV cache."""

TOP_K = 1024
"""Tokens sorted first when sampling: sorting the whole vocabulary takes longer than a small model's forward."""


@dataclass(eq=False)
class BatchAnswer:
    """One answer being generated. `tag` is the caller's; `rng` is its random generator."""

    prompt: list[int]
    max_tokens: int
    rng: random.Random
    tag: Any = None
    temperature: float = 0.0
    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    hidden: list[torch.Tensor] = field(default_factory=list)
    """The head's input [H] for each token, if hidden states are kept."""

    def append_token(self, token: int, eos_ids: frozenset[int]) -> None:
        """Append a token; an end-of-turn token is part of the answer and ends it."""
        self.tokens.append(token)
        if token in eos_ids:
            self.finish = "stop"
        elif len(self.tokens) >= self.max_tokens:
            self.finish = "length"


def answer_all(
    base: LoadedBase,
    source: Callable[[int], list[BatchAnswer]],
    batch_size: int,
    top_p: float = 1.0,
    keep_hidden: bool = False,
) -> Iterator[tuple[list[BatchAnswer], list[BatchAnswer]]]:
    """Yield (finished answers, running answers) after every forward, until `source` is exhausted.

    `source(n)` returns up to n new answers, [] if it has none; it is called whenever a quarter of the batch is free.
    The caller may stop at any yield. With `keep_hidden`, answers include hidden states. The first call repacks the
    base's weights in place (`models.runtime.forward.fastest_forward`).
    """
    batch = _Batch(base, fastest_forward(base), batch_size, top_p, keep_hidden)
    min_free = max(1, batch_size // 4)
    while True:
        free = batch_size - len(batch.answers)
        new = source(free) if free >= min_free else []
        if not new and not batch.answers:
            return
        yield (batch.admit(new) if new else batch.step()), list(batch.answers)


class _Batch:
    """The running answers and their cache."""

    def __init__(self, base: LoadedBase, forward: Forward, size: int, top_p: float, keep_hidden: bool):
        self.base, self.forward, self.top_p, self.keep_hidden = base, forward, top_p, keep_hidden
        self.cache = KVCache.for_batch(base.num_layers, base.max_length, size, base.layer_devices)
        self.answers: list[BatchAnswer] = []

    def admit(self, new: Sequence[BatchAnswer]) -> list[BatchAnswer]:
        """Prefill the prompts of new answers and add them to the batch; returns those that ended at once."""
        for group in _groups(new):
            while group:
                wave, group = self._wave(group) if self.forward.ragged else (group, [])
                self._prefill(wave)
        return self._drop_ended()

    def _wave(self, group: Sequence[BatchAnswer]) -> tuple[list[BatchAnswer], list[BatchAnswer]]:
        """Split into answers to prefill now and answers to prefill later, because a prompt of this wave shares a longer
        prefix with them than any running one."""
        wave: list[BatchAnswer] = []
        later: list[BatchAnswer] = []
        for answer in group:
            cached, in_wave = (_longest_prefix(answer.prompt, others)[1] for others in (self.answers, wave))
            (later if in_wave - cached >= MIN_SHARED_PREFIX else wave).append(answer)
        return wave, later

    def _prefill(self, group: Sequence[BatchAnswer]) -> None:
        first = self.cache.admit(len(group))
        if self.forward.ragged:
            for sequence, answer in enumerate(group, first):
                source, shared = _longest_prefix(answer.prompt, self.answers)
                if shared >= MIN_SHARED_PREFIX:
                    self.cache.copy(source, sequence, shared)
        starts = self.cache.lengths[first:]
        self._forward([answer.prompt[start:] for answer, start in zip(group, starts, strict=True)], first, group)
        self.answers += group

    def step(self) -> list[BatchAnswer]:
        """Generate one token for every running answer; returns those that ended."""
        self._forward([answer.tokens[-1:] for answer in self.answers], 0, self.answers)
        return self._drop_ended()

    @torch.inference_mode()
    def _forward(self, token_lists: Sequence[Sequence[int]], first: int, answers: Sequence[BatchAnswer]) -> None:
        starts = self.cache.lengths[first : first + len(token_lists)]
        inputs = Inputs.batch(token_lists, starts, self.base.device, first)
        greedy = all(answer.temperature <= 0 for answer in answers)
        output = self.forward(inputs, self.cache, Selection(last_only=True, argmax_only=greedy))
        self.cache.stage(*inputs.counts, first=first)
        self.cache.commit_all()
        for answer, token in zip(answers, self._tokens(output, answers), strict=True):
            answer.append_token(token, self.base.eos_ids)
        if self.keep_hidden:
            last = output.hidden[inputs.last_rows].to("cpu", copy=True)
            for answer, hidden in zip(answers, last, strict=True):
                answer.hidden.append(hidden)

    def _tokens(self, output: ForwardOutput, answers: Sequence[BatchAnswer]) -> list[int]:
        """The next tokens, each sampled with its answer's temperature; greedy ones consume no random number."""
        sampled = all(answer.temperature > 0 for answer in answers)
        best: list[int] = [-1] * len(answers) if sampled else output.best.tolist()
        for temperature in {answer.temperature for answer in answers if answer.temperature > 0}:
            rows = [row for row, answer in enumerate(answers) if answer.temperature == temperature]
            draws = [answers[row].rng.random() for row in rows]
            logits = output.logits if len(rows) == len(answers) else output.logits[rows]
            for row, token in zip(rows, sample_tokens(logits, draws, temperature, self.top_p), strict=True):
                best[row] = token
        return best

    def _drop_ended(self) -> list[BatchAnswer]:
        """Remove ended answers; the last running one moves to each freed row, in the cache too."""
        ended = []
        for row in reversed(range(len(self.answers))):
            if self.answers[row].finish:
                self.cache.remove(row)
                self.answers[row], last = self.answers[-1], self.answers[row]
                ended.append(last)
                self.answers.pop()
        return ended[::-1]


def _longest_prefix(prompt: Sequence[int], others: Sequence[BatchAnswer]) -> tuple[int, int]:
    """(index of the prompt among `others` with the longest common prefix, its length). The last token is never shared,
    since its output must be computed."""
    source, longest, max_shared = 0, 0, len(prompt) - 1
    for number, other in enumerate(others):
        shared = common_prefix(prompt, other.prompt)
        if shared > longest:
            source, longest = number, min(shared, max_shared)
        if longest == max_shared:
            break
    return source, longest


def _groups(answers: Sequence[BatchAnswer]) -> Iterator[list[BatchAnswer]]:
    group, rows = [], 0
    for answer in answers:
        if group and rows + len(answer.prompt) > MAX_PREFILL_TOKENS:
            yield group
            group, rows = [], 0
        group.append(answer)
        rows += len(answer.prompt)
    if group:
        yield group


def sample_tokens(logits: torch.Tensor, draws: list[float], temperature: float, top_p: float) -> list[int]:
    """Token ids for logits [B, V]. Temperature 0 is greedy; else inverse-CDF sampling from the smallest set of tokens
    whose probability reaches `top_p` (1: all tokens, unsorted), with one uniform number in [0, 1) per row."""
    if temperature <= 0:
        return argmax(logits).tolist()
    probs = torch.softmax(logits.to(torch.float32, copy=True).div_(temperature), dim=-1)
    uniform = torch.tensor(draws, device=logits.device, dtype=torch.float64)
    if top_p >= 1:
        return draw(probs, uniform).tolist()
    count = min(TOP_K, probs.shape[-1])
    values, order = probs.topk(count, dim=-1)
    token_ids = _from_nucleus(values, order, uniform, top_p)
    incomplete = values.sum(dim=-1) < top_p if count < probs.shape[-1] else torch.zeros(len(probs), dtype=torch.bool)
    if incomplete.any():  # flat distributions: the set has more than TOP_K tokens
        values, order = probs[incomplete].sort(dim=-1, descending=True, stable=True)
        token_ids[incomplete] = _from_nucleus(values, order, uniform[incomplete], top_p)
    return token_ids.tolist()


def _from_nucleus(probs: torch.Tensor, order: torch.Tensor, draws: torch.Tensor, top_p: float) -> torch.Tensor:
    """One of `order` [B, K] per row, by descending `probs` [B, K] and `draws` in [0, 1) [B]."""
    before = F.pad(probs.cumsum(dim=-1, dtype=torch.float64), (1, -1), value=-1.0)  # the first is always in it
    return order.gather(1, draw(probs * (before < top_p), draws)[:, None])[:, 0]

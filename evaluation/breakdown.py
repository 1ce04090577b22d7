"""Where a draft does well and where not: how long accepted paths are, acceptance by place in the answer and by kind of
token, and the prompts with the lowest τ. From steps that were made anyway; small enough for a row.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from decoding.stats import acceptance_by_rank, summarize
from decoding.step import Step
from evaluation.token_classes import CLASSES, classes

PLACES = (0, 16, 32, 64, 128, 256, 512, 1024)
"""Where spans of an answer begin, in tokens."""
MOST_PROMPTS = 100
WORST = 12
"""Prompts whose messages are kept, so that they can be run again …"""
MOST_CHARACTERS = 24_000
"""… as long as all of them together are no longer."""


def breakdown(answers: Sequence[Sequence[Step]], piece: Callable[[int], str]) -> dict[str, Any]:
    """Of the drafted answers, each a list of steps; `piece` gives a token's own text. JSON-able."""
    steps = [step for answer in answers for step in answer]
    shares = acceptance_by_rank(steps)
    return {
        "acceptance_by_rank": [[None if s is None else round(s, 4) for s in ranks] for ranks in shares],
        "lengths": lengths(steps),
        "by_position": by_position(answers),
        "by_class": by_class(answers, piece),
    }


def lengths(steps: Iterable[Step]) -> list[int]:
    """How many counted steps gave 1, 2, … tokens."""
    counted = Counter(len(step.tokens) for step in steps if step.counted)
    return [counted[length] for length in range(1, max(counted, default=0) + 1)]


def by_position(answers: Iterable[Sequence[Step]]) -> list[dict[str, Any]]:
    """τ of the counted steps that begin in each span of the answers."""
    steps, tokens = Counter[int](), Counter[int]()
    for answer in answers:
        at = 0
        for step in answer:
            if step.counted and step.tokens:
                span = max(start for start in PLACES if start <= at)
                steps[span] += 1
                tokens[span] += len(step.tokens)
            at += len(step.tokens)
    return [{"from": span, "steps": steps[span], "tau": round(tokens[span] / steps[span], 4)} for span in sorted(steps)]


def by_class(answers: Iterable[Sequence[Step]], piece: Callable[[int], str]) -> list[dict[str, Any]]:
    """Tokens of each kind, and how many of them had been drafted; the prefill's token cannot have been."""
    tokens, drafted = Counter[str](), Counter[str]()
    for answer in answers:
        emitted = [(token, step.kind) for step in answer for token in step.tokens]
        kinds = classes(piece(token.id) for token, _ in emitted)
        for (token, made), kind in zip(emitted, kinds, strict=True):
            if made != "prefill":
                tokens[kind] += 1
                drafted[kind] += token.origin == "draft"
    return [{"class": kind, "tokens": tokens[kind], "drafted": drafted[kind]} for kind in CLASSES if tokens[kind]]


@dataclass(frozen=True)
class Prompt:
    """One prompt's figures: what it is called (`id`, `turn`, `category`), its counts, and its messages where it can be
    asked again."""

    named: dict[str, Any]
    tau: float
    tokens: int
    steps: int
    messages: list[dict[str, str]]

    @classmethod
    def of(cls, named: dict[str, Any], steps: Sequence[Step], messages: list[dict[str, str]]) -> "Prompt":
        """From the steps of its answer."""
        summary = summarize(steps)
        return cls(named, summary.mean_accepted_length, summary.tokens, summary.verifications, messages)


def worst_first(prompts: Iterable[Prompt]) -> list[dict[str, Any]]:
    """Rows, the lowest τ first, the first of them with their messages. Prompts without a counted step are left out."""
    known = sorted((each for each in prompts if each.steps), key=lambda each: (each.tau, str(each.named)))
    made, room = [], MOST_CHARACTERS
    for number, each in enumerate(known[:MOST_PROMPTS]):
        made.append({**each.named, "tau": round(each.tau, 4), "tokens": each.tokens, "steps": each.steps})
        room -= sum(len(message["content"]) for message in each.messages)
        if number < WORST and room >= 0 and each.messages:
            made[-1]["messages"] = each.messages
    return made

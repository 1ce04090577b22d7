"""Breakdown of a draft's acceptance: accepted lengths, acceptance by position in the answer and by token class, and the
prompts with the lowest τ. Computed from existing steps; small enough to be stored in a database row.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from decoding.stats import acceptance_by_rank, summarize
from decoding.step import Step

SPAN_STARTS = (0, 16, 32, 64, 128, 256, 512, 1024)
"""Start positions of the spans of an answer, in tokens."""
CODE, NUMBERS, NAMES, WORDS = "code", "numbers", "names", "words"
PUNCTUATION, SPACES, OTHER = "punctuation and signs", "spaces and line breaks", "other scripts"
CLASSES = (CODE, NUMBERS, NAMES, WORDS, PUNCTUATION, OTHER, SPACES)
FENCE, INCOMPLETE = "```", "\ufffd"
ENDS_SENTENCE = frozenset('.!?:;\n*#-"“(')
MAX_PROMPTS = 100
WORST = 12
"""Number of prompts stored with their messages, so that they can be run again."""
MAX_CHARACTERS = 24_000
"""Maximum total characters of those messages."""


def breakdown(answers: Sequence[Sequence[Step]], token_text: Callable[[int], str]) -> dict[str, Any]:
    """Breakdown of drafted answers, each a list of steps; `token_text` maps a token id to its text. JSON-able."""
    steps = [step for answer in answers for step in answer]
    shares = acceptance_by_rank(steps)
    return {
        "acceptance_by_rank": [[None if s is None else round(s, 4) for s in ranks] for ranks in shares],
        "lengths": lengths(steps),
        "by_position": by_position(answers),
        "by_class": by_class(answers, token_text),
    }


def lengths(steps: Iterable[Step]) -> list[int]:
    """Number of counted steps that emitted 1, 2, … tokens."""
    counts = Counter(len(step.tokens) for step in steps if step.counted)
    return [counts[length] for length in range(1, max(counts, default=0) + 1)]


def by_position(answers: Iterable[Sequence[Step]]) -> list[dict[str, Any]]:
    """τ of the counted steps, by the span of the answer in which they begin."""
    steps, tokens = Counter[int](), Counter[int]()
    for answer in answers:
        position = 0
        for step in answer:
            if step.counted and step.tokens:
                span = max(start for start in SPAN_STARTS if start <= position)
                steps[span] += 1
                tokens[span] += len(step.tokens)
            position += len(step.tokens)
    return [{"from": span, "steps": steps[span], "tau": round(tokens[span] / steps[span], 4)} for span in sorted(steps)]


def by_class(answers: Iterable[Sequence[Step]], token_text: Callable[[int], str]) -> list[dict[str, Any]]:
    """Number of tokens and of drafted tokens by token class, without the prefill's token."""
    tokens, drafted = Counter[str](), Counter[str]()
    for answer in answers:
        emitted = [(token, step.kind) for step in answer for token in step.tokens]
        classes = classify_tokens(token_text(token.id) for token, _ in emitted)
        for (token, step_kind), token_class in zip(emitted, classes, strict=True):
            if step_kind != "prefill":
                tokens[token_class] += 1
                drafted[token_class] += token.origin == "draft"
    return [{"class": name, "tokens": tokens[name], "drafted": drafted[name]} for name in CLASSES if tokens[name]]


def classify_tokens(token_texts: Iterable[str]) -> Iterator[str]:
    """The class of each token text of one answer, in order: code, number, name, word, punctuation, other script.

    It depends on the text before the token as well: everything inside a ``` fence is code; a capital letter within a
    sentence starts a name, which continues over the following tokens without a space.
    """
    text, previous = "", ""
    for token_text in token_texts:
        previous = CODE if _is_code(text, token_text) else _class(token_text, text, previous)
        text += token_text
        yield previous


def _is_code(text: str, token_text: str) -> bool:
    return text.count(FENCE) % 2 == 1 or (text[-2:] + token_text).count(FENCE) > text[-2:].count(FENCE)


def _class(token_text: str, text: str, previous: str) -> str:
    stripped = token_text.strip()
    if not stripped:
        return SPACES
    if INCOMPLETE in stripped or any(letter.isalpha() and not _is_latin(letter) for letter in stripped):
        return OTHER
    if any(letter.isalpha() for letter in stripped):
        return _word_class(token_text, stripped, text, previous)
    return NUMBERS if any(sign.isdigit() for sign in stripped) else PUNCTUATION


def _word_class(token_text: str, stripped: str, text: str, previous: str) -> str:
    continues = token_text[0] == stripped[0] and text[-1:].isalpha()
    if continues and previous in (NAMES, WORDS):
        return previous
    starts_sentence = not text.rstrip(" ") or text.rstrip(" ")[-1] in ENDS_SENTENCE
    return NAMES if stripped[0].isupper() and not starts_sentence and stripped != "I" else WORDS


@lru_cache(maxsize=4096)
def _is_latin(letter: str) -> bool:
    return letter.isascii() or unicodedata.name(letter, "").startswith("LATIN")


@dataclass(frozen=True)
class PromptMetrics:
    """One prompt's metrics: `info` (`id`, `turn`, `category`), its counts, and its messages if it can be run again."""

    info: dict[str, Any]
    tau: float
    tokens: int
    steps: int
    messages: list[dict[str, str]]

    @classmethod
    def of(cls, info: dict[str, Any], steps: Sequence[Step], messages: list[dict[str, str]]) -> "PromptMetrics":
        """The metrics computed from the steps of the answer."""
        summary = summarize(steps)
        return cls(info, summary.mean_accepted_length, summary.tokens, summary.verifications, messages)


def worst_first(prompts: Iterable[PromptMetrics]) -> list[dict[str, Any]]:
    """JSON rows of the prompts with counted steps, by ascending τ, the first WORST with their messages."""
    ranked = sorted((prompt for prompt in prompts if prompt.steps), key=lambda prompt: (prompt.tau, str(prompt.info)))
    rows, characters_left = [], MAX_CHARACTERS
    for number, prompt in enumerate(ranked[:MAX_PROMPTS]):
        rows.append({**prompt.info, "tau": round(prompt.tau, 4), "tokens": prompt.tokens, "steps": prompt.steps})
        characters_left -= sum(len(message["content"]) for message in prompt.messages)
        if number < WORST and characters_left >= 0 and prompt.messages:
            rows[-1]["messages"] = prompt.messages
    return rows

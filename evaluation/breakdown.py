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

PLACES = (0, 16, 32, 64, 128, 256, 512, 1024)
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


def breakdown(answers: Sequence[Sequence[Step]], piece: Callable[[int], str]) -> dict[str, Any]:
    """Breakdown of drafted answers, each a list of steps; `piece` maps a token id to its text. JSON-able."""
    steps = [step for answer in answers for step in answer]
    shares = acceptance_by_rank(steps)
    return {
        "acceptance_by_rank": [[None if s is None else round(s, 4) for s in ranks] for ranks in shares],
        "lengths": lengths(steps),
        "by_position": by_position(answers),
        "by_class": by_class(answers, piece),
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
                span = max(start for start in PLACES if start <= position)
                steps[span] += 1
                tokens[span] += len(step.tokens)
            position += len(step.tokens)
    return [{"from": span, "steps": steps[span], "tau": round(tokens[span] / steps[span], 4)} for span in sorted(steps)]


def by_class(answers: Iterable[Sequence[Step]], piece: Callable[[int], str]) -> list[dict[str, Any]]:
    """Number of tokens and of drafted tokens by token class, without the prefill's token."""
    tokens, drafted = Counter[str](), Counter[str]()
    for answer in answers:
        emitted = [(token, step.kind) for step in answer for token in step.tokens]
        kinds = classify_tokens(piece(token.id) for token, _ in emitted)
        for (token, step_kind), kind in zip(emitted, kinds, strict=True):
            if step_kind != "prefill":
                tokens[kind] += 1
                drafted[kind] += token.origin == "draft"
    return [{"class": kind, "tokens": tokens[kind], "drafted": drafted[kind]} for kind in CLASSES if tokens[kind]]


def classify_tokens(pieces: Iterable[str]) -> Iterator[str]:
    """The class of each token text of one answer, in order: code, number, name, word, punctuation, other script.

    It depends on the text before the token as well: everything inside a ``` fence is code; a capital letter within a
    sentence starts a name, which continues over the following tokens without a space.
    """
    text, previous = "", ""
    for piece in pieces:
        previous = CODE if _in_code(text, piece) else _class(piece, text, previous)
        text += piece
        yield previous


def _in_code(text: str, piece: str) -> bool:
    return text.count(FENCE) % 2 == 1 or (text[-2:] + piece).count(FENCE) > text[-2:].count(FENCE)


def _class(piece: str, text: str, previous: str) -> str:
    core = piece.strip()
    if not core:
        return SPACES
    if INCOMPLETE in core or any(letter.isalpha() and not _is_latin(letter) for letter in core):
        return OTHER
    if any(letter.isalpha() for letter in core):
        return _word(piece, core, text, previous)
    return NUMBERS if any(sign.isdigit() for sign in core) else PUNCTUATION


def _word(piece: str, core: str, text: str, previous: str) -> str:
    continues = piece[0] == core[0] and text[-1:].isalpha()
    if continues and previous in (NAMES, WORDS):
        return previous
    begins = not text.rstrip(" ") or text.rstrip(" ")[-1] in ENDS_SENTENCE
    return NAMES if core[0].isupper() and not begins and core != "I" else WORDS


@lru_cache(maxsize=4096)
def _is_latin(letter: str) -> bool:
    return letter.isascii() or unicodedata.name(letter, "").startswith("LATIN")


@dataclass(frozen=True)
class PromptFigures:
    """One prompt's figures: `named` (`id`, `turn`, `category`), its counts, and its messages if it can be run again."""

    named: dict[str, Any]
    tau: float
    tokens: int
    steps: int
    messages: list[dict[str, str]]

    @classmethod
    def of(cls, named: dict[str, Any], steps: Sequence[Step], messages: list[dict[str, str]]) -> "PromptFigures":
        """The figures computed from the steps of the answer."""
        summary = summarize(steps)
        return cls(named, summary.mean_accepted_length, summary.tokens, summary.verifications, messages)


def worst_first(prompts: Iterable[PromptFigures]) -> list[dict[str, Any]]:
    """JSON rows of the prompts with counted steps, by ascending τ, the first WORST with their messages."""
    ranked = sorted((each for each in prompts if each.steps), key=lambda each: (each.tau, str(each.named)))
    rows, characters_left = [], MAX_CHARACTERS
    for number, each in enumerate(ranked[:MAX_PROMPTS]):
        rows.append({**each.named, "tau": round(each.tau, 4), "tokens": each.tokens, "steps": each.steps})
        characters_left -= sum(len(message["content"]) for message in each.messages)
        if number < WORST and characters_left >= 0 and each.messages:
            rows[-1]["messages"] = each.messages
    return rows

"""Breakdown of acceptance by step, position and class of token, checked against figures counted by hand."""

import pytest
import torch

from decoding.step import DraftRecord, EmittedToken, Step
from evaluation.acceptance import evaluate
from evaluation.breakdown import (
    CODE,
    MAX_CHARACTERS,
    NAMES,
    NUMBERS,
    OTHER,
    PUNCTUATION,
    SPACES,
    WORDS,
    WORST,
    PromptMetrics,
    by_class,
    by_position,
    classify_tokens,
    lengths,
    worst_first,
)
from models.base import load_base
from models.medusa import MedusaConfig, MedusaHeads
from speculoos.reporting import SilentReporter

PIECES = {1: "The", 2: " cat", 3: " 42", 4: ".", 5: " Berlin", 6: "\n"}


def step(index: int, ids: list[int], drafted: int = 0, counted: bool = True, kind: str = "verify") -> Step:
    tokens = tuple(EmittedToken(i, "draft" if n < drafted else "target", int(n < drafted)) for n, i in enumerate(ids))
    return Step(index, kind, tokens, DraftRecord(), tuple(range(drafted)), counted)


ANSWER = [
    step(0, [1], counted=False, kind="prefill"),
    step(1, [2, 3, 4], 2),
    step(2, [5], 0),
    *(step(n, [2, 2], 1) for n in range(3, 10)),
    step(10, [6], 0, counted=False),
]


def test_steps_are_counted_by_how_many_tokens_they_gave():
    assert lengths(ANSWER) == [1, 7, 1]
    assert lengths([]) == []


def test_tau_is_given_by_the_position_where_a_step_began():
    """Steps begin after 1, 4, 5, 7, 9, 11, 13, 15 and 17 tokens: the last of them in the second span."""
    assert by_position([ANSWER]) == [{"from": 0, "steps": 8, "tau": 2.0}, {"from": 16, "steps": 1, "tau": 2.0}]


def test_drafted_tokens_are_counted_by_their_class_without_the_prefill():
    counts = {row["class"]: (row["tokens"], row["drafted"]) for row in by_class([ANSWER], PIECES.__getitem__)}
    assert counts == {WORDS: (16, 8), NUMBERS: (1, 1), PUNCTUATION: (1, 0), SPACES: (1, 0)}


@pytest.mark.parametrize(
    ("pieces", "kinds"),
    [
        (["In", " Ber", "lin", ",", " I", " saw"], [WORDS, NAMES, NAMES, PUNCTUATION, WORDS, WORDS]),
        (["He", " said", ".", " Then", " Ann"], [WORDS, WORDS, PUNCTUATION, WORDS, NAMES]),
        (["```", "py", "\n", "x", "=", "1", "\n```", "\n", "Done"], [CODE] * 7 + [SPACES, WORDS]),
        (["a", " 3", ".", "14", "%"], [WORDS, NUMBERS, PUNCTUATION, NUMBERS, PUNCTUATION]),
        (["Это", " 猫", " \ufffd", " é"], [OTHER, OTHER, OTHER, WORDS]),
    ],
)
def test_kinds_of_tokens(pieces: list[str], kinds: list[str]):
    assert list(classify_tokens(pieces)) == kinds


def prompt(number: int, tokens: int, text: str = "why") -> PromptMetrics:
    messages = [{"role": "user", "content": text}]
    return PromptMetrics.of({"id": str(number)}, [step(1, [2] * tokens, tokens - 1)], messages)


def test_the_worst_prompts_come_first_and_a_few_of_them_keep_their_messages():
    rows = worst_first([prompt(n, 1 + n % 4) for n in range(30)])
    assert [row["tau"] for row in rows] == sorted(row["tau"] for row in rows) and len(rows) == 30
    assert [bool(row.get("messages")) for row in rows] == [True] * WORST + [False] * (30 - WORST)
    assert worst_first([PromptMetrics.of({"id": "empty"}, [], [])]) == []


def test_long_prompts_are_not_kept():
    rows = worst_first([prompt(1, 1, "x" * (MAX_CHARACTERS - 5)), prompt(2, 2, "y" * 10), prompt(3, 3)])
    assert ["messages" in row for row in rows] == [True, False, False]


def test_an_evaluation_with_a_draft_has_a_breakdown_and_a_plain_one_has_none(tiny_base):
    base = load_base(tiny_base)
    torch.manual_seed(0)
    heads = MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 2), base)
    questions = [
        {"id": f"q{n}", "messages": [{"role": "user", "content": text} for text in ("the quick", "and then")]}
        for n in range(2)
    ]
    result = evaluate(base, heads, questions, SilentReporter(), max_tokens=12)
    assert sum(result["lengths"]) == sum(span["steps"] for span in result["by_position"])
    assert sum(result["lengths"]) == sum(row["steps"] for row in result["per_prompt"])
    assert {(row["id"], row["turn"]) for row in result["per_prompt"]} == {("q0", 0), ("q0", 1), ("q1", 0), ("q1", 1)}
    later = next(row for row in result["per_prompt"] if row["turn"])
    assert [m["role"] for m in later["messages"]] == ["user", "assistant", "user"]
    assert later["messages"][-1]["content"] == "and then"
    assert (
        len(result["acceptance_by_rank"]) >= 1 and sum(token_class["tokens"] for token_class in result["by_class"]) > 0
    )
    plain = evaluate(base, None, questions[:1], SilentReporter(), max_tokens=4)
    assert "per_prompt" not in plain and "lengths" not in plain

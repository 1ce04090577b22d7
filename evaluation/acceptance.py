"""Acceptance and speed of a draft on questions, beside plain decoding by the same engine. Greedy.

For each prompt both ways run one after the other on the same target, taking turns in going first, so that a machine
that slows down slows both. Speeds are all tokens over all time, prefill included.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.stats import Summary, summarize
from decoding.step import Step
from decoding.target import Target, fast_target
from evaluation.machine import describe_machine
from evaluation.questions import turns
from evaluation.ties import TIE, first_difference, gap_at
from models.base import Base
from models.chat import render
from speculoos.errors import BadInput
from speculoos.reporting import Reporter, check_stop

MAX_LENGTH = 4096
WARM_UP_TOKENS = 8


@dataclass
class Measured:
    """One prompt: both runs, and where they first differ (None when nowhere)."""

    id: str
    category: str
    plain: list[Step]
    speculative: list[Step]
    first_difference: int | None = None
    gap: float | None = None
    """What plain decoding held against the other run's token where they part, in logits; None where one had ended."""

    @property
    def tie(self) -> bool:
        return self.gap is not None and abs(self.gap) <= TIE

    @property
    def speedup(self) -> float:
        return summarize(self.plain).ms_total / max(summarize(self.speculative).ms_total, 1e-9)


@dataclass
class _Bench:
    """What every prompt is measured with."""

    target: Target
    draft: Any
    options: dict[str, Any]
    max_tokens: int
    reporter: Reporter
    done: list[Measured] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def speculates(self) -> bool:
        return self.draft is not None or self.options.get("drafter", "none") != "none"


def evaluate(
    base: Base,
    draft: Any,
    questions: Sequence[dict[str, Any]],
    reporter: Reporter,
    *,
    limit: int | None = None,
    max_tokens: int = 128,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure `draft` (or the drafter that `options` name, or none) on rows with `messages`; JSON-able result:

    `mean_accepted_length` (τ), `acceptance_by_depth`, `identical_to_plain` (token for token, ties aside), `ties`
    (prompts that first differ between two tokens whose plain logits lie within 1e-3), `tokens_per_second`,
    `plain_tokens_per_second`, `speedup`, `median_speedup`, `per_category`, `prompts`, `differences`, and where and
    how it was measured. Later turns of a question follow plain's answers, so both ways see the same prompts.
    Raises Cancelled between prompts when the reporter says stop.
    """
    questions = list(questions)[:limit]
    if not questions:
        raise BadInput("There is no question to evaluate on.")
    target = fast_target(base, MAX_LENGTH)
    bench = _Bench(target, draft, dict(options or {}), max_tokens, reporter)
    _warm_up(bench)
    for number, row in enumerate(questions, 1):
        _question(bench, row)
        note = f"τ {_summary(bench.done).mean_accepted_length:.2f}" if bench.done else ""
        reporter.progress(number, len(questions), "questions", note)
        check_stop(reporter)
    if not bench.done:
        raise BadInput("Every question is too long for this base; give shorter ones.")
    return result(bench.done) | _conditions(bench)


def result(measured: Sequence[Measured]) -> dict[str, Any]:
    """The figures of `evaluate` from what was measured."""
    apart = [m for m in measured if m.first_difference is not None]
    categories = sorted({m.category for m in measured if m.category})
    return {
        **_figures(measured),
        "acceptance_by_depth": [round(a, 4) for a in _summary(measured).acceptance_by_depth],
        "identical_to_plain": all(m.tie for m in apart),
        "ties": sum(m.tie for m in apart),
        "median_speedup": round(statistics.median(m.speedup for m in measured), 3),
        "per_category": {name: _figures([m for m in measured if m.category == name]) for name in categories},
        "differences": [{"id": m.id, "at": m.first_difference, "gap": m.gap} for m in apart],
    }


def _figures(measured: Sequence[Measured]) -> dict[str, Any]:
    drafted, plain = _summary(measured), summarize(s for m in measured for s in m.plain)
    speed, plain_speed = drafted.tokens_per_second, plain.tokens_per_second
    return {
        "mean_accepted_length": round(drafted.mean_accepted_length, 4),
        "tokens_per_second": round(speed, 3),
        "plain_tokens_per_second": round(plain_speed, 3),
        "speedup": round(speed / plain_speed, 3) if plain_speed else 0.0,
        "prompts": len(measured),
        "tokens": drafted.tokens,
    }


def _summary(measured: Sequence[Measured]) -> Summary:
    return summarize(s for m in measured for s in m.speculative)


def _conditions(bench: _Bench) -> dict[str, Any]:
    base = bench.target.base
    return {
        "skipped": bench.skipped,
        "drafter": bench.options.get("drafter") or getattr(bench.draft, "method", "none"),
        "max_tokens": bench.max_tokens,
        "dtype": str(base.dtype).removeprefix("torch."),
        "engine": bench.target.forward.name,
        "notice": bench.target.notice,
        "machine": describe_machine(base.device),
    }


def _warm_up(bench: _Bench) -> None:
    """Both ways once, unmeasured: storage is made and libraries pick their kernels."""
    prompt = render(bench.target.base.tokenizer, [{"role": "user", "content": "Say hello to everybody here."}])
    for speculative in (False, True):
        _run(bench, prompt, speculative, WARM_UP_TOKENS)


def _question(bench: _Bench, row: dict[str, Any]) -> None:
    """All turns of one question; the first one only where the base has no chat template."""
    tokenizer = bench.target.base.tokenizer
    system, users = turns(row)
    messages: list[dict[str, str]] = []
    for user in users if tokenizer.chat_template else users[:1]:
        messages.append({"role": "user", "content": user})
        prompt = render(tokenizer, messages, system)
        if len(prompt) >= bench.target.max_length:
            bench.skipped.append(str(row.get("id", "")))
            bench.reporter.log(f"{row.get('id')}: {len(prompt)} prompt tokens are too many; left out.", "warning")
            return
        measured = _prompt(bench, row, prompt)
        bench.done.append(measured)
        answer = tokenizer.decode(ids(measured.plain), skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer})
        check_stop(bench.reporter)


def _prompt(bench: _Bench, row: dict[str, Any], prompt: list[int]) -> Measured:
    order = (False, True) if len(bench.done) % 2 == 0 else (True, False)
    runs = {speculative: _run(bench, prompt, speculative, bench.max_tokens) for speculative in order[: _ways(bench)]}
    plain = runs[False] if False in runs else runs[True]
    measured = Measured(str(row.get("id", "")), row.get("category", ""), plain, runs.get(True, plain))
    measured.first_difference = first_difference(ids(plain), ids(measured.speculative))
    if measured.first_difference is not None:
        measured.gap = gap_at(bench.target, prompt, ids(plain), ids(measured.speculative))
    return measured


def _ways(bench: _Bench) -> int:
    return 2 if bench.speculates else 1


def _run(bench: _Bench, prompt: list[int], speculative: bool, max_tokens: int) -> list[Step]:
    """One greedy generation from an empty cache."""
    bench.target.rewind(0)
    drafter = make_drafter(bench.target, bench.draft, bench.options) if speculative else make_drafter(bench.target)
    config = GenerateConfig(max_tokens=max_tokens, should_stop=bench.reporter.stop_requested)
    return list(generate(bench.target, drafter, prompt, config))


def ids(steps: Sequence[Step]) -> list[int]:
    """Token ids of a generation."""
    return [token.id for step in steps for token in step.tokens]

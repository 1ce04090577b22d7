"""Acceptance and speed of a draft on questions, beside plain decoding by the same engine. Greedy.

Both ways run side by side, a step of one and a step of the other, on caches of their own, so that a machine that slows
down slows both. `speedup` comes of medians of step times and τ, with an interval (`evaluation.estimate`); the tokens a
second are all tokens over all time, prefill included, and `end_to_end_speedup` is their ratio. Where the clock alone
leaves the speedup uncertain the prompts run again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.base import Drafter
from decoding.generate import generate
from decoding.stats import Summary, summarize
from decoding.step import Step
from decoding.target import Target, fast_target
from evaluation.estimate import Estimate, Timing, estimate
from evaluation.machine import describe_machine
from evaluation.questions import turns
from evaluation.side_by_side import side_by_side
from evaluation.ties import TIE, first_difference, gap_at
from models.base import Base
from models.chat import render
from speculoos.errors import BadInput, Unavailable
from speculoos.reporting import Reporter, check_stop

MAX_LENGTH = 4096
WARM_UP_TOKENS = 8
NOISE = 0.02
"""Relative standard error of the speedup, by the clock alone, above which the prompts run again …"""
PASSES = 3
"""… so many times in all at most."""


@dataclass
class PromptResult:
    """One prompt: both runs, and where they first differ (None when nowhere)."""

    id: str
    category: str
    plain: list[Step]
    speculative: list[Step]
    prompt: list[int] = field(default_factory=list)
    timing: Timing = field(init=False)
    """Of this run and of those that repeated it."""
    first_difference: int | None = None
    gap: float | None = None
    """What plain decoding held against the other run's token where they part, in logits; None where one had ended."""

    def __post_init__(self) -> None:
        self.timing = Timing.of(self.speculative, self.plain)

    @property
    def tie(self) -> bool:
        return self.gap is not None and abs(self.gap) <= TIE


@dataclass
class _Bench:
    """What every prompt is measured with."""

    target: Target
    plain: Target
    """The same base with a cache of its own."""
    draft: Any
    options: dict[str, Any]
    max_tokens: int
    reporter: Reporter
    done: list[PromptResult] = field(default_factory=list)
    passes: int = 1
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

    `mean_accepted_length` (τ), `speedup`, each with `…_interval` ([low, high] at 95 %), `timing_noise` (the clock's
    part of the speedup's relative standard error), `passes`, `plain_step_ms`, `drafted_step_ms`, `acceptance_by_depth`,
    `identical_to_plain` (token for token, ties aside), `ties` (prompts that first differ between two tokens whose plain
    logits lie within 1e-3), `tokens_per_second`, `plain_tokens_per_second`, `end_to_end_speedup`, `per_category`,
    `prompts`, `differences`, and where and how it was measured. Later turns of a question follow plain's answers, so
    both ways see the same prompts.
    Raises Cancelled between prompts when the reporter says stop, Unavailable where the figures cannot be: then the
    machine was busy.
    """
    questions = list(questions)[:limit]
    if not questions:
        raise BadInput("There is no question to evaluate on.")
    target, plain = fast_target(base, MAX_LENGTH), fast_target(base, MAX_LENGTH)
    bench = _Bench(target, plain, draft, dict(options or {}), max_tokens, reporter)
    _warm_up(bench)
    for number, row in enumerate(questions, 1):
        _question(bench, row)
        note = f"τ {_summary(bench.done).mean_accepted_length:.2f}" if bench.done else ""
        reporter.progress(number, len(questions), "questions", note)
        check_stop(reporter)
    if not bench.done:
        raise BadInput("Every question is too long for this base; give shorter ones.")
    _repeat(bench)
    return result(bench.done) | _conditions(bench)


def result(measured: Sequence[PromptResult]) -> dict[str, Any]:
    """The figures of `evaluate` from what was measured."""
    apart = [m for m in measured if m.first_difference is not None]
    categories = sorted({m.category for m in measured if m.category})
    return {
        **_figures(measured),
        "acceptance_by_depth": [round(a, 4) for a in _summary(measured).acceptance_by_depth],
        "identical_to_plain": all(m.tie for m in apart),
        "ties": sum(m.tie for m in apart),
        "per_category": {name: _figures([m for m in measured if m.category == name]) for name in categories},
        "differences": [{"id": m.id, "at": m.first_difference, "gap": m.gap} for m in apart],
    }


def _figures(measured: Sequence[PromptResult]) -> dict[str, Any]:
    drafted, plain = _summary(measured), summarize(s for m in measured for s in m.plain)
    speed, plain_speed = drafted.tokens_per_second, plain.tokens_per_second
    whole = round(speed / plain_speed, 3) if plain_speed else 0.0
    return {
        "mean_accepted_length": round(drafted.mean_accepted_length, 4),
        "speedup": whole,
        **_estimated(measured),
        "tokens_per_second": round(speed, 3),
        "plain_tokens_per_second": round(plain_speed, 3),
        "end_to_end_speedup": whole,
        "prompts": len(measured),
        "tokens": drafted.tokens,
    }


def _estimated(measured: Sequence[PromptResult]) -> dict[str, Any]:
    """The figures that have intervals; none where no answer had a whole step."""
    if all(m.speculative is m.plain for m in measured):
        return {"speedup": 1.0, "speedup_interval": [1.0, 1.0], "mean_accepted_length_interval": [1.0, 1.0]}
    figures = estimate([m.timing for m in measured])
    if figures is None:
        return {"speedup_interval": None, "mean_accepted_length_interval": None}
    return {
        "speedup": round(figures.speedup, 3),
        "speedup_interval": [round(value, 3) for value in figures.speedup_interval],
        "mean_accepted_length_interval": [round(value, 4) for value in figures.tau_interval],
        "timing_noise": round(figures.noise, 4),
        "plain_step_ms": round(figures.plain_ms, 3),
        "drafted_step_ms": round(figures.drafted_ms, 3),
    }


def _summary(measured: Sequence[PromptResult]) -> Summary:
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
        "passes": bench.passes,
        "machine": describe_machine(base.device),
    }


def _warm_up(bench: _Bench) -> None:
    """Both ways once, unmeasured: storage is made and libraries pick their kernels."""
    prompt = render(bench.target.base.tokenizer, [{"role": "user", "content": "Say hello to everybody here."}])
    _both(bench, prompt, WARM_UP_TOKENS)


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


def _prompt(bench: _Bench, row: dict[str, Any], prompt: list[int]) -> PromptResult:
    plain, speculative = _both(bench, prompt, bench.max_tokens)
    measured = PromptResult(str(row.get("id", "")), row.get("category", ""), plain, speculative, prompt)
    measured.first_difference = first_difference(ids(plain), ids(measured.speculative))
    if measured.first_difference is not None:
        measured.gap = gap_at(bench.target, prompt, ids(plain), ids(measured.speculative))
    return measured


def _both(bench: _Bench, prompt: list[int], max_tokens: int) -> tuple[list[Step], list[Step]]:
    """Plain's steps and the drafter's, greedy, each from an empty cache; the same list where nothing is drafted."""
    plain = _generation(bench, bench.plain, make_drafter(bench.plain), prompt, max_tokens)
    if not bench.speculates:
        return (steps := list(plain)), steps
    drafter = make_drafter(bench.target, bench.draft, bench.options)
    drafted = _generation(bench, bench.target, drafter, prompt, max_tokens)
    return side_by_side(plain, drafted)


def _generation(bench: _Bench, target: Target, drafter: Drafter, prompt: list[int], max_tokens: int) -> Iterator[Step]:
    target.rewind(0)
    config = GenerateConfig(max_tokens=max_tokens, should_stop=bench.reporter.stop_requested)
    return generate(target, drafter, prompt, config)


def _repeat(bench: _Bench) -> None:
    """The prompts again, while the clock leaves the speedup uncertain or makes it impossible. Raises Unavailable when
    it is impossible still."""
    while bench.speculates and (figures := estimate([m.timing for m in bench.done])) and _doubtful(figures):
        if bench.passes == PASSES:
            if figures.impossible:
                raise Unavailable(
                    f"The machine was busy: drafting seemed {figures.speedup:.2f} × as fast as plain, but its accepted "
                    f"tokens allow {figures.bound:.2f} × at most.",
                    "Measure again when less else is running.",
                )
            return
        bench.passes += 1
        bench.reporter.log(f"Step times vary by {figures.noise:.1%}: the questions run again ({bench.passes}).")
        for number, measured in enumerate(bench.done, 1):
            plain, speculative = _both(bench, measured.prompt, bench.max_tokens)
            measured.timing = measured.timing.joined(Timing.of(speculative, plain))
            bench.reporter.progress(number, len(bench.done), "prompts", f"again, {bench.passes} of {PASSES} at most")
            check_stop(bench.reporter)


def _doubtful(figures: Estimate) -> bool:
    return figures.noise > NOISE or figures.impossible


def ids(steps: Sequence[Step]) -> list[int]:
    """Token ids of a generation."""
    return [token.id for step in steps for token in step.tokens]

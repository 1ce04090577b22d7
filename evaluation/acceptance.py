"""Acceptance and speed of a draft on questions, beside plain decoding by the same engine; greedy or sampled.

Both ways run side by side, a step of one and a step of the other, on caches of their own, so that a machine that slows
down slows both. `speedup` comes of medians of step times and τ, with an interval (`evaluation.estimate`); the tokens a
second are all tokens over all time, prefill included, and `end_to_end_speedup` is their ratio. Where the clock alone
leaves the speedup uncertain the prompts run again. Above temperature 0 both ways sample, each with numbers of its own
text: their answers have one distribution, and are not the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from time import monotonic
from typing import Any

from corpus.seeds import row_seed
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.base import Drafter
from decoding.generate import generate
from decoding.stats import Summary, summarize
from decoding.step import Step
from decoding.target import Target, fast_target
from decoding.text import piece_reader
from evaluation.breakdown import Prompt, breakdown, worst_first
from evaluation.estimate import AcceptanceEstimate, StepTiming, estimate
from evaluation.load import Load
from evaluation.machine import describe_machine
from evaluation.questions import turns
from evaluation.side_by_side import side_by_side
from evaluation.ties import TIE, first_difference, gap_at
from models.base import LoadedBase
from models.chat import render
from speculoos.errors import BadInput, Unavailable
from speculoos.reporting import Reporter, check_stop

MAX_LENGTH = 4096
WARM_UP_TOKENS = 8
NOISE = 0.02
"""Relative standard error of the speedup, by the clock alone, above which the prompts run again …"""
PASSES = 3
"""… so many times in all at most, and no longer than so many times the first pass took."""


@dataclass(frozen=True)
class AcceptanceSampling:
    """How both ways choose tokens; greedy by default. Raises BadInput for a temperature or top-p that cannot be."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.config(1, self.seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def config(self, max_tokens: int, seed: int, **more: Any) -> GenerateConfig:
        """Of one answer."""
        return GenerateConfig(max_tokens, self.temperature, top_p=self.top_p, seed=seed % 2**63, **more)


@dataclass
class PromptResult:
    """One prompt: both runs, and where they first differ (None when nowhere)."""

    id: str
    category: str
    plain: list[Step]
    speculative: list[Step]
    prompt: list[int] = field(default_factory=list)
    seed: int = 0
    turn: int = 0
    messages: list[dict[str, str]] = field(default_factory=list)
    timing: StepTiming = field(init=False)
    """Of this run and of those that repeated it."""
    first_difference: int | None = None
    gap: float | None = None
    """What plain decoding held against the other run's token where they part, in logits; None where one had ended."""

    def __post_init__(self) -> None:
        self.timing = StepTiming.of(self.speculative, self.plain)

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
    asked: int = 0
    to_ask: int = 0
    """Questions in the worst case, so that progress never falls back; one that is repeated counts again."""
    skipped: list[str] = field(default_factory=list)
    sampling: AcceptanceSampling = AcceptanceSampling()

    @property
    def speculates(self) -> bool:
        return self.draft is not None or self.options.get("drafter", "none") != "none"


def evaluate(
    base: LoadedBase,
    draft: Any,
    questions: Sequence[dict[str, Any]],
    reporter: Reporter,
    *,
    max_tokens: int = 128,
    options: dict[str, Any] | None = None,
    sampling: AcceptanceSampling | None = None,
) -> dict[str, Any]:
    """Measure `draft` (or the drafter that `options` name, or none) on rows with `messages`; JSON-able result:

    `mean_accepted_length` (τ), `speedup`, each with `…_interval` ([low, high] at 95 %), `timing_noise` (the clock's
    part of the speedup's relative standard error), `other_load` and `busy` (`evaluation.load`), `passes`,
    `plain_step_ms`, `drafted_step_ms`, `acceptance_by_depth`, `identical_to_plain` (token for token, ties aside; None
    where tokens were sampled), `ties` (prompts that first differ between two tokens whose plain logits lie within
    1e-3), `tokens_per_second`, `plain_tokens_per_second`, `end_to_end_speedup`, `per_category`, `prompts`,
    `differences`, where and how it was measured, and of what drafts where it does well (`evaluation.breakdown`) and
    `per_prompt`, the lowest τ first. Later turns of a question follow plain's answers, so both ways see the same
    prompts.
    Raises Cancelled between prompts when the reporter says stop, Unavailable where the figures cannot be: then the
    machine was busy.
    """
    if not questions:
        raise BadInput("There is no question to evaluate on.")
    target, plain = fast_target(base, MAX_LENGTH), fast_target(base, MAX_LENGTH)
    bench = _Bench(
        target, plain, draft, dict(options or {}), max_tokens, reporter, sampling=sampling or AcceptanceSampling()
    )
    bench.to_ask = len(questions) * (PASSES if bench.speculates else 1)
    _warm_up(bench)
    began, load = monotonic(), Load()
    for row in questions:
        before = len(bench.done)
        _question(bench, row)
        _say_result(bench, bench.done[before:])
        _say_asked(bench, _first_pass_note(bench))
        check_stop(reporter)
    if not bench.done:
        raise BadInput("Every question is too long for this base; give shorter ones.")
    _repeat(bench, until=began + PASSES * (monotonic() - began))
    reporter.progress(bench.asked, bench.asked, "questions")
    found = result(bench.done)
    found |= load.figures(reporter, found.get("timing_noise") or 0.0)
    if not bench.sampling.greedy:
        found |= {"identical_to_plain": None, "ties": 0, "differences": []}
    return found | _conditions(bench) | (_breakdown(bench) if bench.speculates else {})


def _breakdown(bench: _Bench) -> dict[str, Any]:
    """Where the draft does well, and the prompts where it does worst."""
    answers = [measured.speculative for measured in bench.done]
    prompts = (
        Prompt.of({"id": m.id, "turn": m.turn, "category": m.category}, m.speculative, m.messages) for m in bench.done
    )
    return {**breakdown(answers, piece_reader(bench.target.base.tokenizer)), "per_prompt": worst_first(prompts)}


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
    found = _whole_figures(measured)
    first = {"mean_accepted_length": found["mean_accepted_length"], "speedup": found["end_to_end_speedup"]}
    return {**first, **_estimated(measured), **found}


def _whole_figures(measured: Sequence[PromptResult]) -> dict[str, Any]:
    """All tokens over all time, and τ; no intervals."""
    drafted, plain = _summary(measured), summarize(s for m in measured for s in m.plain)
    speed, plain_speed = drafted.tokens_per_second, plain.tokens_per_second
    return {
        "mean_accepted_length": round(drafted.mean_accepted_length, 4),
        "tokens_per_second": round(speed, 3),
        "plain_tokens_per_second": round(plain_speed, 3),
        "end_to_end_speedup": round(speed / plain_speed, 3) if plain_speed else 0.0,
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
        **asdict(bench.sampling),
        "dtype": str(base.dtype).removeprefix("torch."),
        "engine": bench.target.forward.name,
        "notice": bench.target.notice,
        "passes": bench.passes,
        "machine": describe_machine(base.device),
    }


def _warm_up(bench: _Bench) -> None:
    """Both ways once, unmeasured: storage is made and libraries pick their kernels."""
    prompt = render(bench.target.base.tokenizer, [{"role": "user", "content": "Say hello to everybody here."}])
    _both(bench, prompt, WARM_UP_TOKENS, 0)


def _question(bench: _Bench, row: dict[str, Any]) -> None:
    """All turns of one question; the first one only where the base has no chat template."""
    tokenizer = bench.target.base.tokenizer
    system, users = turns(row)
    messages: list[dict[str, str]] = []
    for turn, user in enumerate(users if tokenizer.chat_template else users[:1]):
        messages.append({"role": "user", "content": user})
        prompt = render(tokenizer, messages, system)
        if len(prompt) >= bench.target.max_length:
            bench.skipped.append(str(row.get("id", "")))
            bench.reporter.log(f"{row.get('id')}: {len(prompt)} prompt tokens are too many; left out.", "warning")
            return
        measured = _prompt(bench, row, prompt, row_seed(bench.sampling.seed, str(row.get("id", "")), turn))
        measured.turn = turn
        measured.messages = [*([{"role": "system", "content": system}] if system else []), *map(dict, messages)]
        bench.done.append(measured)
        answer = tokenizer.decode(ids(measured.plain), skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer})
        check_stop(bench.reporter)


def _say_result(bench: _Bench, turns_done: Sequence[PromptResult]) -> None:
    """One question's figures, to be shown while the others are still measured."""
    if turns_done:
        first = turns_done[0]
        told = {"question": first.id, "category": first.category, **_whole_figures(turns_done)}
        bench.reporter.sample(bench.asked + 1, told)


def _first_pass_note(bench: _Bench) -> str:
    """τ so far, and how often a busy machine may make the questions repeat."""
    tau = f"τ {_summary(bench.done).mean_accepted_length:.2f}" if bench.done else ""
    return ", ".join(filter(None, (tau, f"pass 1 of at most {PASSES}" if bench.speculates else "")))


def _say_asked(bench: _Bench, note: str) -> None:
    bench.asked += 1
    bench.reporter.progress(bench.asked, bench.to_ask, "questions", note)


def _prompt(bench: _Bench, row: dict[str, Any], prompt: list[int], seed: int) -> PromptResult:
    plain, speculative = _both(bench, prompt, bench.max_tokens, seed)
    measured = PromptResult(str(row.get("id", "")), row.get("category", ""), plain, speculative, prompt, seed)
    if not bench.sampling.greedy:
        return measured
    measured.first_difference = first_difference(ids(plain), ids(measured.speculative))
    if measured.first_difference is not None:
        measured.gap = gap_at(bench.target, prompt, ids(plain), ids(measured.speculative))
    return measured


def _both(bench: _Bench, prompt: list[int], max_tokens: int, seed: int) -> tuple[list[Step], list[Step]]:
    """Plain's steps and the drafter's, each from an empty cache; the same list where nothing is drafted."""
    config = bench.sampling.config(max_tokens, seed, should_stop=bench.reporter.stop_requested)
    plain = _generation(bench.plain, make_drafter(bench.plain), prompt, config)
    if not bench.speculates:
        return (steps := list(plain)), steps
    drafter = make_drafter(bench.target, bench.draft, bench.options)
    drafted = _generation(bench.target, drafter, prompt, config)
    return side_by_side(plain, drafted)


def _generation(target: Target, drafter: Drafter, prompt: list[int], config: GenerateConfig) -> Iterator[Step]:
    target.rewind(0)
    return generate(target, drafter, prompt, config)


def _repeat(bench: _Bench, until: float) -> None:
    """The prompts again, while the clock leaves the speedup uncertain or makes it impossible, and until that time of
    the monotonic clock. Raises Unavailable when the speedup is impossible still."""
    while bench.speculates and (figures := estimate([m.timing for m in bench.done])) and _doubtful(figures):
        if bench.passes == PASSES or monotonic() > until:
            if figures.impossible:
                raise Unavailable(
                    f"The machine was busy: drafting seemed {figures.speedup:.2f} × as fast as plain, but its accepted "
                    f"tokens allow {figures.bound:.2f} × at most.",
                    "Measure again when less else is running.",
                )
            return
        bench.passes += 1
        bench.reporter.log(f"Step times vary by {figures.noise:.1%}: the questions run again ({bench.passes}).")
        for measured, following in zip_longest(bench.done, bench.done[1:]):
            plain, speculative = _both(bench, measured.prompt, bench.max_tokens, measured.seed)
            measured.timing = measured.timing.joined(StepTiming.of(speculative, plain))
            if following is None or following.turn == 0:
                _say_asked(bench, f"noisy, repeating ({bench.passes} of {PASSES})")
            check_stop(bench.reporter)
            if monotonic() > until:
                break


def _doubtful(figures: AcceptanceEstimate) -> bool:
    return figures.noise > NOISE or figures.impossible


def ids(steps: Sequence[Step]) -> list[int]:
    """Token ids of a generation."""
    return [token.id for step in steps for token in step.tokens]

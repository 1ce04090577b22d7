"""Acceptance and speed of a draft on questions, compared with plain decoding by the same engine; greedy or sampled.

Both run alternately, step by step, with separate KV caches, so that a slowdown of the machine affects both. `speedup`
is computed from medians of step times and τ, with an interval (`evaluation.estimate`); tokens per second are all tokens
over the whole time, prefill included, and `end_to_end_speedup` is their ratio. Prompts are repeated while timing noise
leaves the speedup uncertain. Above temperature 0 both sample with different random numbers: their answers have the same
distribution but differ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from time import monotonic
from typing import Any

from corpus.conversations import row_seed
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.base import Drafter
from decoding.generate import generate
from decoding.stats import Summary, summarize
from decoding.step import Step
from decoding.target import Target, fast_target
from decoding.text import token_text_reader
from evaluation.breakdown import PromptFigures, breakdown, worst_first
from evaluation.estimate import AcceptanceEstimate, StepTiming, estimate
from evaluation.machine import describe_machine, load_figures
from evaluation.questions import turns
from evaluation.ties import TIE, first_difference, gap_at
from models.base import LoadedBase
from models.chat import render
from speculoos.errors import BadInput, Unavailable
from speculoos.other_work import OtherCpuLoad
from speculoos.reporting import Reporter, check_stop

MAX_LENGTH = 4096
WARM_UP_TOKENS = 8
MAX_TIMING_NOISE = 0.02
"""The prompts are repeated if timing alone gives the speedup a larger relative standard error."""
PASSES = 3
"""Maximum passes over the prompts, and maximum total time as a multiple of the first pass."""


@dataclass(frozen=True)
class AcceptanceSampling:
    """Sampling options of both runs; greedy by default. Raises BadInput for an invalid temperature or top-p."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.config(1, self.seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def config(self, max_tokens: int, seed: int, **more: Any) -> GenerateConfig:
        return GenerateConfig(max_tokens, self.temperature, top_p=self.top_p, seed=seed % 2**63, **more)


@dataclass
class PromptResult:
    """Both runs of one prompt, and the index where they first differ (None if equal)."""

    id: str
    category: str
    plain: list[Step]
    speculative: list[Step]
    prompt: list[int] = field(default_factory=list)
    seed: int = 0
    turn: int = 0
    messages: list[dict[str, str]] = field(default_factory=list)
    timing: StepTiming = field(init=False)
    """Step times of all passes."""
    first_difference: int | None = None
    gap: float | None = None
    """Plain logit of plain decoding's token minus the other's at the first difference; None if one had ended."""

    def __post_init__(self) -> None:
        self.timing = StepTiming.of(self.speculative, self.plain)

    @property
    def tie(self) -> bool:
        return self.gap is not None and abs(self.gap) <= TIE


@dataclass
class _Bench:
    """State shared by all prompts of an evaluation."""

    target: Target
    plain: Target
    """The same base with a separate KV cache."""
    draft: Any
    options: dict[str, Any]
    max_tokens: int
    reporter: Reporter
    done: list[PromptResult] = field(default_factory=list)
    passes: int = 1
    completed: int = 0
    total: int = 0
    """Maximum number of questions, repetitions included, so that the progress never decreases."""
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
    """Measure `draft` (or the drafter named in `options`, or none) on rows with `messages`. Returns a JSON-able dict:

    `mean_accepted_length` (τ), `speedup`, each with `…_interval` ([low, high] at 95 %), `timing_noise` (the relative
    standard error of the speedup due to timing), `other_load` and `busy` (`evaluation.machine`), `passes`,
    `plain_step_ms`, `drafted_step_ms`, `acceptance_by_depth`, `identical_to_plain` (token for token, except for ties;
    None with sampling), `ties` (prompts whose first difference is between two tokens with plain logits within 1e-3),
    `tokens_per_second`, `plain_tokens_per_second`, `end_to_end_speedup`, `per_category`, `prompts`, `differences`, the
    conditions of the measurement, and, with a draft, `evaluation.breakdown` and `per_prompt`, lowest τ first. Later
    turns of a question follow plain decoding's answers, so both runs have the same prompts.
    Raises Cancelled between prompts when the reporter requests a stop, Unavailable when the figures are impossible
    because the machine was busy.
    """
    if not questions:
        raise BadInput("There is no question to evaluate on.")
    target, plain = fast_target(base, MAX_LENGTH), fast_target(base, MAX_LENGTH)
    sampling = sampling or AcceptanceSampling()
    bench = _Bench(target, plain, draft, dict(options or {}), max_tokens, reporter, sampling=sampling)
    bench.total = len(questions) * (PASSES if bench.speculates else 1)
    _warm_up(bench)
    began, load = monotonic(), OtherCpuLoad()
    for row in questions:
        before = len(bench.done)
        _question(bench, row)
        _report_result(bench, bench.done[before:])
        _count_question(bench, _first_pass_note(bench))
        check_stop(reporter)
    if not bench.done:
        raise BadInput("Every question is too long for this base; give shorter ones.")
    _repeat(bench, until=began + PASSES * (monotonic() - began))
    reporter.progress(bench.completed, bench.completed, "questions")
    figures = acceptance_result(bench.done)
    figures |= load_figures(load, reporter, figures.get("timing_noise") or 0.0)
    if not bench.sampling.greedy:
        figures |= {"identical_to_plain": None, "ties": 0, "differences": []}
    return figures | _conditions(bench) | (_breakdown(bench) if bench.speculates else {})


def _breakdown(bench: _Bench) -> dict[str, Any]:
    answers = [measured.speculative for measured in bench.done]
    prompts = (
        PromptFigures.of({"id": m.id, "turn": m.turn, "category": m.category}, m.speculative, m.messages)
        for m in bench.done
    )
    return {**breakdown(answers, token_text_reader(bench.target.base.tokenizer)), "per_prompt": worst_first(prompts)}


def acceptance_result(measured: Sequence[PromptResult]) -> dict[str, Any]:
    """The figures of `evaluate` from the measured prompts."""
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
    figures = _whole_figures(measured)
    leading = {"mean_accepted_length": figures["mean_accepted_length"], "speedup": figures["end_to_end_speedup"]}
    return {**leading, **_estimated(measured), **figures}


def _whole_figures(measured: Sequence[PromptResult]) -> dict[str, Any]:
    """Totals over all prompts, and τ, without intervals."""
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
    """The figures with intervals; None intervals when no answer has a complete step."""
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
    """Run both once without measuring: buffers are allocated and libraries select their kernels."""
    prompt = render(bench.target.base.tokenizer, [{"role": "user", "content": "Say hello to everybody here."}])
    _both(bench, prompt, WARM_UP_TOKENS, 0)


def _question(bench: _Bench, row: dict[str, Any]) -> None:
    """Measure all turns of one question; only the first one if the base has no chat template."""
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
        answer = tokenizer.decode(token_ids_of_steps(measured.plain), skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer})
        check_stop(bench.reporter)


def _report_result(bench: _Bench, turns_done: Sequence[PromptResult]) -> None:
    if turns_done:
        first = turns_done[0]
        sample = {"question": first.id, "category": first.category, **_whole_figures(turns_done)}
        bench.reporter.sample(bench.completed + 1, sample)


def _first_pass_note(bench: _Bench) -> str:
    tau = f"τ {_summary(bench.done).mean_accepted_length:.2f}" if bench.done else ""
    return ", ".join(filter(None, (tau, f"pass 1 of at most {PASSES}" if bench.speculates else "")))


def _count_question(bench: _Bench, note: str) -> None:
    bench.completed += 1
    bench.reporter.progress(bench.completed, bench.total, "questions", note)


def _prompt(bench: _Bench, row: dict[str, Any], prompt: list[int], seed: int) -> PromptResult:
    plain, speculative = _both(bench, prompt, bench.max_tokens, seed)
    measured = PromptResult(str(row.get("id", "")), row.get("category", ""), plain, speculative, prompt, seed)
    if not bench.sampling.greedy:
        return measured
    measured.first_difference = first_difference(token_ids_of_steps(plain), token_ids_of_steps(measured.speculative))
    if measured.first_difference is not None:
        measured.gap = gap_at(bench.target, prompt, token_ids_of_steps(plain), token_ids_of_steps(measured.speculative))
    return measured


def _both(bench: _Bench, prompt: list[int], max_tokens: int, seed: int) -> tuple[list[Step], list[Step]]:
    """(plain steps, drafted steps), each from an empty cache; the same list twice without a draft."""
    config = bench.sampling.config(max_tokens, seed, should_stop=bench.reporter.stop_requested)
    plain = _generation(bench.plain, make_drafter(bench.plain), prompt, config)
    if not bench.speculates:
        return (steps := list(plain)), steps
    drafter = make_drafter(bench.target, bench.draft, bench.options)
    drafted = _generation(bench.target, drafter, prompt, config)
    return side_by_side(plain, drafted)


def side_by_side(first: Iterator[Step], second: Iterator[Step]) -> tuple[list[Step], list[Step]]:
    """All steps of two generations of one prompt, run alternately. The one with fewer tokens takes the next step, so
    that both texts have similar length."""
    steps: tuple[list[Step], list[Step]] = ([], [])
    sources, tokens, open_ = (first, second), [0, 0], [0, 1]
    last = 1
    while open_:
        turn = min(open_, key=lambda i: (tokens[i], i == last))
        last = turn
        if (step := next(sources[turn], None)) is None:
            open_.remove(turn)
            continue
        steps[turn].append(step)
        tokens[turn] += len(step.tokens)
    return steps


def _generation(target: Target, drafter: Drafter, prompt: list[int], config: GenerateConfig) -> Iterator[Step]:
    target.rewind(0)
    return generate(target, drafter, prompt, config)


def _repeat(bench: _Bench, until: float) -> None:
    """Repeat the prompts while the speedup is uncertain or impossible, until the monotonic time `until`. Raises
    Unavailable when it is still impossible."""
    while bench.speculates and (figures := estimate([m.timing for m in bench.done])) and _is_doubtful(figures):
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
                _count_question(bench, f"noisy, repeating ({bench.passes} of {PASSES})")
            check_stop(bench.reporter)
            if monotonic() > until:
                break


def _is_doubtful(figures: AcceptanceEstimate) -> bool:
    return figures.noise > MAX_TIMING_NOISE or figures.impossible


def token_ids_of_steps(steps: Sequence[Step]) -> list[int]:
    """Token ids of a generation."""
    return [token.id for step in steps for token in step.tokens]

"""Acceptance and speed of a draft on questions, compared with plain decoding by the same engine; greedy or sampled.

Both run alternately, step by step, with separate KV caches, so that a slowdown of the machine affects both. `speedup`
is computed from medians of step times and τ, with an interval (`evaluation.estimate`); tokens per second are all tokens
over the whole time, prefill included, and `end_to_end_speedup` is their ratio. Prompts are repeated while timing noise
leaves the speedup uncertain. Above temperature 0 both sample with different random numbers: their answers have the same
distribution but differ.
"""

import math
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
from evaluation.breakdown import PromptMetrics, breakdown, worst_first
from evaluation.estimate import AcceptanceEstimate, StepTiming, estimate
from evaluation.machine import cpu_load_result, describe_machine
from evaluation.questions import turns
from evaluation.ties import TIE, first_difference, gap_at
from models.base import LoadedBase
from models.chat import render
from speculoos.cpu_load import OtherCpuLoad
from speculoos.errors import BadInput, Unavailable
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

    def config(self, max_tokens: int, seed: int, **other_options: Any) -> GenerateConfig:
        return GenerateConfig(max_tokens, self.temperature, top_p=self.top_p, seed=seed % 2**63, **other_options)


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
class _AcceptanceRun:
    """State shared by all prompts of an evaluation."""

    target: Target
    plain: Target
    """The same base with a separate KV cache."""
    draft: Any
    options: dict[str, Any]
    max_tokens: int
    reporter: Reporter
    results: list[PromptResult] = field(default_factory=list)
    passes: int = 1
    max_passes: int = PASSES
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
    passes: int = PASSES,
    max_minutes: float | None = None,
) -> dict[str, Any]:
    """Measure `draft` (or the drafter named in `options`, or none) on rows with `messages`. Returns a JSON-able dict:

    `mean_accepted_length` (τ), `speedup`, each with `…_interval` ([low, high] at 95 %), `timing_noise` (the relative
    standard error of the speedup due to timing), `other_load` and `busy` (`evaluation.machine`), `cut` (a
    sentence if the time limit left questions out, else ""), `passes`,
    `plain_step_ms`, `drafted_step_ms`, `acceptance_by_depth`, `identical_to_plain` (token for token, except for ties;
    None with sampling), `ties` (prompts whose first difference is between two tokens with plain logits within 1e-3),
    `tokens_per_second`, `plain_tokens_per_second`, `end_to_end_speedup`, `per_category`, `prompts`, `differences`, the
    conditions of the measurement, and, with a draft, `evaluation.breakdown` and `per_prompt`, lowest τ first. Later
    turns of a question follow plain decoding's answers, so both runs have the same prompts. `passes`: maximum passes
    over the questions; one is enough for everything but times. `max_minutes`: no question is begun after this time, but
    one is always measured.
    Raises Cancelled between prompts when the reporter requests a stop, Unavailable when the results are impossible
    because the machine was busy.
    """
    if not questions:
        raise BadInput("There is no question to evaluate on.")
    target, plain = fast_target(base, MAX_LENGTH), fast_target(base, MAX_LENGTH)
    sampling = sampling or AcceptanceSampling()
    run = _AcceptanceRun(target, plain, draft, dict(options or {}), max_tokens, reporter, sampling=sampling)
    run.max_passes = passes if run.speculates else 1
    run.total = len(questions) * run.max_passes
    _warm_up(run)
    began, load = monotonic(), OtherCpuLoad()
    deadline, cut = began + 60 * (max_minutes or math.inf), ""
    for row in questions:
        if run.results and monotonic() > deadline:
            cut = f"The time limit was reached after {run.completed} of {len(questions)} questions."
            reporter.log(cut)
            break
        before = len(run.results)
        _question(run, row)
        _report_result(run, run.results[before:])
        _count_question(run, _first_pass_note(run))
        check_stop(reporter)
    if not run.results:
        raise BadInput("Every question is too long for this base; use shorter ones.")
    if passes > 1:  # else the times decide nothing
        _repeat(run, until=min(deadline, began + passes * (monotonic() - began)))
    reporter.progress(run.completed, run.completed, "questions")
    metrics = acceptance_result(run.results)
    metrics["cut"] = cut
    metrics |= cpu_load_result(load, reporter, metrics.get("timing_noise") or 0.0)
    if not run.sampling.greedy:
        metrics |= {"identical_to_plain": None, "ties": 0, "differences": []}
    return metrics | _conditions(run) | (_breakdown(run) if run.speculates else {})


def _breakdown(run: _AcceptanceRun) -> dict[str, Any]:
    answers = [result.speculative for result in run.results]
    prompts = (
        PromptMetrics.of({"id": m.id, "turn": m.turn, "category": m.category}, m.speculative, m.messages)
        for m in run.results
    )
    return {**breakdown(answers, token_text_reader(run.target.base.tokenizer)), "per_prompt": worst_first(prompts)}


def acceptance_result(results: Sequence[PromptResult]) -> dict[str, Any]:
    """The metrics of `evaluate` from the results of its prompts."""
    differing = [m for m in results if m.first_difference is not None]
    categories = sorted({m.category for m in results if m.category})
    return {
        **_metrics(results),
        "identical_to_plain": all(m.tie for m in differing),
        "ties": sum(m.tie for m in differing),
        "per_category": {name: _metrics([m for m in results if m.category == name]) for name in categories},
        "differences": [{"id": m.id, "at": m.first_difference, "gap": m.gap} for m in differing],
    }


def _metrics(results: Sequence[PromptResult]) -> dict[str, Any]:
    metrics = _totals(results)
    headline = {"mean_accepted_length": metrics["mean_accepted_length"], "speedup": metrics["end_to_end_speedup"]}
    depths = [round(rate, 4) for rate in _summary(results).acceptance_by_depth]
    return {**headline, **_estimated(results), **metrics, "acceptance_by_depth": depths}


def _totals(results: Sequence[PromptResult]) -> dict[str, Any]:
    """Totals over all prompts, and τ, without intervals."""
    drafted, plain = _summary(results), summarize(s for m in results for s in m.plain)
    speed, plain_speed = drafted.tokens_per_second, plain.tokens_per_second
    return {
        "mean_accepted_length": round(drafted.mean_accepted_length, 4),
        "tokens_per_second": round(speed, 3),
        "plain_tokens_per_second": round(plain_speed, 3),
        "end_to_end_speedup": round(speed / plain_speed, 3) if plain_speed else 0.0,
        "prompts": len(results),
        "tokens": drafted.tokens,
    }


def _estimated(results: Sequence[PromptResult]) -> dict[str, Any]:
    """The metrics with intervals; None intervals when no answer has a complete step."""
    if all(m.speculative is m.plain for m in results):
        return {"speedup": 1.0, "speedup_interval": [1.0, 1.0], "mean_accepted_length_interval": [1.0, 1.0]}
    estimated = estimate([m.timing for m in results])
    if estimated is None:
        return {"speedup_interval": None, "mean_accepted_length_interval": None}
    return {
        "speedup": round(estimated.speedup, 3),
        "speedup_interval": [round(value, 3) for value in estimated.speedup_interval],
        "mean_accepted_length_interval": [round(value, 4) for value in estimated.tau_interval],
        "timing_noise": round(estimated.noise, 4),
        "plain_step_ms": round(estimated.plain_ms, 3),
        "drafted_step_ms": round(estimated.drafted_ms, 3),
    }


def _summary(results: Sequence[PromptResult]) -> Summary:
    return summarize(s for m in results for s in m.speculative)


def _conditions(run: _AcceptanceRun) -> dict[str, Any]:
    base = run.target.base
    return {
        "skipped": run.skipped,
        "drafter": run.options.get("drafter") or getattr(run.draft, "method", "none"),
        "max_tokens": run.max_tokens,
        **asdict(run.sampling),
        "dtype": str(base.dtype).removeprefix("torch."),
        "engine": run.target.forward.name,
        "notice": run.target.notice,
        "passes": run.passes,
        "machine": describe_machine(base.device),
    }


def _warm_up(run: _AcceptanceRun) -> None:
    """Run both once without measuring: buffers are allocated and libraries select their kernels."""
    prompt = render(run.target.base.tokenizer, [{"role": "user", "content": "Say hello to everybody here."}])
    _generate_both(run, prompt, WARM_UP_TOKENS, 0)


def _question(run: _AcceptanceRun, row: dict[str, Any]) -> None:
    """Measure all turns of one question; only the first one if the base has no chat template."""
    tokenizer = run.target.base.tokenizer
    system, users = turns(row)
    messages: list[dict[str, str]] = []
    for turn, user in enumerate(users if tokenizer.chat_template else users[:1]):
        messages.append({"role": "user", "content": user})
        prompt = render(tokenizer, messages, system)
        if len(prompt) >= run.target.max_length:
            run.skipped.append(str(row.get("id", "")))
            run.reporter.log(f"{row.get('id')}: {len(prompt)} prompt tokens are too many; left out.", "warning")
            return
        result = _prompt(run, row, prompt, row_seed(run.sampling.seed, str(row.get("id", "")), turn))
        result.turn = turn
        result.messages = [*([{"role": "system", "content": system}] if system else []), *map(dict, messages)]
        run.results.append(result)
        answer = tokenizer.decode(token_ids_of_steps(result.plain), skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer})
        check_stop(run.reporter)


def _report_result(run: _AcceptanceRun, turns_done: Sequence[PromptResult]) -> None:
    if turns_done:
        first = turns_done[0]
        sample = {"question": first.id, "category": first.category, **_totals(turns_done)}
        run.reporter.sample(run.completed + 1, sample)


def _first_pass_note(run: _AcceptanceRun) -> str:
    tau = f"τ {_summary(run.results).mean_accepted_length:.2f}" if run.results else ""
    return ", ".join(filter(None, (tau, f"pass 1 of at most {run.max_passes}" if run.max_passes > 1 else "")))


def _count_question(run: _AcceptanceRun, note: str) -> None:
    run.completed += 1
    run.reporter.progress(run.completed, run.total, "questions", note)


def _prompt(run: _AcceptanceRun, row: dict[str, Any], prompt: list[int], seed: int) -> PromptResult:
    plain, speculative = _generate_both(run, prompt, run.max_tokens, seed)
    result = PromptResult(str(row.get("id", "")), row.get("category", ""), plain, speculative, prompt, seed)
    if not run.sampling.greedy:
        return result
    result.first_difference = first_difference(token_ids_of_steps(plain), token_ids_of_steps(result.speculative))
    if result.first_difference is not None:
        result.gap = gap_at(run.target, prompt, token_ids_of_steps(plain), token_ids_of_steps(result.speculative))
    return result


def _generate_both(run: _AcceptanceRun, prompt: list[int], max_tokens: int, seed: int) -> tuple[list[Step], list[Step]]:
    """(plain steps, drafted steps), each from an empty cache; the same list twice without a draft."""
    config = run.sampling.config(max_tokens, seed, should_stop=run.reporter.stop_requested)
    plain = _generation(run.plain, make_drafter(run.plain), prompt, config)
    if not run.speculates:
        return (steps := list(plain)), steps
    drafter = make_drafter(run.target, run.draft, run.options)
    drafted = _generation(run.target, drafter, prompt, config)
    return side_by_side(plain, drafted)


def side_by_side(first: Iterator[Step], second: Iterator[Step]) -> tuple[list[Step], list[Step]]:
    """All steps of two generations of one prompt, run alternately. The one with fewer tokens takes the next step, so
    that both texts have similar length."""
    steps: tuple[list[Step], list[Step]] = ([], [])
    sources, tokens, active = (first, second), [0, 0], [0, 1]
    last = 1
    while active:
        turn = min(active, key=lambda i: (tokens[i], i == last))
        last = turn
        if (step := next(sources[turn], None)) is None:
            active.remove(turn)
            continue
        steps[turn].append(step)
        tokens[turn] += len(step.tokens)
    return steps


def _generation(target: Target, drafter: Drafter, prompt: list[int], config: GenerateConfig) -> Iterator[Step]:
    target.rewind(0)
    return generate(target, drafter, prompt, config)


def _repeat(run: _AcceptanceRun, until: float) -> None:
    """Repeat the prompts while the speedup is uncertain or impossible, until the monotonic time `until`. Raises
    Unavailable when it is still impossible."""
    while run.speculates and (current := estimate([m.timing for m in run.results])) and _is_doubtful(current):
        if run.passes >= run.max_passes or monotonic() > until:
            if current.impossible:
                raise Unavailable(
                    f"The machine was busy: drafting seemed {current.speedup:.2f} × as fast as plain, but its accepted "
                    f"tokens allow {current.bound:.2f} × at most.",
                    "Measure again when less else is running.",
                )
            return
        run.passes += 1
        run.reporter.log(f"Step times vary by {current.noise:.1%}: the questions run again ({run.passes}).")
        for result, following in zip_longest(run.results, run.results[1:]):
            plain, speculative = _generate_both(run, result.prompt, run.max_tokens, result.seed)
            result.timing = result.timing.concatenated(StepTiming.of(speculative, plain))
            if following is None or following.turn == 0:
                _count_question(run, f"noisy, repeating ({run.passes} of {run.max_passes})")
            check_stop(run.reporter)
            if monotonic() > until:
                break


def _is_doubtful(estimated: AcceptanceEstimate) -> bool:
    return estimated.noise > MAX_TIMING_NOISE or estimated.impossible


def token_ids_of_steps(steps: Sequence[Step]) -> list[int]:
    """Token ids of a generation."""
    return [token.id for step in steps for token in step.tokens]

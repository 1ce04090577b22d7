"""Speedups from disturbed step times: intervals hold the truth, impossible figures are detected, steps alternate."""

from collections.abc import Iterator

import numpy as np
import pytest

from decoding.step import EmittedToken, Step
from evaluation import acceptance
from evaluation.acceptance import PromptResult, _AcceptanceRun, _repeat, side_by_side
from evaluation.estimate import StepTiming, estimate
from speculoos.errors import Unavailable
from speculoos.reporting import SilentReporter

PLAIN_MS, DRAFTED_MS = 10.0, 15.0


def timings(
    seed: int, prompts: int = 12, steps: int = 60, busy: float = 0.0, tau: float = 2.0, drafted_ms: float = DRAFTED_MS
) -> list[StepTiming]:
    """Prompts of mean accepted length `tau`; a fraction `busy` of all steps takes three times as long."""
    draw = np.random.default_rng(seed)

    def times(ms: float, count: int) -> np.ndarray:
        return ms * draw.normal(1, 0.01, count) * np.where(draw.random(count) < busy, 3, 1)

    prompts_timings = []
    for _ in range(prompts):
        tokens = 1 + draw.binomial(2, (tau - 1) / 2, steps).astype(float)
        prompts_timings.append(StepTiming(tokens, times(drafted_ms, steps), times(PLAIN_MS, int(tokens.sum()))))
    return prompts_timings


def test_a_third_of_the_steps_disturbed_moves_the_speedup_by_little_and_totals_by_much() -> None:
    quiet, busy = estimate(timings(1)), estimate(timings(1, busy=0.3))
    assert quiet.speedup == pytest.approx(quiet.tau * PLAIN_MS / DRAFTED_MS, rel=0.01)
    assert busy.speedup == pytest.approx(quiet.speedup, rel=0.02)
    assert (quiet.plain_ms, quiet.drafted_ms) == pytest.approx((PLAIN_MS, DRAFTED_MS), rel=0.01)


def test_the_intervals_hold_the_truth_nineteen_times_in_twenty() -> None:
    """200 evaluations of other prompts; the truth is τ = 2 and 2 · 10 / 15. A binomial count of 190 ± 3 σ."""
    estimates = [estimate(timings(seed, busy=0.2)) for seed in range(200)]
    truth = 2 * PLAIN_MS / DRAFTED_MS
    holds = sum(e.speedup_interval[0] <= truth <= e.speedup_interval[1] for e in estimates)
    holds_tau = sum(e.tau_interval[0] <= 2 <= e.tau_interval[1] for e in estimates)
    assert holds >= 178 and holds_tau >= 178
    assert np.mean([e.speedup_interval[1] - e.speedup_interval[0] for e in estimates]) < 0.1 * truth


def test_noise_of_the_clock_falls_with_repeats_and_is_little_on_a_quiet_machine() -> None:
    first, second = timings(3, prompts=3, steps=8, busy=0.4), timings(4, prompts=3, steps=8, busy=0.4)
    joined = [a.concatenated(b) for a, b in zip(first, second, strict=True)]
    assert estimate(joined).noise < estimate(first).noise
    assert estimate(timings(3)).noise < 0.005


def test_more_than_the_accepted_tokens_allow_is_impossible() -> None:
    assert estimate(timings(5, tau=1.45, drafted_ms=PLAIN_MS / 2)).impossible
    assert not estimate(timings(5, tau=1.45, drafted_ms=PLAIN_MS)).impossible


def test_an_impossible_figure_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured again up to the limit; then the job ends with an error, and nothing is stored."""
    prompts = []

    def generate_both(_run: object, prompt: list[int], _tokens: int, _seed: int = 0) -> tuple[list[Step], list[Step]]:
        prompts.append(prompt)
        return steps("plain", 10.0), steps("verify", 4.0)

    monkeypatch.setattr(acceptance, "_generate_both", generate_both)
    results = [PromptResult("a", "", *generate_both(None, [1], 8), [1])]
    run = _AcceptanceRun(None, None, object(), {}, 8, SilentReporter(), results)
    prompts.clear()
    with pytest.raises(Unavailable, match=r"The machine was busy: drafting seemed 2\.50 × .* allow 1\.00 × at most"):
        _repeat(run, until=float("inf"))
    assert prompts == [[1]] * (acceptance.PASSES - 1)


def steps(kind: str, ms: float) -> list[Step]:
    return [Step(i, kind, (EmittedToken(i, "plain"),), ms_verify=ms) for i in range(20)]


def test_the_run_with_fewer_tokens_goes_next() -> None:
    order = []

    def run(name: str, sizes: list[int]) -> Iterator[Step]:
        for size in sizes:
            order.append(name)
            yield Step(0, "plain", tuple(EmittedToken(0, "plain") for _ in range(size)))

    first, second = side_by_side(run("plain", [1] * 5), run("drafted", [1, 3, 1]))
    assert (len(first), len(second)) == (5, 3)
    assert "".join(name[0] for name in order) == "pdpdppdp"


def test_long_prompts_whose_steps_are_slow_and_well_drafted_are_possible() -> None:
    short = StepTiming(np.full(128, 1.0), np.full(128, 1.0), np.full(128, 1.0))
    long = StepTiming(np.full(32, 4.0), np.full(32, 4.0), np.full(128, 4.0))
    result = estimate([short, long] * 40)
    assert result is not None and result.speedup_interval[0] > result.tau_interval[1] and not result.impossible


def test_repeated_answers_do_not_change_the_interval_of_tau() -> None:
    timing = StepTiming(np.arange(30.0) % 5 + 1, np.ones(30), np.ones(90))
    single, repeated = estimate([timing]), estimate([timing.concatenated(timing).concatenated(timing)])
    assert single is not None and repeated is not None and repeated.tau_interval == single.tau_interval

"""Speedups out of disturbed step times: the interval holds the truth, what cannot be is seen, and steps take turns."""

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
    """Prompts of mean accepted length `tau`; of all steps a share `busy` takes thrice as long."""
    draw = np.random.default_rng(seed)

    def times(ms: float, count: int) -> np.ndarray:
        return ms * draw.normal(1, 0.01, count) * np.where(draw.random(count) < busy, 3, 1)

    made = []
    for _ in range(prompts):
        tokens = 1 + draw.binomial(2, (tau - 1) / 2, steps).astype(float)
        made.append(StepTiming(tokens, times(drafted_ms, steps), times(PLAIN_MS, int(tokens.sum()))))
    return made


def test_a_third_of_the_steps_disturbed_moves_the_speedup_by_little_and_totals_by_much() -> None:
    quiet, busy = estimate(timings(1)), estimate(timings(1, busy=0.3))
    assert quiet.speedup == pytest.approx(quiet.tau * PLAIN_MS / DRAFTED_MS, rel=0.01)
    assert busy.speedup == pytest.approx(quiet.speedup, rel=0.02)
    assert (quiet.plain_ms, quiet.drafted_ms) == pytest.approx((PLAIN_MS, DRAFTED_MS), rel=0.01)


def test_the_intervals_hold_the_truth_nineteen_times_in_twenty() -> None:
    """200 evaluations of other prompts; the truth is τ = 2 and 2 · 10 / 15. A binomial count of 190 ± 3 σ."""
    found = [estimate(timings(seed, busy=0.2)) for seed in range(200)]
    truth = 2 * PLAIN_MS / DRAFTED_MS
    holds = sum(e.speedup_interval[0] <= truth <= e.speedup_interval[1] for e in found)
    holds_tau = sum(e.tau_interval[0] <= 2 <= e.tau_interval[1] for e in found)
    assert holds >= 178 and holds_tau >= 178
    assert np.mean([e.speedup_interval[1] - e.speedup_interval[0] for e in found]) < 0.1 * truth


def test_noise_of_the_clock_falls_with_repeats_and_is_little_on_a_quiet_machine() -> None:
    first, second = timings(3, prompts=3, steps=8, busy=0.4), timings(4, prompts=3, steps=8, busy=0.4)
    joined = [a.concatenated(b) for a, b in zip(first, second, strict=True)]
    assert estimate(joined).noise < estimate(first).noise
    assert estimate(timings(3)).noise < 0.005


def test_more_than_the_accepted_tokens_allow_is_impossible() -> None:
    assert estimate(timings(5, tau=1.45, drafted_ms=PLAIN_MS / 2)).impossible
    assert not estimate(timings(5, tau=1.45, drafted_ms=PLAIN_MS)).impossible


def test_an_impossible_figure_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured again as often as may be; then the job ends with a sentence, and nothing is stored."""
    asked = []

    def busy(_run: object, prompt: list[int], _tokens: int, _seed: int = 0) -> tuple[list[Step], list[Step]]:
        asked.append(prompt)
        return steps("plain", 10.0), steps("verify", 4.0)

    monkeypatch.setattr(acceptance, "_generate_both", busy)
    results = [PromptResult("a", "", *busy(None, [1], 8), [1])]
    run = _AcceptanceRun(None, None, object(), {}, 8, SilentReporter(), results)
    asked.clear()
    with pytest.raises(Unavailable, match=r"The machine was busy: drafting seemed 2\.50 × .* allow 1\.00 × at most"):
        _repeat(run, until=float("inf"))
    assert asked == [[1]] * (acceptance.PASSES - 1)


def steps(kind: str, ms: float) -> list[Step]:
    return [Step(i, kind, (EmittedToken(i, "plain"),), ms_verify=ms) for i in range(20)]


def test_whoever_has_fewer_tokens_goes_on() -> None:
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
    found = estimate([short, long] * 40)
    assert found is not None and found.speedup_interval[0] > found.tau_interval[1] and not found.impossible


def test_the_same_answer_again_says_nothing_new_of_tau() -> None:
    once = StepTiming(np.arange(30.0) % 5 + 1, np.ones(30), np.ones(90))
    found, again = estimate([once]), estimate([once.concatenated(once).concatenated(once)])
    assert found is not None and again is not None and again.tau_interval == found.tau_interval

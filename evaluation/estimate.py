"""Robust estimates of speedup and τ with intervals, from step times of a possibly busy machine.

    speedup = Σ tokens · plain step / Σ verifications · drafted step

summed over prompts, where each step time is the median of its prompt. For a single prompt this is τ · plain / drafted
(Leviathan et al. 2023, section 3.3, with c measured). A median is robust while less than half of the steps are
disturbed, and the plain and drafted steps of a prompt alternate. Prefill is excluded.

Intervals are percentiles of a bootstrap in two stages (Davison & Hinkley 1997, section 3.8): prompts, then the steps of
each, with replacement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoding.step import Step

DRAWS = 1000
INTERVAL_PERCENTILES = (2.5, 97.5)
"""Percentiles of a 95 % interval."""
SEED = 0
Interval = tuple[float, float]


@dataclass(frozen=True)
class StepTiming:
    """Steps of one prompt: tokens and milliseconds of each counted verification, and milliseconds of plain steps. All
    float64 [steps]."""

    tokens: np.ndarray
    drafted: np.ndarray
    plain: np.ndarray

    @classmethod
    def of(cls, drafted: Sequence[Step], plain: Sequence[Step]) -> "StepTiming":
        counted = [step for step in drafted if step.counted]
        return cls(
            np.array([len(step.tokens) for step in counted], dtype=float),
            np.array([milliseconds(step) for step in counted]),
            np.array([milliseconds(step) for step in plain if step.counted]),
        )

    def concatenated(self, other: "StepTiming") -> "StepTiming":
        """The steps of two measurements of the same prompt."""
        return StepTiming(
            self.tokens,  # the same tokens in every pass
            np.concatenate([self.drafted, other.drafted]),
            np.concatenate([self.plain, other.plain]),
        )

    @property
    def usable(self) -> bool:
        return bool(len(self.tokens) and len(self.plain))


@dataclass(frozen=True)
class AcceptanceEstimate:
    """Estimates with their 95 % intervals; `noise` is the relative standard error of the speedup due to timing. Step
    times are medians over all steps, in milliseconds."""

    speedup: float
    speedup_interval: Interval
    tau: float
    tau_interval: Interval
    bound: float
    """Upper end of the interval of the speedup if a verification cost the same as a plain step."""
    noise: float
    plain_ms: float
    drafted_ms: float

    @property
    def impossible(self) -> bool:
        """Whether the speedup exceeds `bound`. A verification is never cheaper than a plain step, so the measurement
        was disturbed by other load."""
        return self.speedup_interval[0] > self.bound


def milliseconds(step: Step) -> float:
    """Total time of a step."""
    return step.ms_draft + step.ms_verify + step.ms_other


def estimate(timings: Sequence[StepTiming]) -> AcceptanceEstimate | None:
    """The estimates over several prompts; None when no prompt has a complete step."""
    timings = [timing for timing in timings if timing.usable]
    if not timings:
        return None
    rng = np.random.default_rng(SEED)
    measured, bootstrapped = _PromptStatistics.of(timings), _PromptStatistics.bootstrapped(timings, rng)
    weights = rng.multinomial(len(timings), np.full(len(timings), 1 / len(timings)), DRAWS).T
    timing_only = replace(bootstrapped, tokens=measured.tokens).speedup()
    speedup = float(measured.speedup()[0])
    return AcceptanceEstimate(
        speedup=speedup,
        speedup_interval=interval_of(bootstrapped.speedup(weights)),
        tau=float(measured.tau()[0]),
        tau_interval=interval_of(bootstrapped.tau(weights)),
        bound=interval_of(replace(bootstrapped, drafted=bootstrapped.plain).speedup(weights))[1],
        noise=float(timing_only.std() / speedup),
        plain_ms=float(np.median(np.concatenate([timing.plain for timing in timings]))),
        drafted_ms=float(np.median(np.concatenate([timing.drafted for timing in timings]))),
    )


@dataclass(frozen=True)
class _PromptStatistics:
    """Per prompt, [prompts, draws]: tokens, and medians of plain and drafted step times; `counts` [prompts, 1]:
    verifications."""

    tokens: np.ndarray
    plain: np.ndarray
    drafted: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, timings: Sequence[StepTiming]) -> "_PromptStatistics":
        """The measured values, as a single draw."""
        rows = [(t.tokens.sum(), np.median(t.plain), np.median(t.drafted), len(t.tokens)) for t in timings]
        return cls(*(column[:, None] for column in np.array(rows).T))

    @classmethod
    def bootstrapped(cls, timings: Sequence[StepTiming], rng: np.random.Generator) -> "_PromptStatistics":
        """Bootstrap draws: each prompt's steps resampled with replacement."""
        tokens, plain, drafted = [], [], []
        for timing in timings:
            steps = rng.integers(len(timing.tokens), size=(DRAWS, len(timing.tokens)))
            tokens.append(timing.tokens[steps].sum(1))
            drafted.append(_resampled_medians(timing.drafted, rng))
            plain.append(_resampled_medians(timing.plain, rng))
        counts = np.array([[len(timing.tokens)] for timing in timings], dtype=float)
        return cls(np.stack(tokens), np.stack(plain), np.stack(drafted), counts)

    def speedup(self, weights: np.ndarray | float = 1.0) -> np.ndarray:
        """[draws], with each prompt weighted by `weights` [prompts, draws]."""
        return (weights * self.tokens * self.plain).sum(0) / (weights * self.counts * self.drafted).sum(0)

    def tau(self, weights: np.ndarray | float = 1.0) -> np.ndarray:
        """[draws], weighted like `speedup`."""
        return (weights * self.tokens).sum(0) / (weights * self.counts + 0 * self.tokens).sum(0)


def _resampled_medians(times: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[draws]: medians of samples with replacement. The middle positions in the sorted times are drawn directly, as
    order statistics of uniform numbers (David & Nagaraja 2003, sections 2.1 and 2.5)."""
    ordered, count = np.sort(times), len(times)
    middle = (count + 1) // 2
    low = high = rng.beta(middle, count + 1 - middle, DRAWS)
    if count % 2 == 0:
        high = 1 - (1 - low) * rng.random(DRAWS) ** (1 / (count - middle))
    indices = np.minimum(np.stack([low, high]) * count, count - 1).astype(int)
    return ordered[indices].mean(0)


def interval_of(values: np.ndarray) -> Interval:
    """The 95 % interval of bootstrap draws."""
    low, high = np.percentile(values, INTERVAL_PERCENTILES)
    return float(low), float(high)

"""Speedup and τ with intervals, out of step times that a busy machine has disturbed.

    speedup = Σ tokens · plain step / Σ verifications · drafted step

summed over prompts, each step time the median of its prompt's. With one kind of prompt that is τ · plain / drafted
(Leviathan et al. 2023, section 3.3, with c measured): a median holds while less than half of the steps are disturbed,
and plain and drafted steps of a prompt were taken in turns. Prefill is left out.

Intervals are percentiles of a bootstrap in two stages (Davison & Hinkley 1997, section 3.8): prompts, then the steps of
each, with replacement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoding.step import Step

DRAWS = 1000
LEVEL = (2.5, 97.5)
"""Percentiles of a 95 % interval."""
SEED = 0
Interval = tuple[float, float]


@dataclass(frozen=True)
class StepTiming:
    """One prompt's steps: tokens of each counted verification with its milliseconds, and those of plain steps. All
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

    def joined(self, other: "StepTiming") -> "StepTiming":
        """The steps of both: the same prompt, measured again."""
        return StepTiming(
            self.tokens,  # greedy, or sampled with the same seed: the same tokens again tell nothing new
            np.concatenate([self.drafted, other.drafted]),
            np.concatenate([self.plain, other.plain]),
        )

    @property
    def usable(self) -> bool:
        return bool(len(self.tokens) and len(self.plain))


@dataclass(frozen=True)
class AcceptanceEstimate:
    """Figures with their 95 % intervals; `noise` is the standard error that timing alone gives the speedup, relative
    to it. Step times are medians over all steps, in milliseconds."""

    speedup: float
    speedup_interval: Interval
    tau: float
    tau_interval: Interval
    bound: float
    """Upper end of the interval of the speedup that there were if verifications cost what plain steps cost."""
    noise: float
    plain_ms: float
    drafted_ms: float

    @property
    def impossible(self) -> bool:
        """Whether drafting seems to gain more than it saves steps: no verification is cheaper than a plain step, so the
        speedup cannot exceed `bound`, and the machine was busy with something else."""
        return self.speedup_interval[0] > self.bound


def milliseconds(step: Step) -> float:
    """All of a step's time."""
    return step.ms_draft + step.ms_verify + step.ms_other


def estimate(timings: Sequence[StepTiming]) -> AcceptanceEstimate | None:
    """The figures of several prompts; None when no prompt has a whole step."""
    timings = [timing for timing in timings if timing.usable]
    if not timings:
        return None
    draw = np.random.default_rng(SEED)
    columns, drawn = _Columns.of(timings), _Columns.drawn(timings, draw)
    weights = draw.multinomial(len(timings), np.full(len(timings), 1 / len(timings)), DRAWS).T
    timed = replace(drawn, tokens=columns.tokens).speedup()
    speedup = float(columns.speedup()[0])
    return AcceptanceEstimate(
        speedup=speedup,
        speedup_interval=interval_of(drawn.speedup(weights)),
        tau=float(columns.tau()[0]),
        tau_interval=interval_of(drawn.tau(weights)),
        bound=interval_of(replace(drawn, drafted=drawn.plain).speedup(weights))[1],
        noise=float(timed.std() / speedup),
        plain_ms=float(np.median(np.concatenate([timing.plain for timing in timings]))),
        drafted_ms=float(np.median(np.concatenate([timing.drafted for timing in timings]))),
    )


@dataclass(frozen=True)
class _Columns:
    """What each prompt comes to, [prompts, draws]: tokens, and the medians of its steps' times; `counts` [prompts, 1]
    verifications."""

    tokens: np.ndarray
    plain: np.ndarray
    drafted: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, timings: Sequence[StepTiming]) -> "_Columns":
        """As they were measured; one draw."""
        rows = [(t.tokens.sum(), np.median(t.plain), np.median(t.drafted), len(t.tokens)) for t in timings]
        return cls(*(column[:, None] for column in np.array(rows).T))

    @classmethod
    def drawn(cls, timings: Sequence[StepTiming], draw: np.random.Generator) -> "_Columns":
        """Each prompt's steps drawn anew, with replacement."""
        tokens, plain, drafted = [], [], []
        for timing in timings:
            steps = draw.integers(len(timing.tokens), size=(DRAWS, len(timing.tokens)))
            tokens.append(timing.tokens[steps].sum(1))
            for column, times in ((drafted, timing.drafted), (plain, timing.plain)):
                column.append(np.median(times[draw.integers(len(times), size=(DRAWS, len(times)))], 1))
        counts = np.array([[len(timing.tokens)] for timing in timings], dtype=float)
        return cls(np.stack(tokens), np.stack(plain), np.stack(drafted), counts)

    def speedup(self, weights: np.ndarray | float = 1.0) -> np.ndarray:
        """[draws], with `weights` [prompts, draws] times each prompt."""
        return (weights * self.tokens * self.plain).sum(0) / (weights * self.counts * self.drafted).sum(0)

    def tau(self, weights: np.ndarray | float = 1.0) -> np.ndarray:
        """[draws]."""
        return (weights * self.tokens).sum(0) / (weights * self.counts + 0 * self.tokens).sum(0)


def interval_of(values: np.ndarray) -> Interval:
    """The 95 % interval of bootstrap draws."""
    low, high = np.percentile(values, LEVEL)
    return float(low), float(high)

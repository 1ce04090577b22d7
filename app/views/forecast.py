"""Forecast of the accepted length τ after training on more data: a curve fitted to measured points.

With five or more different amounts of data n: τ = a − b·n^(−c), which saturates as τ does; with three or four:
τ = a + b·ln n. Intervals are 95 % prediction intervals with Student's t, from the residuals (at least the points' own
intervals). For the saturating curve they cover every exponent c that the points do not reject.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST, SATURATING = 3, 5
"""Minimum number of different amounts of data: for any curve, for a saturating curve."""
FARTHEST = 4.0
"""Limit of the forecast, as a multiple of the largest measured amount of data."""
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 97.5 % for 1, 2, … degrees of freedom; the last value is used beyond."""
POWERS = [0.05 * 1.12**step for step in range(37)]  # 0.05 … 3
LEAST_NOISE = 0.01
"""Lower bound of the standard error of τ: few points can fit a curve by chance, and rounded ones can be equal."""
WORST = 1.0
"""Lower bound of τ: every verification yields at least one token."""


@dataclass(frozen=True)
class Point:
    """τ after `tokens` training tokens; `spread` is half the width of its 95 % interval, 0 if unknown."""

    tokens: float
    tau: float
    spread: float = 0.0


@dataclass(frozen=True)
class Line:
    """Least-squares line y = start + slope·x through points with mean x `middle` and Σ(x − middle)² = `width`."""

    start: float
    slope: float
    middle: float
    width: float
    error: float  # sum of squared residuals

    def at(self, x: float) -> float:
        return self.start + self.slope * x

    def doubt(self, x: float, count: int) -> float:
        """Factor on the standard error of one measurement for the prediction error of a new one at x."""
        return math.sqrt(1 + 1 / count + (x - self.middle) ** 2 / self.width)


@dataclass(frozen=True)
class Forecast:
    """Curves that the points do not reject, as (power, line), best fit first; power 0 is ln n."""

    lines: list[tuple[float, Line]]
    noise: float
    freedom: int
    count: int
    most: float

    @property
    def saturating(self) -> bool:
        return self.lines[0][0] > 0

    @property
    def limit(self) -> float | None:
        """Asymptote of the best-fitting curve."""
        return self.lines[0][1].start if self.saturating else None

    def at(self, tokens: float) -> tuple[float, float, float]:
        """(τ, low, high) after `tokens` training tokens."""
        power, line = self.lines[0]
        intervals = [self._interval(power, line, tokens) for power, line in self.lines]
        low, high = min(low for low, _ in intervals), max(high for _, high in intervals)
        return max(WORST, line.at(placed(tokens, power))), max(WORST, low), max(WORST, high)

    def _interval(self, power: float, line: Line, tokens: float) -> tuple[float, float]:
        x = placed(tokens, power)
        half = student(self.freedom) * self.noise * line.doubt(x, self.count)
        return line.at(x) - half, line.at(x) + half


def forecast(points: Sequence[Point]) -> Forecast | None:
    """The forecast; None with fewer than LEAST different amounts of data."""
    amounts = {point.tokens for point in points if point.tokens > 0}
    if len(amounts) < LEAST:
        return None
    valid = [point for point in points if point.tokens > 0]
    saturating = len(amounts) >= SATURATING
    freedom = len(valid) - (3 if saturating else 2)
    lines = [(power, fitted(valid, power)) for power in (POWERS if saturating else [0.0])]
    if saturating:  # reject curves that fall with more data: their asymptote lies below the points
        lines = [(power, line) for power, line in lines if line.slope <= 0] or [(0.0, fitted(valid, 0.0))]
    lines.sort(key=lambda curve: curve[1].error)
    best_error = lines[0][1].error
    variance = sum((point.spread / 1.96) ** 2 for point in valid) / len(valid)
    noise = max(math.sqrt(max(best_error / freedom, variance)), LEAST_NOISE)
    bound = best_error + (student(freedom) * noise) ** 2
    allowed = [curve for curve in lines if curve[1].error <= bound]
    return Forecast(allowed, noise, freedom, len(valid), max(amounts))


def fitted(points: Sequence[Point], power: float) -> Line:
    """Least-squares line through the points over n^(−power), or over ln n for power 0."""
    xs, ys = [placed(point.tokens, power) for point in points], [point.tau for point in points]
    middle, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    width = sum((x - middle) ** 2 for x in xs)
    slope = sum((x - middle) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / width
    start = mean_y - slope * middle
    error = sum((y - start - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return Line(start, slope, middle, width, error)


def placed(tokens: float, power: float) -> float:
    """x of `tokens`: ln n for power 0, otherwise n^(−power) with n in millions for numerical range."""
    return math.log(tokens) if not power else (tokens / 1e6) ** -power


def student(freedom: int) -> float:
    return T95[min(freedom, len(T95)) - 1]

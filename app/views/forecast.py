"""What more data would buy: a curve through measured points, how sure it is, and how far it may be believed.

From five different amounts on τ = a − b·n^(−c), which ends somewhere as τ does; three or four are enough for
τ = a + b·ln n only. Intervals are those of a next measurement at 95 %, from how far the points lie from the curve (at
least as far as their own intervals say), with Student's t for so few of them; of the saturating curve over every c that
the points do not rule out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST, SATURATING = 3, 5
"""Different amounts of data: for any curve, for one that ends somewhere."""
FARTHEST = 4.0
"""Times the most data that was tried; beyond it nothing is said."""
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 97.5 % for 1, 2, … degrees of freedom; with more it is taken as the last."""
POWERS = [0.05 * 1.12**step for step in range(37)]  # 0.05 … 3
LEAST_NOISE = 0.01
"""Standard error of one τ at the least: few points may lie on a curve by chance, and rounded ones may be equal."""
WORST = 1.0
"""No τ is less: a verification always gives one token."""


@dataclass(frozen=True)
class Point:
    """τ after so many tokens; `spread` is half of its 95 % interval, 0 where it has none."""

    tokens: float
    tau: float
    spread: float = 0.0


@dataclass(frozen=True)
class Line:
    """y = start + slope·x by least squares, of points with mean `middle` and Σ(x − middle)² = `width`."""

    start: float
    slope: float
    middle: float
    width: float
    error: float  # Σ of squared distances

    def at(self, x: float) -> float:
        return self.start + self.slope * x

    def doubt(self, x: float, count: int) -> float:
        """By what the standard error of one measurement is multiplied, of a next one at x."""
        return math.sqrt(1 + 1 / count + (x - self.middle) ** 2 / self.width)


@dataclass(frozen=True)
class Forecast:
    """Curves that the points allow, as (power, line), the likeliest first; power 0 is ln n."""

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
        """Where the likeliest curve ends."""
        return self.lines[0][1].start if self.saturating else None

    def at(self, tokens: float) -> tuple[float, float, float]:
        """(τ, low, high) after so many tokens."""
        power, line = self.lines[0]
        ends = [self._ends(power, line, tokens) for power, line in self.lines]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        return max(WORST, line.at(placed(tokens, power))), max(WORST, low), max(WORST, high)

    def _ends(self, power: float, line: Line, tokens: float) -> tuple[float, float]:
        x = placed(tokens, power)
        far = student(self.freedom) * self.noise * line.doubt(x, self.count)
        return line.at(x) - far, line.at(x) + far


def forecast(points: Sequence[Point]) -> Forecast | None:
    """The forecast, or None while fewer than LEAST different amounts of data were tried."""
    amounts = {point.tokens for point in points if point.tokens > 0}
    if len(amounts) < LEAST:
        return None
    used = [point for point in points if point.tokens > 0]
    saturating = len(amounts) >= SATURATING
    freedom = len(used) - (3 if saturating else 2)
    lines = [(power, fitted(used, power)) for power in (POWERS if saturating else [0.0])]
    if saturating:  # more data is not taken to make τ worse for ever: such a curve would end below its points
        lines = [(power, line) for power, line in lines if line.slope <= 0] or [(0.0, fitted(used, 0.0))]
    lines.sort(key=lambda each: each[1].error)
    least = lines[0][1].error
    spreads = sum((point.spread / 1.96) ** 2 for point in used) / len(used)
    noise = max(math.sqrt(max(least / freedom, spreads)), LEAST_NOISE)
    bound = least + (student(freedom) * noise) ** 2
    allowed = [each for each in lines if each[1].error <= bound]
    return Forecast(allowed, noise, freedom, len(used), max(amounts))


def fitted(points: Sequence[Point], power: float) -> Line:
    """The line through the points over n^(−power), or over ln n."""
    xs, ys = [placed(point.tokens, power) for point in points], [point.tau for point in points]
    middle, height = sum(xs) / len(xs), sum(ys) / len(ys)
    width = sum((x - middle) ** 2 for x in xs)
    slope = sum((x - middle) * (y - height) for x, y in zip(xs, ys, strict=True)) / width
    start = height - slope * middle
    error = sum((y - start - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return Line(start, slope, middle, width, error)


def placed(tokens: float, power: float) -> float:
    """Where so many tokens lie: ln n, or n^(−power) in millions, so that numbers stay of a size."""
    return math.log(tokens) if not power else (tokens / 1e6) ** -power


def student(freedom: int) -> float:
    return T95[min(freedom, len(T95)) - 1]

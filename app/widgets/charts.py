"""Line charts as small SVG pictures: numbers in, escaped markup out. Colours and dashes are classes of the style sheet.

Every series differs by dash as well as by hue, and is named at its end, so that nobody needs colours to read it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.widgets.text import safe, tag

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 28
MOST_POINTS = 160
STYLES = 6  # classes sp-line-0 … sp-line-5

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """Where a number lies between `low` and `high`, in pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def line_chart(title: str, series: Mapping[str, Points], percent: bool = False, unit: str = "") -> str:
    """A chart of `series` (name → (step, value) in step order). `percent` fixes the range to 0 … 100 %."""
    shown = {name: _downsample(finite) for name, points in series.items() if (finite := _finite(points))}
    if not shown:
        return ""
    x, y = _scales(shown, percent)
    lines = "".join(_line(i, points, x, y) for i, points in enumerate(shown.values()))
    picture = tag(
        "svg",
        _grid(x, y, percent) + lines,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=_words(title, shown, percent, unit),
    )
    return tag("figure", tag("figcaption", safe(title)) + picture + _legend(shown, percent, unit), class_="sp-chart")


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(y)]


def _downsample(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MOST_POINTS of them, the last one always kept."""
    stride = math.ceil(len(points) / MOST_POINTS)
    sample = points[::stride]
    return sample if sample[-1] == points[-1] else [*sample, points[-1]]


def _scales(series: Mapping[str, Points], percent: bool) -> tuple[Scale, Scale]:
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    low, high = (0.0, 1.0) if percent else _range(min(ys), max(ys))
    first, last = (xs[0] - 1, xs[0] + 1) if min(xs) == max(xs) else (min(xs), max(xs))
    return Scale(first, last, LEFT, WIDTH - RIGHT), Scale(low, high, HEIGHT - BOTTOM, TOP)


def _range(low: float, high: float) -> tuple[float, float]:
    """A range with air, starting at zero when the numbers come near it."""
    if low == high:
        return (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    air = (high - low) * 0.06
    return (0.0 if 0 <= low <= (high - low) * 0.5 else low - air), high + air


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers between `low` and `high`, about `count` of them (steps of 1, 2 or 5 × 10ⁿ)."""
    step = 10 ** math.floor(math.log10((high - low) / count or 1))
    step *= next((m for m in (1, 2, 5) if (high - low) / (step * m) <= count), 10)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _grid(x: Scale, y: Scale, percent: bool) -> str:
    rows = "".join(_row(value, y, percent) for value in ticks(y.low, y.high))
    steps = [v for v in ticks(x.low, x.high, 5) if v == int(v) and v >= 0]
    return rows + "".join(_step(value, x) for value in steps)


def _row(value: float, y: Scale, percent: bool) -> str:
    at = f"{y(value):.1f}"
    rule = tag("line", class_="sp-grid", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at)
    return rule + tag("text", _number(value, percent), x=LEFT - 6, y=at, text_anchor="end", dominant_baseline="middle")


def _step(value: float, x: Scale) -> str:
    return tag("text", f"{value:,.0f}", x=f"{x(value):.1f}", y=HEIGHT - 8, text_anchor="middle")


def _line(index: int, points: Points, x: Scale, y: Scale) -> str:
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    end = points[-1]
    style = f"sp-line-{index % STYLES}"
    dot = tag("circle", class_=style, cx=f"{x(end[0]):.1f}", cy=f"{y(end[1]):.1f}", r=3)
    return tag("polyline", class_=style, points=path) + dot


def _legend(series: Mapping[str, Points], percent: bool, unit: str) -> str:
    return tag("ul", "".join(_key(i, n, p[-1][1], percent, unit) for i, (n, p) in enumerate(series.items())))


def _key(index: int, name: str, last: float, percent: bool, unit: str) -> str:
    sample = tag("line", class_=f"sp-line-{index % STYLES}", x1=0, x2=22, y1=5, y2=5)
    swatch = tag("svg", sample, viewBox="0 0 22 10", width=22, height=10, aria_hidden="true")
    value = tag("b", _number(last, percent) + (f" {safe(unit)}" if unit else ""))
    return tag("li", swatch + tag("span", safe(name)) + value)


def _words(title: str, series: Mapping[str, Points], percent: bool, unit: str) -> str:
    """What the picture says, for people who do not see it."""
    ends = ", ".join(f"{name} {_number(points[-1][1], percent)} {unit}".strip() for name, points in series.items())
    return f"{title}: {ends} at step {max(p[-1][0] for p in series.values()):.0f}"


def _number(value: float, percent: bool) -> str:
    if percent:
        return f"{value:.0%}"
    if value and (abs(value) < 0.001 or abs(value) >= 100_000):
        return f"{value:.1e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"

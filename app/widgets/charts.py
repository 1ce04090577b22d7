"""Line charts as SVG. Colors and dashes are classes of the style sheet.

Every series has its own dash pattern and is named in the legend, so the chart is readable without colors. The numbers
are attached as JSON: static/charts.js shows the values under the pointer and exports the chart and its numbers.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.i18n import t
from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 24, 40
MOST_POINTS = 160
STYLES = 8  # classes sp-line-0 … sp-line-7

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """Linear map from the range `low` … `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


@dataclass(frozen=True)
class ChartStyle:
    """Style of a chart. `order`: series names in the order of colors, for charts that lack some series; `near`: the
    pointer shows each line's closest value, for lines with different steps; `up`: label of the values' axis; `best`
    (`max` or `min`): mark and label the highest or lowest point of each line instead of the last; `legend`: False if
    one `legend` names the lines of several charts; `dots`: points without a line, for values that do not form a
    curve."""

    order: Sequence[str] = ()
    near: bool = False
    up: str = ""
    best: str = ""
    legend: bool = True
    dots: bool = False

    def named(self, points: Points) -> tuple[float, float]:
        """The point of a line that the legend shows."""
        choose = {"max": max, "min": min}.get(self.best)
        return choose(points, key=lambda point: point[1]) if choose else points[-1]

    def position_text(self, at: float, across: str) -> str:
        """Where the best point is: ` at step 40`, ` at 4 nodes`."""
        number = f"{at:,.0f}" if at == int(at) else f"{at:.3g}"
        if not self.best:
            return ""
        return " " + (t("at step {n}", n=number) if across == t("step") else t("at {n} {unit}", n=number, unit=across))

    def style(self, name: str, index: int) -> str:
        return f"sp-line-{(self.order.index(name) if name in self.order else index) % STYLES}"


def line_chart(
    title: str,
    series: Mapping[str, Points],
    percent: bool = False,
    unit: str = "",
    across: str = "",
    look: ChartStyle = ChartStyle(),
) -> str:
    """The chart of `series` (name → (step, value) in step order) as HTML; "" without finite values. `percent` fixes
    the range to 0 … 100 %; `unit` is the values' unit, `across` the label of the steps' axis."""
    across = across or t("step")
    finite = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in series.items()}
    shown = {name: _downsample(points) for name, points in finite.items() if points}
    if not shown:
        return ""
    styles = {name: look.style(name, index) for index, name in enumerate(shown)}
    named = {name: look.named(finite[name]) for name in shown}
    x, y = _scales([*shown.values()], percent)
    whole_steps = all(float(step).is_integer() for points in shown.values() for step, _ in points)
    lines = "".join(_line(styles[name], points, named[name], x, y, look.dots) for name, points in shown.items())
    ends = ", ".join(f"{name} {_number(value, percent)} {unit}".strip() for name, (_, value) in named.items())
    last = max(at for at, _ in named.values())
    up = look.up or unit or ("%" if percent else "")
    picture = tag(
        "svg",
        _grid(x, y, percent, whole_steps) + _axes(across, up) + lines + tag("g", class_="sp-chart-mark"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        tabindex="0",
        aria_label=t("{title}: {values} at {across}", title=title, values=ends, across=across)
        + (f" {last:.0f}" if whole_steps else f" {last:.3g}"),
    )
    data = {
        "names": list(shown),
        "points": [[[_rounded(a), _rounded(b)] for a, b in points] for points in shown.values()],
        "styles": list(styles.values()),
        **{"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM},
        **{"x": [x.low, x.high], "y": [y.low, y.high]},
        **{"across": across, "percent": percent, "unit": unit, "title": title, "near": look.near},
    }
    one_unit = f" {unit}" if unit and len(shown) == 1 else ""  # with several lines only the axis shows it
    key_texts = {
        name: _number(value, percent) + one_unit + look.position_text(at, across) for name, (at, value) in named.items()
    }
    keys = tag("ul", "".join(_key(styles[name], name, text) for name, text in key_texts.items())) if look.legend else ""
    file = tag("button", "CSV", type="button", class_="sp-link-button", title=t("Download the values as CSV"))
    caption = tag("figcaption", tag("span", labelled(title)) + file)
    tip = tag("p", class_="sp-chart-tip", role="status", hidden=True)
    numbers = json.dumps(data, separators=(",", ":"))
    return tag("figure", caption + picture + keys + tip, class_="sp-chart", data_chart=numbers)


def _rounded(value: float) -> float:
    """Six significant digits, more than a screen can resolve; whole steps as they are."""
    return value if value == int(value) else float(f"{value:.6g}")


def _downsample(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about MOST_POINTS points, always with the last one."""
    stride = math.ceil(len(points) / MOST_POINTS)
    sample = points[::stride]
    return sample if sample[-1] == points[-1] else [*sample, points[-1]]


def _scales(lines: Sequence[Points], percent: bool) -> tuple[Scale, Scale]:
    xs = [x for points in lines for x, _ in points]
    ys = [y for points in lines for _, y in points]
    low, high = (0.0, 1.0) if percent else padded_range(min(ys), max(ys))
    first, last = _around(xs[0]) if min(xs) == max(xs) else (min(xs), max(xs))
    return Scale(first, last, LEFT, WIDTH - RIGHT), Scale(low, high, HEIGHT - BOTTOM, TOP)


def padded_range(low: float, high: float) -> tuple[float, float]:
    """The range with a margin; it starts at zero if `low` is near zero."""
    if low == high:
        return _around(low)
    margin = (high - low) * 0.06
    return (0.0 if 0 <= low <= (high - low) * 0.5 else low - margin), high + margin


def _around(value: float) -> tuple[float, float]:
    """A range with a single value in its middle."""
    return (value - abs(value) / 2, value + abs(value) / 2) if value else (-1.0, 1.0)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers between `low` and `high`, about `count` of them (steps of 1, 2 or 5 × 10ⁿ)."""
    step = 10 ** math.floor(math.log10((high - low) / count or 1))
    step *= next((m for m in (1, 2, 5) if (high - low) / (step * m) <= count), 10)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _axes(across: str, up: str) -> str:
    right = tag("text", safe(across), x=WIDTH - RIGHT, y=HEIGHT - 6, text_anchor="end", class_="sp-axis")
    return right + tag("text", safe(up), x=4, y=12, class_="sp-axis")


def tick_labels(values: Sequence[float], percent: bool) -> list[str]:
    """Labels of ticks, with as many digits as they need to differ."""
    labels = [_number(value, percent) for value in values]
    for digits in range(1, 9):
        if len(set(labels)) == len(labels):
            break
        labels = [f"{value:.{digits}%}" if percent else f"{value:.{digits + 2}g}" for value in values]
    return labels


def _grid(x: Scale, y: Scale, percent: bool, whole_steps: bool) -> str:
    values = ticks(y.low, y.high)
    rows = "".join(_row(value, label, y) for value, label in zip(values, tick_labels(values, percent), strict=True))
    steps = [v for v in ticks(x.low, x.high, 5) if v >= 0 and (v == int(v) or not whole_steps)]
    labels = [f"{v:,.0f}" for v in steps] if whole_steps else tick_labels(steps, False)
    below = {"y": HEIGHT - BOTTOM + 18, "text_anchor": "middle"}
    marks = (tag("text", label, x=f"{x(v):.1f}", **below) for v, label in zip(steps, labels, strict=True))
    return rows + "".join(marks)


def _row(value: float, label: str, y: Scale) -> str:
    at = f"{y(value):.1f}"
    rule = tag("line", class_="sp-grid", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at)
    return rule + tag("text", label, x=LEFT - 6, y=at, text_anchor="end", dominant_baseline="middle")


def _line(style: str, points: Points, named: tuple[float, float], x: Scale, y: Scale, dots: bool) -> str:
    """A line, with a dot at the point that the legend shows, or dots alone."""
    line = tag("polyline", class_=style, points=" ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points))
    marked = points if dots else [named]
    marks = (tag("circle", class_=style, cx=f"{x(a):.1f}", cy=f"{y(b):.1f}", r=3) for a, b in marked)
    return ("" if dots else line) + "".join(marks)


def legend(names: Sequence[str]) -> str:
    """One legend for several charts whose lines are `names`, in the order of colors."""
    keys = "".join(_key(f"sp-line-{index % STYLES}", name, "") for index, name in enumerate(names))
    return tag("ul", keys, class_="sp-chart-legend")


def _key(style: str, name: str, value: str) -> str:
    sample = tag("line", class_=style, x1=0, x2=22, y1=5, y2=5)
    swatch = tag("svg", sample, viewBox="0 0 22 10", width=22, height=10, aria_hidden="true")
    return tag("li", swatch + tag("span", safe(name)) + tag("b", safe(value)))


def _number(value: float, percent: bool) -> str:
    if percent:
        return f"{value:.0%}"
    if value and (abs(value) < 0.001 or abs(value) >= 100_000):
        return f"{value:.1e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"

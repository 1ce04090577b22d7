"""Horizontal bars, plain or with 95 % intervals, as HTML that fits any width and that screen readers read as a list."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag

MOST = 20
"""Maximum number of bars of a chart."""


@dataclass(frozen=True)
class Bar:
    """One bar: label, note, value and the 95 % interval, if known."""

    label: str
    note: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        return self.low is not None and self.high is not None


def interval_chart(title: str, bars: Sequence[Bar], unit: str = "") -> str:
    """The chart as HTML; "" without bars."""
    shown = bars[:MOST]
    if not shown:
        return ""
    top = _top(shown)
    rows = "".join(_row(bar, top, unit) for bar in shown)
    words = tag("figcaption", safe(title + (f", the first {MOST}" if len(bars) > MOST else "")))
    return tag("figure", words + tag("ol", rows, class_="sp-intervals"), class_="sp-chart")


def _top(bars: Sequence[Bar]) -> float:
    """Upper end of the scale."""
    return max([1e-9, *(max(bar.value, _ends(bar)[1]) for bar in bars)])


def _ends(bar: Bar) -> tuple[float, float]:
    return (bar.value, bar.value) if bar.low is None or bar.high is None else (bar.low, bar.high)


def _row(bar: Bar, top: float, unit: str) -> str:
    low, high = (100 * max(0.0, end) / top for end in _ends(bar))
    fill = tag("span", "", class_="sp-interval-fill", style=f"width:{100 * max(0.0, bar.value) / top:.2f}%")
    span = tag("span", "", class_="sp-interval-span", style=f"left:{low:.2f}%;width:{high - low:.2f}%")
    label = f"{bar.value:.2f}{unit}" + (f", 95 % from {bar.low:.2f} to {bar.high:.2f}" if bar.has_interval else "")
    picture = tag(
        "span", fill + (span if bar.has_interval else ""), class_="sp-interval-bar", role="img", aria_label=label
    )
    name = tag("span", tag("b", safe(bar.label)) + tag("span", safe(bar.note), class_="sp-row-note"))
    return tag("li", name + picture + tag("span", f"{bar.value:.2f}{safe(unit)}", class_="sp-interval-value"))


def bars(title: str, rows: Sequence[tuple[str, float, str]], hint: str = "") -> str:
    """A figure of bars from (name, share of the full length, value as text) as HTML; "" without rows."""
    if not rows:
        return ""
    caption = tag("figcaption", tag("span", labelled(title)))
    note = tag("p", safe(hint), class_="sp-hint") if hint else ""
    listed = tag("ol", "".join(map(_named_bar, rows)), class_="sp-named-bars")
    return tag("figure", caption + listed + note, class_="sp-chart")


def _named_bar(row: tuple[str, float, str]) -> str:
    name, share, value = row
    width = f"width: {100 * min(max(share, 0.0), 1.0):.1f}%"
    fill = tag("span", tag("span", class_="sp-bar-fill", style=width), class_="sp-bar", aria_hidden="true")
    return tag("li", tag("span", safe(name)) + fill + tag("b", safe(value)))

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


def interval_chart(title: str, bars: Sequence[Bar], unit: str = "", hint: str = "") -> str:
    """The chart as HTML, with a line at 1 if the unit is ×; "" without bars."""
    if not bars:
        return ""
    top = max(1.0, *(max(bar.value, bar.high or 0.0) for bar in bars[:MOST]))
    rows = "".join(_row(bar, 100 / top, unit) for bar in bars[:MOST])
    words = tag("figcaption", safe(title + (f", the first {MOST}" if len(bars) > MOST else "")))
    hint = f"Dashed line: 1 ×, the baseline. {hint}" if "×" in unit else hint
    below = tag("p", safe(hint), class_="sp-hint sp-below") if hint else ""
    return tag("figure", words + tag("ol", rows, class_="sp-intervals") + below, class_="sp-chart")


def _row(bar: Bar, scale: float, unit: str) -> str:
    value = f"{bar.value:.2f}{unit}"
    picture = tag("span", "", class_="sp-interval-fill", style=f"width:{scale * max(0.0, bar.value):.2f}%")
    label = value
    if bar.low is not None and bar.high is not None:
        label += f", 95 % from {bar.low:.2f} to {bar.high:.2f}"
        low, high = (scale * max(0.0, end) for end in (bar.low, bar.high))
        picture += tag("span", "", class_="sp-interval-span", style=f"left:{low:.2f}%;width:{high - low:.2f}%")
    if "×" in unit:
        picture += tag("span", "", class_="sp-interval-one", style=f"left:{scale:.2f}%")
    picture = tag("span", picture, class_="sp-interval-bar", role="img", aria_label=label)
    name = tag("span", tag("b", safe(bar.label)) + tag("span", safe(bar.note), class_="sp-row-note"))
    return tag("li", name + picture + tag("span", safe(value), class_="sp-interval-value"))


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

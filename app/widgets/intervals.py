"""Horizontal bars, with 95 % intervals if known, as HTML that fits any width and that screen readers read as a list."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.i18n import t
from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag

MOST = 20
"""Maximum number of bars of a chart."""


@dataclass(frozen=True)
class Bar:
    """One bar: label, value and its text, the 95 % interval and a note, if known."""

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    note: str = ""


def bar_chart(title: str, bars: Sequence[Bar], hint: str = "", baseline: bool = False) -> str:
    """The chart as HTML, with a line at 1 if `baseline`; "" without bars."""
    if not bars:
        return ""
    top = max(1.0, *(max(bar.value, bar.high or 0.0) for bar in bars[:MOST]))
    rows = "".join(_row(bar, 100 / top, baseline) for bar in bars[:MOST])
    title += t(", the first {n}", n=MOST) if len(bars) > MOST else ""
    caption = tag("figcaption", tag("span", labelled(title)))
    hint = " ".join([t("Dashed line: 1 ×, the baseline."), hint]) if baseline else hint
    below = tag("p", safe(hint), class_="sp-hint sp-below") if hint else ""
    return tag("figure", caption + tag("ol", rows, class_="sp-intervals") + below, class_="sp-chart")


def _row(bar: Bar, scale: float, baseline: bool) -> str:
    picture = tag("span", "", class_="sp-interval-fill", style=f"width:{scale * max(0.0, bar.value):.2f}%")
    label = bar.text
    if bar.low is not None and bar.high is not None:
        label += t(", 95 % from {low:.2f} to {high:.2f}", low=bar.low, high=bar.high)
        low, high = (scale * max(0.0, end) for end in (bar.low, bar.high))
        picture += tag("span", "", class_="sp-interval-span", style=f"left:{low:.2f}%;width:{high - low:.2f}%")
    if baseline:
        picture += tag("span", "", class_="sp-interval-one", style=f"left:{scale:.2f}%")
    picture = tag("span", picture, class_="sp-interval-bar", role="img", aria_label=label)
    name = tag("span", tag("b", safe(bar.label)) + tag("span", safe(bar.note), class_="sp-row-note"))
    return tag("li", name + picture + tag("span", safe(bar.text), class_="sp-interval-value"))

"""Horizontal bars with names and values, without an axis. An HTML list, so that screen readers read it as one."""

from collections.abc import Sequence

from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag

Bar = tuple[str, float, str]
"""(name, share of the full length, value as text)."""


def bars(title: str, rows: Sequence[Bar], hint: str = "") -> str:
    """The figure as HTML; "" without rows."""
    if not rows:
        return ""
    caption = tag("figcaption", tag("span", labelled(title)))
    note = tag("p", safe(hint), class_="sp-hint") if hint else ""
    listed = tag("ol", "".join(map(_bar, rows)), class_="sp-named-bars")
    return tag("figure", caption + listed + note, class_="sp-chart")


def _bar(row: Bar) -> str:
    name, share, value = row
    width = f"width: {100 * min(max(share, 0.0), 1.0):.1f}%"
    fill = tag("span", tag("span", class_="sp-bar-fill", style=width), class_="sp-bar", aria_hidden="true")
    return tag("li", tag("span", safe(name)) + fill + tag("b", safe(value)))

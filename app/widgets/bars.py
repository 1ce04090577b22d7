"""Bars with their names and values beside them: a figure that needs no axis. A list, so that it is read as one."""

from collections.abc import Sequence

from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag

Bar = tuple[str, float, str]
"""(name, share of the full length, value in words)."""


def bars(title: str, rows: Sequence[Bar], hint: str = "") -> str:
    """One figure; empty without rows."""
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

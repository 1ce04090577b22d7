"""Horizontal bars with 95 % intervals, as HTML that fits any width and as PNG."""

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from app.widgets.text import safe, tag

FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial.ttf")
SPELLED = str.maketrans({"τ": "tau", "×": "x", "·": "/", "–": "-", "…": "."})
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


def png(title: str, bars: Sequence[Bar], unit: str = "") -> bytes:
    """The chart as a PNG picture, 1,200 pixels wide."""
    from PIL import Image, ImageDraw

    shown, (spell, large), (_, text), (_, small) = bars[:MOST], _font(26), _font(20), _font(15)
    top, left, right, line = _top(shown), 470, 990, 58
    image = Image.new("RGB", (1200, 110 + line * max(1, len(shown))), "#fffdf9")
    draw = ImageDraw.Draw(image)
    draw.text((30, 24), spell(title), fill="#2b2119", font=large)
    for number, bar in enumerate(shown):
        y = 80 + number * line
        draw.text((30, y), spell(_shortened(bar.label, 36)), fill="#2b2119", font=text)
        draw.text((30, y + 25), spell(_shortened(bar.note, 50)), fill="#75685c", font=small)
        x = [left + (right - left) * value / top for value in (0, bar.value, *_ends(bar))]
        draw.rectangle((x[0], y + 8, max(x[1], x[0] + 1), y + 30), fill="#c9a67e")
        if bar.has_interval:
            draw.line((x[2], y + 19, x[3], y + 19), fill="#5b3a1a", width=3)
            for end in x[2:]:
                draw.line((end, y + 11, end, y + 27), fill="#5b3a1a", width=3)
        draw.text((right + 16, y + 8), spell(f"{bar.value:.2f}{unit}"), fill="#2b2119", font=text)
    if not shown:
        draw.text((30, 80), "No values to show.", fill="#75685c", font=text)
    draw.text((30, image.height - 26), "Lines: 95 % intervals", fill="#75685c", font=small)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


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


def _font(size: int) -> tuple[Callable[[str], str], Any]:
    """(function that converts a text for the font, the font). A system font if one exists; otherwise Pillow's default
    font, which has ASCII characters only."""
    from PIL import ImageFont

    for name in FONTS:
        with suppress(OSError):
            return str, ImageFont.truetype(name, size)
    return _ascii, ImageFont.load_default(size)


def _ascii(text: str) -> str:
    return text.translate(SPELLED).encode("ascii", "replace").decode()


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

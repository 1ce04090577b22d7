"""Formats numbers, sizes and times for display."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from app.i18n import plural, t


def size(bytes_: float) -> str:
    """1536 → "1.5 kB" (decimal units)."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(bytes_) < 1000 or unit == "TB":
            return f"{bytes_:.0f} {unit}" if unit == "B" or bytes_ >= 100 else f"{bytes_:.1f} {unit}"
        bytes_ /= 1000
    raise AssertionError


def count(number: float) -> str:
    """134515008 → "135 M"."""
    for factor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            scaled = number / factor
            return f"{scaled:.0f} {letter}" if scaled >= 100 else f"{scaled:.3g} {letter}"
    return f"{number:.0f}"


def duration(seconds: float | None) -> str:
    """95 → "1 min 35 s"; None → "measuring…"."""
    if seconds is None:
        return t("measuring…")
    seconds = int(max(seconds, 0))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds >= 3 * 86400:
        return plural("{n} day", "{n} days", seconds // 86400)
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def rounded(seconds: float) -> str:
    """An estimated time, rounded: 97 s → "2 min"."""
    if seconds < 60:
        return duration(max(round(seconds, -1), 5))
    minutes = max(round(seconds / 60), 1)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"


def ago(when: datetime | None) -> str:
    """Time since `when`; None → "never"."""
    if when is None:
        return t("never")
    seconds = (datetime.now(UTC) - when).total_seconds()
    return t("just now") if seconds < 5 else t("{time} ago", time=duration(seconds))


def figure(value: float | None, digits: int = 2, unit: str = "") -> str:
    """A number with its unit; None → "–"."""
    return "–" if value is None else f"{value:.{digits}f}{' ' + unit if unit else ''}"


def yes_or_no(value: object) -> str:
    """True → "yes", False → "no", anything else → "–"."""
    return (t("yes") if value else t("no")) if isinstance(value, bool) else "–"


def interval(figures: Mapping[str, Any], name: str, unit: str = "") -> str:
    """ "1.38 – 1.47× (95 %)" from `name`_interval in `figures`; "" without a valid interval."""
    low_high = figures.get(f"{name}_interval")
    if not isinstance(low_high, list | tuple) or len(low_high) != 2:
        return ""
    if not all(isinstance(value, int | float) for value in low_high):
        return ""
    low, high = low_high
    return f"{low:.2f} – {high:.2f}{unit} (95 %)"

"""How much of the machine other processes use while something is measured: what a speed may not be compared across."""

import psutil

ENOUGH_SECONDS = 0.2
"""Of the machine's time, all cores together; the system counts in hundredths."""
ALIKE = 0.2
"""Shares of the machine's cores that may lie between two figures that are compared (also static/reference.js)."""


class OtherWork:
    """Begins to count when it is made."""

    def __init__(self) -> None:
        self._began = _spent()

    def share(self) -> float | None:
        """Of the cores' time since then, what other processes took, 0 to 1; None when that was too short to say."""
        whole, busy, own = (now - then for now, then in zip(_spent(), self._began, strict=True))
        return round(min(max(busy - own, 0.0) / whole, 1.0), 3) if whole >= ENOUGH_SECONDS else None


def alike(one: float | None, other: float | None) -> bool:
    """Whether two shares are close enough for figures to be compared; one that is not known is given the doubt."""
    return one is None or other is None or abs(one - other) <= ALIKE


def _spent() -> tuple[float, float, float]:
    """Seconds of all cores: in all, not idle, by this process."""
    times, own = psutil.cpu_times(), psutil.Process().cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user and nice already
    whole = sum(times) - guests
    return whole, whole - times.idle - getattr(times, "iowait", 0.0), own.user + own.system

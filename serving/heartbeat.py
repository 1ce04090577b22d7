"""Heartbeat of a thread: its current work, since when, and the time limit. Other threads use it to detect hangs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import NamedTuple


class Beat(NamedTuple):
    """A heartbeat at `at` (monotonic seconds); the next one is due within `limit` seconds."""

    at: float
    doing: str
    limit: float


class Heartbeat:
    """Written by one thread, read by any. `limit` is the default time limit in seconds between two beats."""

    def __init__(self, limit: float = inf):
        self.limit = limit
        self._last = Beat(time.monotonic(), "starting", limit)

    def beat(self, doing: str = "", limit: float | None = None) -> None:
        """Record a heartbeat; with `doing`, the start of new work that may take `limit` seconds."""
        last = self._last
        if doing:
            self._last = Beat(time.monotonic(), doing, self.limit if limit is None else limit)
        else:
            self._last = last._replace(at=time.monotonic())

    @contextmanager
    def during(self, doing: str, limit: float) -> Iterator[None]:
        """A phase with its own limit; the previous work and limit are restored at its end."""
        before = self._last
        self.beat(doing, limit)
        try:
            yield
        finally:
            self.beat(before.doing, before.limit)

    @property
    def doing(self) -> str:
        return self._last.doing

    @property
    def age(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._last.at

    @property
    def overdue(self) -> str:
        """Why the thread counts as stuck, in a few words, or ""."""
        last = self._last
        age = time.monotonic() - last.at
        if age <= last.limit:
            return ""
        return f"no sign of life for {age:.0f} s while {last.doing} ({last.limit:.0f} s allowed)"

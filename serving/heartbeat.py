"""What a thread is doing, since when, and how long that may take: how others know that it lives."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import NamedTuple


class Beat(NamedTuple):
    """A sign of life at `at` (monotonic seconds); the next one is due after `limit` seconds at most."""

    at: float
    doing: str
    limit: float


class Heart:
    """Beaten by one thread, read by any."""

    def __init__(self, limit: float = inf):
        """`limit` seconds between two beats where nothing else is said."""
        self.limit = limit
        self._last = Beat(time.monotonic(), "starting", limit)

    def beat(self, doing: str = "", limit: float | None = None) -> None:
        """Say that the thread lives; with `doing`, that it begins something, which may take `limit` seconds."""
        last = self._last
        if doing:
            self._last = Beat(time.monotonic(), doing, self.limit if limit is None else limit)
        else:
            self._last = last._replace(at=time.monotonic())

    @contextmanager
    def during(self, doing: str, limit: float) -> Iterator[None]:
        """A phase with a limit of its own; what was being done before goes on after it."""
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
    def late(self) -> str:
        """Why the thread counts as stuck, in a few words; empty while it does not."""
        last = self._last
        age = time.monotonic() - last.at
        if age <= last.limit:
            return ""
        return f"no sign of life for {age:.0f} s while {last.doing} ({last.limit:.0f} s allowed)"

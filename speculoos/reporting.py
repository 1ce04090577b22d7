"""How long work reports itself: one small protocol, known to every room, that knows neither database nor web.

Libraries (`corpus`, `training`, `evaluation`) take a Reporter; jobs pass one that writes rows
(`workers.child.reporter.JobReporter`), the command line and tests pass `ConsoleReporter` or `Silent`.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from speculoos.errors import Cancelled


class Reporter(Protocol):
    """What a long function may say. Every call is cheap; implementations throttle what they store."""

    def begin(self) -> None:
        """The models are loaded and the work begins."""

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        """`done` of `total` units (`rows`, `steps`, `bytes`); `note` is a few words for people."""

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Numbers to chart against `step`, such as {"train/loss": 2.1, "eval/top1_head1": 0.43}."""

    def log(self, message: str, level: str = "info") -> None:
        """One line for the job's log; `level` is info, warning or error."""

    def sample(self, step: int, record: dict[str, Any]) -> None:
        """A JSON-able record to keep with the run, such as a coloured sample generation."""

    def keep(self) -> bool:
        """Store what was reported so far; whether it is stored. Called before a state is saved: a resumed run repeats
        only later steps, so a state must not be newer than what is stored."""
        return True

    def stop_requested(self) -> bool:
        """True once the user asked to stop; the caller saves what it has and raises Cancelled."""
        return False


class Silent(Reporter):
    """Reports nothing and never stops, as the methods of the protocol do by themselves. Base of the others."""


class ConsoleReporter(Silent):
    """Progress, metrics and log lines on standard error, at most one progress line a second."""

    def __init__(self) -> None:
        self._last = 0.0

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        now = time.monotonic()
        if now - self._last < 1.0 and done != total:
            return
        self._last = now
        print(f"{done}/{total if total is not None else '?'} {unit} {note}".rstrip(), file=sys.stderr)

    def metrics(self, step: int, values: dict[str, float]) -> None:
        print(f"step {step}: " + "  ".join(f"{k} {v:.4g}" for k, v in values.items()), file=sys.stderr)

    def log(self, message: str, level: str = "info") -> None:
        print(message if level == "info" else f"{level}: {message}", file=sys.stderr)


def check_stop(reporter: Reporter) -> None:
    """Raise Cancelled if the user asked to stop. Call where everything worth keeping is saved."""
    if reporter.stop_requested():
        raise Cancelled("Stopped at your request; what was finished is kept.")


_heeded: ContextVar[Reporter | None] = ContextVar("heeded", default=None)


@contextmanager
def heeding(reporter: Reporter) -> Iterator[None]:
    """While open, `heed` in whatever is called here looks for this reporter's stop."""
    before = _heeded.set(reporter)
    try:
        yield
    finally:
        _heeded.reset(before)


def heed() -> None:
    """As `check_stop`, for code too deep to be handed a reporter, such as a forward that reads its weights; does
    nothing where none is heeded."""
    if (reporter := _heeded.get()) is not None:
        check_stop(reporter)

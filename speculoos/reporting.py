"""Progress reports of long-running work: a small protocol without database or web.

Libraries (`corpus`, `training`, `evaluation`) take a Reporter. Jobs pass `workers.child.context.JobContext`, which
writes database rows; the command line and tests pass `ConsoleReporter` or `SilentReporter`.
"""

import sys
import time
from typing import Any, Protocol

from speculoos.errors import Cancelled


class Reporter(Protocol):
    """Callbacks of a long-running function. Calls are cheap; implementations throttle what they store."""

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        """`done` of `total` units (`rows`, `steps`, `bytes`); `note` is a short text for users."""

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Metrics at `step`, such as {"train/loss": 2.1, "eval/top1_head1": 0.43}."""

    def log(self, message: str, level: str = "info") -> None:
        """Write one line to the job's log; `level` is info, warning or error."""

    def sample(self, step: int, record: dict[str, Any]) -> None:
        """Store a JSON-serializable record with the run, such as a colored sample generation."""

    def keep(self) -> bool:
        """Store all reports so far; returns whether that succeeded. Called before a checkpoint for resuming is saved:
        a resumed run repeats only later steps, so the checkpoint must not be newer than the stored reports."""
        return True

    def stop_requested(self) -> bool:
        """True once the user asked to stop; the caller saves its results and raises Cancelled."""
        return False


class SilentReporter(Reporter):
    """Reports nothing and never stops. Base class of the others."""


class ConsoleReporter(SilentReporter):
    """Progress, metrics and log lines on standard error, at most one progress line per second."""

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
    """Raise Cancelled if the user asked to stop. Call it when all finished work is saved."""
    if reporter.stop_requested():
        raise Cancelled("Stopped at your request; finished work is kept.")

"""JobReporter: collects reports of a job's work; a thread writes them to database rows at intervals.

The thread is also the child's heartbeat and fence: the process exits at once if another attempt owns the job, if the
supervisor has died, or if the database was unreachable for the duration of a lease.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from speculoos.errors import Fenced, SpeculoosError, Unavailable
from speculoos.redaction import known_secrets, redact
from speculoos.resources import ResourceShortage
from speculoos.settings import Settings
from tracking import db, reports
from tracking.tables import now
from workers.timing import JobTiming

SUPERVISOR_PID = "SPECULOOS_SUPERVISOR_PID"
"""Environment variable with the pid of the supervisor, which must be the child's parent."""
log = logging.getLogger("job")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
EXIT_FENCED = 75
EXIT_ORPHANED = 76
SMOOTHING = 0.2
"""Weight of the newest measurement in the moving average of the time per unit."""


class JobReporter:
    """A Reporter that stores reports as rows of one attempt. A context manager: its exit writes the remaining ones."""

    def __init__(self, settings: Settings, job_id: str, attempt: int, timing: JobTiming, parent: int | None = None):
        self.settings, self.job_id, self.attempt = settings, job_id, attempt
        self.interrupted = threading.Event()  # the worker stops, or space is short: stop, resume later
        self.short: ResourceShortage | None = None  # why the worker asked for a pause
        self.on_beat: Callable[[], None] = lambda: None  # called by the thread after every heartbeat
        self.on_metrics: Callable[[int, dict[str, float]], Any] = lambda step, values: None  # called for every report
        self.timing, self._parent = timing, parent
        self._known = known_secrets(settings)
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._report = reports.JobReport()
        self._eta = Eta()
        self._cancel = self._end = False
        self._wake = threading.Event()
        self._last_beat = time.monotonic()
        self._thread = threading.Thread(target=self._heartbeat, name="job-reporter", daemon=True)

    def __enter__(self) -> "JobReporter":
        self.flush()
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        self._end = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        if not isinstance(error, Fenced):
            self.retry_until_stored(self.flush)

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        eta = self._eta.update(done, total)
        values = {"done": int(done), "total": total, "unit": unit, "progress_note": note[:200], "eta_seconds": eta}
        with self._lock:
            self._report.progress = values

    def report_waiting(self, why: str) -> None:
        """Report that the work waits, and why; the planned total stays."""
        with self._lock:
            self._report.progress = {"done": 0, "progress_note": why[:200], "eta_seconds": None}

    def metrics(self, step: int, values: dict[str, float]) -> None:
        with self._lock:
            self._report.metrics |= {(name, int(step)): float(value) for name, value in values.items()}
        self.on_metrics(int(step), values)

    def log(self, message: str, level: str = "info") -> None:
        message = redact(str(message), self._known)
        log.log(LEVELS.get(level, logging.INFO), "%s", message)
        with self._lock:
            self._report.logs.append((now(), level, message))

    def sample(self, step: int, record: dict[str, Any]) -> None:
        with self._lock:
            self._report.samples.append((int(step), record))

    def stop_requested(self) -> bool:
        return self._cancel or self.interrupted.is_set()

    def cancel_requested(self) -> bool:
        """True once the user, not the worker, asked to stop."""
        return self._cancel

    def flush(self) -> None:
        """Write collected reports and the heartbeat. Raises Fenced. Keeps the reports if the database fails."""
        with self._write_lock:
            with self._lock:
                report, self._report = self._report, reports.JobReport()
            try:
                with db.writing(self.settings) as session:
                    cancel = reports.write(session, self.job_id, self.attempt, report)
            except Exception:
                with self._lock:
                    self._report = _merged(report, self._report)
                raise
            self._cancel = self._cancel or cancel
            self._last_beat = time.monotonic()

    def keep(self) -> bool:
        """Write collected reports; False if the database is unreachable (the next heartbeat retries). Raises Fenced."""
        try:
            self.flush()
        except Fenced:
            raise
        except SpeculoosError as error:
            log.warning("Reports could not be stored yet: %s", error)
            return False
        return True

    def check_parent(self) -> None:
        """Exit at once if the supervisor that started this process has died."""
        if self._parent and os.getppid() != self._parent:
            exit_immediately("its supervisor has died", EXIT_ORPHANED)

    def _heartbeat(self) -> None:
        while not self._wake.wait(self.timing.poll_seconds) and not self._end:
            self.check_parent()
            try:
                self.flush()
                self.on_beat()
            except Fenced:
                exit_immediately("another attempt owns this job, or it has ended", EXIT_FENCED)
            except SpeculoosError as error:
                self._check_lease(str(error))
            except Exception as error:
                self._check_lease(type(error).__name__)

    def retry_until_stored(self, write: Callable[[], None]) -> None:
        """Call `write`, retrying for the duration of a lease: a short database outage must not fail finished work."""
        deadline = time.monotonic() + self.timing.lease_seconds
        while True:
            try:
                return write()
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(self.timing.poll_seconds)

    def _check_lease(self, reason: str) -> None:
        if time.monotonic() - self._last_beat > self.timing.lease_seconds:
            exit_immediately(f"the database was unreachable for the duration of a lease ({reason})", EXIT_FENCED)


class Eta:
    """Estimates the remaining seconds from a moving average of the time per unit; None before two reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._last: tuple[float, int] | None = None
        self._per_unit: float | None = None

    def update(self, done: int, total: int | None) -> float | None:
        now = self._clock()
        if self._last is None or done < self._last[1]:
            self._last, self._per_unit = (now, done), None
        elif done > self._last[1] and now - self._last[0] >= 0.2:
            self._add((now - self._last[0]) / (done - self._last[1]))
            self._last = (now, done)
        if self._per_unit is None or total is None:
            return None
        return max(0.0, (total - done) * self._per_unit)

    def _add(self, seconds: float) -> None:
        old = self._per_unit
        self._per_unit = seconds if old is None else (1 - SMOOTHING) * old + SMOOTHING * seconds


def exit_immediately(reason: str, code: int) -> None:
    """Exit this process without cleanup: nothing may be written any more."""
    log.warning("Exiting: %s.", reason)
    os._exit(code)


def _merged(old: reports.JobReport, new: reports.JobReport) -> reports.JobReport:
    return reports.JobReport(
        new.progress or old.progress, {**old.metrics, **new.metrics}, old.logs + new.logs, old.samples + new.samples
    )

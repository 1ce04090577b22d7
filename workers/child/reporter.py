"""JobReporter: what work says, gathered and written as rows once in a while by a thread of its own.

The same thread is the child's heartbeat and its fence: when the job belongs to another attempt, when the supervisor
is gone, or when the database could not be reached for as long as a lease lasts, the process leaves at once.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from speculoos.errors import Fenced, SpeculoosError, Unavailable
from speculoos.redaction import redact, secrets
from speculoos.room import Shortage
from speculoos.settings import Settings
from tracking import db, reports
from tracking.tables import now
from workers.timing import JobTiming

PARENT = "SPECULOOS_SUPERVISOR_PID"
"""Environment variable that tells a child which process must be its parent."""
log = logging.getLogger("job")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
EXIT_FENCED = 75
EXIT_ORPHANED = 76
SMOOTHING = 0.2
"""Weight of the newest measurement in the average time a unit takes."""


class JobReporter:
    """A Reporter whose reports are rows of one attempt. Use as a context manager: leaving writes the rest."""

    def __init__(self, settings: Settings, job_id: str, attempt: int, timing: JobTiming, parent: int | None = None):
        self.settings, self.job_id, self.attempt = settings, job_id, attempt
        self.interrupted = threading.Event()  # the worker is going down, or short of room: stop, to go on later
        self.short: Shortage | None = None  # what the worker is short of
        self.on_beat: Callable[[], None] = lambda: None  # called after every heartbeat, in the thread
        self.on_metrics: Callable[[int, dict[str, float]], Any] = lambda step, values: None  # called with every report
        self.timing, self._parent = timing, parent
        self._known = secrets(settings)
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._report = reports.JobReport()
        self.began: datetime | None = None  # when the work itself began, its models loaded
        self._eta = Eta()
        self._cancel = self._end = False
        self._wake = threading.Event()
        self._last_beat = time.monotonic()
        self._thread = threading.Thread(target=self._beat_forever, name="job-reporter", daemon=True)

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
            self.insist(self.flush)

    def begin(self) -> None:
        """The first call counts: a training loads a base once more for its tuning."""
        self.began = self.began or now()

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        eta = self._eta.update(done, total)
        values = {"done": int(done), "total": total, "unit": unit, "progress_note": note[:200], "eta_seconds": eta}
        with self._lock:
            self._report.progress = values

    def wait(self, why: str) -> None:
        """Nothing is done yet, and why; what there is to do stays as it was planned."""
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
        """True once the user (not the worker's end) asked to stop."""
        return self._cancel

    def flush(self) -> None:
        """Write what has gathered, and the heartbeat. Raises Fenced; keeps the report when the database fails."""
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
        """Write what has gathered; False for a database that is away for a moment: the next beat tries again. Raises
        Fenced."""
        try:
            self.flush()
        except Fenced:
            raise
        except SpeculoosError as error:
            log.warning("Not stored yet: %s", error)
            return False
        return True

    def check_parent(self) -> None:
        """Leave at once when the supervisor that started this process is gone."""
        if self._parent and os.getppid() != self._parent:
            leave("its supervisor is gone", EXIT_ORPHANED)

    def _beat_forever(self) -> None:
        while not self._wake.wait(self.timing.poll_seconds) and not self._end:
            self.check_parent()
            try:
                self.flush()
                self.on_beat()
            except Fenced:
                leave("another attempt owns this job, or it has ended", EXIT_FENCED)
            except SpeculoosError as error:
                self._check_silence(str(error))
            except Exception as error:
                self._check_silence(type(error).__name__)

    def insist(self, write: Callable[[], None]) -> None:
        """Write, trying for as long as a lease lasts: work that is done must not fail by a moment without database."""
        deadline = time.monotonic() + self.timing.lease_seconds
        while True:
            try:
                return write()
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(self.timing.poll_seconds)

    def _check_silence(self, reason: str) -> None:
        if time.monotonic() - self._last_beat > self.timing.lease_seconds:
            leave(f"the database could not be reached for as long as a lease lasts ({reason})", EXIT_FENCED)


class Eta:
    """Seconds left, from an average of what a unit took lately; None until two reports have come."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._last: tuple[float, int] | None = None
        self._per_unit: float | None = None

    def update(self, done: int, total: int | None) -> float | None:
        at = self._clock()
        if self._last is None or done < self._last[1]:
            self._last, self._per_unit = (at, done), None
        elif done > self._last[1] and at - self._last[0] >= 0.2:
            self._learn((at - self._last[0]) / (done - self._last[1]))
            self._last = (at, done)
        if self._per_unit is None or total is None:
            return None
        return max(0.0, (total - done) * self._per_unit)

    def _learn(self, seconds: float) -> None:
        old = self._per_unit
        self._per_unit = seconds if old is None else (1 - SMOOTHING) * old + SMOOTHING * seconds


def leave(reason: str, code: int) -> None:
    """End this process without unwinding: nothing may be written any more."""
    log.warning("Leaving: %s.", reason)
    os._exit(code)


def _merged(old: reports.JobReport, new: reports.JobReport) -> reports.JobReport:
    return reports.JobReport(
        new.progress or old.progress, {**old.metrics, **new.metrics}, old.logs + new.logs, old.samples + new.samples
    )

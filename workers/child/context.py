"""The context of a job's work: a Reporter that stores reports as rows, and fenced access to its rows and folders.

A thread writes the reports at intervals. It is also the child's heartbeat and fence: the process exits at once if
another attempt owns the job, the supervisor has died, or the database was unreachable for the duration of a lease.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from models.archive import WEIGHTS
from models.damage import BaseChecksums
from speculoos import gpus, machine
from speculoos.checksums import ChecksumCache, file_sha256
from speculoos.errors import BadInput, Fenced, JobFailed, NotFound, SpeculoosError, Unavailable
from speculoos.files import total_bytes
from speculoos.redaction import known_secrets, redact
from speculoos.reporting import check_stop
from speculoos.resources import ResourceShortage
from speculoos.settings import Endpoint, Settings
from tracking import db, leases, queries, reports, shards, stored, transitions
from tracking.names import KIND_NAMES
from tracking.tables import Base, Checkpoint, Table, now
from workers.child.files import JobFiles
from workers.timing import JobTiming

SUPERVISOR_PID = "SPECULOOS_SUPERVISOR_PID"
"""Environment variable with the pid of the supervisor, which must be the child's parent."""
log = logging.getLogger("job")
EXIT_FENCED = 75
EXIT_ORPHANED = 76
SMOOTHING = 0.2  # weight of the newest measurement in the moving average of the time per unit


class JobContext:
    """The context of one attempt. A context manager: its exit writes the remaining reports."""

    def __init__(self, settings: Settings, job_id: str, attempt: int, timing: JobTiming, parent: int | None = None):
        self.settings, self.job_id, self.attempt = settings, job_id, attempt
        self.interrupted = threading.Event()  # the worker stops, or space is short: stop, resume later
        self.shortage: ResourceShortage | None = None  # why the worker requested a pause
        self.on_beat: Callable[[], None] = lambda: None  # called by the thread after every heartbeat
        self.on_metrics: Callable[[int, dict[str, float]], Any] = lambda step, values: None  # called for every report
        self.timing, self._parent = timing, parent
        self.files = JobFiles(settings, self)
        self._secrets = known_secrets(settings)
        self._devices: list[str] = []  # leased
        self._lock, self._write_lock = threading.Lock(), threading.Lock()
        self._report = reports.JobReport()
        self._eta = Eta()
        self._cancel = False
        self._ended = threading.Event()
        self._last_beat = time.monotonic()
        self._thread = threading.Thread(target=self._heartbeat, name="job-reporter", daemon=True)

    def __enter__(self) -> "JobContext":
        self.flush()
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        if not isinstance(error, Fenced):
            self.retry_until_stored(self.flush)

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        eta = self._eta.update(done, total)
        values = {"done": int(done), "total": total, "unit": unit, "progress_note": note[:200], "eta_seconds": eta}
        with self._lock:
            self._report.progress = values

    def wait_note(self, note: str) -> None:
        """Show why the work waits; the planned total stays."""
        with self._lock:
            self._report.progress = {"done": 0, "progress_note": note[:200], "eta_seconds": None}

    def metrics(self, step: int, values: dict[str, float]) -> None:
        values = {**values, **gpus.metrics(self._devices)}
        with self._lock:
            self._report.metrics |= {(name, int(step)): float(value) for name, value in values.items()}
        self.on_metrics(int(step), values)

    def log(self, message: str, level: str = "info") -> None:
        message = redact(str(message), self._secrets)
        log.log(getattr(logging, level.upper(), logging.INFO), "%s", message)
        with self._lock:
            self._report.logs.append((now(), level, message))

    def sample(self, step: int, record: dict[str, Any]) -> None:
        with self._lock:
            self._report.samples.append((int(step), record))

    def stop_requested(self) -> bool:
        return self._cancel or self.interrupted.is_set()

    def cancel_requested(self) -> bool:
        """True once the user, not the worker, requested a stop."""
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
                    new = self._report
                    self._report = reports.JobReport(
                        progress=new.progress or report.progress,
                        metrics=report.metrics | new.metrics,
                        logs=report.logs + new.logs,
                        samples=report.samples + new.samples,
                    )
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
        while not self._ended.wait(self.timing.poll_seconds):
            self.check_parent()
            try:
                self.flush()
                self.on_beat()
            except Fenced:
                exit_immediately("another attempt owns this job, or it has ended", EXIT_FENCED)
            except Exception as error:
                if time.monotonic() - self._last_beat > self.timing.lease_seconds:
                    reason = str(error) if isinstance(error, SpeculoosError) else type(error).__name__
                    message = f"the database was unreachable for the duration of a lease ({reason})"
                    exit_immediately(message, EXIT_FENCED)

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

    def session(self) -> AbstractContextManager[Session]:
        """A short session that commits at the end; for reads, and for rows without a fence."""
        return db.writing(self.settings)

    @contextmanager
    def fenced(self) -> Iterator[Session]:
        """A session that commits only while this attempt owns the job. Raises Fenced before anything is written."""
        with db.writing(self.settings) as session:
            moved = transitions.update_job_and_version(session, self.job_id, transitions.owned_by_attempt(self.attempt))
            transitions.check_fence(moved, self.job_id, self.attempt)
            yield session

    def check_owned(self) -> None:
        """Raises Fenced if this attempt no longer owns the job."""
        with self.fenced():
            pass

    def input_with_files(self, table: type[Table], row_id: str) -> Any:
        """An input's row as in `input_row`, with its files on this machine."""
        return self.files.download(self.input_row(table, row_id))

    def input_row(self, table: type[Table], row_id: str) -> Any:
        """An input's row, detached from its session. Raises NotFound, or Conflict if it is not ready."""
        with db.reading(self.settings) as session:
            row = session.get(table, row_id)
            if row is None:
                raise NotFound(f"The {KIND_NAMES[table.__tablename__]} this job needs ({row_id}) was deleted.")
            queries.must_be_ready(row)
        return row

    def endpoints(self, names: str) -> list[Endpoint]:
        """The endpoints in `names`, separated by commas. Raises BadInput for a name that is not in settings.toml."""
        configured, stripped = self.settings.endpoints, [name.strip() for name in names.split(",") if name.strip()]
        if missing := [name for name in stripped if name not in configured]:
            raise BadInput(
                f"There is no endpoint named {missing[0]!r} in settings.toml; known are: "
                f"{', '.join(configured) or 'none yet'}.",
                "Add an [endpoints.NAME] table with its url, then retry.",
            )
        return [configured[name] for name in dict.fromkeys(stripped)]

    @property
    def checksum_cache(self) -> ChecksumCache:
        """The checksum cache of the home folder."""
        return ChecksumCache.of(self.settings)

    @staticmethod
    def base_checksums(base: Base) -> BaseChecksums:
        """Checksums in a base model's row, for `load_base` to verify."""
        return BaseChecksums.of(base.weights_sha256, base.tokenizer_sha256, base.card)

    def update_output(self, table: type[Table], row_id: str, **values: Any) -> None:
        """Update an output row, fenced. Files at its `path` are uploaded to the store first."""
        folder = self.files.upload(table, row_id, str(values["path"])) if "path" in values else None
        with self.fenced() as session:
            session.execute(update(table).where(table.id == row_id).values(**values))
            if folder:
                stored.save_stored(session, stored.KINDS[table], row_id, folder)

    def update_checkpoint_row(self, checkpoint_id: str, folder: Path, **values: Any) -> None:
        """Update a checkpoint's row with the files of this attempt, fenced."""
        facts = {"size_bytes": total_bytes(folder), "sha256": file_sha256(folder / WEIGHTS), "attempt": self.attempt}
        self.update_output(Checkpoint, checkpoint_id, state="ready", path=str(folder), **facts, **values)

    def add_figures(self, checkpoint_id: str, figures: dict[str, Any]) -> None:
        """Add or replace figures in a checkpoint's row, fenced."""
        with self.fenced() as session:
            row = session.get_one(Checkpoint, checkpoint_id)
            row.figures = {**row.figures, **figures}

    def check_shards(self, noun: str = "shards failed") -> None:
        """Raises JobFailed if shards failed, with their number and the error, code and hint of the first."""
        with self.session() as session:
            failed, tally = shards.failed(session, self.job_id), shards.tally(session, self.job_id)
        if failed:
            first = failed[0]
            message = f"{len(failed)} of {tally.total} {noun}; number {first.number + 1}: {first.error}"
            raise JobFailed(first.error_code, message, first.hint or "A retry runs only the failed ones again.")

    def acquire_devices(self, candidates: Sequence[str], count: int = 1) -> list[str]:
        """Wait for the leases of `count` of the devices, preferably the first, all at once, and renew them until this
        process ends; returns the devices. Raises Cancelled on a stop."""
        names = {machine.device_key(name, self.settings.home): name for name in candidates}
        own = f"job:{self.job_id}", self.timing.lease_seconds, self.attempt
        while True:
            with self.session() as session:
                if acquired := leases.acquire_some(session, list(names), count, *own):
                    break
                reasons = [f"{job} is next" for job in leases.older_waiting(session, list(names), own[0])]
                holders = {name: leases.holder_name(session, key) for key, name in names.items()}
            held = ", ".join(filter(None, dict.fromkeys(holders.values())))
            if held:
                reasons.append(f"{held} holds {candidates[0]}" if len(names) == 1 else f"GPUs are held by {held}")
            note = f"Waits for {count} GPUs: " if count > 1 else "Waits: "
            self.wait_note(f"{note}{', '.join(reasons)}.")
            check_stop(self)
            time.sleep(self.timing.poll_seconds)

        def renew() -> None:
            with self.session() as session:
                for key in sorted(acquired):  # as acquire_some locks them
                    leases.renew(session, key, *own)

        self.on_beat, self._devices = renew, [names[key] for key in acquired]
        return self._devices

    def dataset_folder(self, dataset_id: str) -> Path:
        """home/datasets/<id>: shared by all attempts, as shards are written atomically."""
        return self.settings.home / "datasets" / dataset_id

    def checkpoint_folder(self, checkpoint_id: str) -> Path:
        """home/checkpoints/<id>/attempt-N of this attempt, created if missing; no other attempt writes there."""
        folder = self.settings.home / "checkpoints" / checkpoint_id / f"attempt-{self.attempt}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def earlier_attempts(self, checkpoint_id: str) -> list[Path]:
        """Folders of earlier attempts, latest first, which may hold a checkpoint to resume from."""
        folder = self.settings.home / "checkpoints" / checkpoint_id
        numbered = [(int(p.name.removeprefix("attempt-")), p) for p in folder.glob("attempt-*") if p.is_dir()]
        return [path for number, path in sorted(numbered, reverse=True) if number < self.attempt]


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

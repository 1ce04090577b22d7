"""Supervises one job: claims it, runs each attempt in a child process, renews its lease and ends it on request.

The worker itself never uses a device or loads a model. Two attempts never run at once: a new attempt first ends the
processes of earlier ones, and all writes of a child are fenced by its attempt number.

The child writes to the job's log file directly (home/logs/<job>.log), so its last lines survive a crash of the worker.
The worker checks the size: a full file is copied to <job>.log.1 and truncated in place; the child goes on to append.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from speculoos import faults, logs, resources
from speculoos.errors import Fenced, SpeculoosError, Unavailable
from speculoos.log_files import last_line, rotate_if_full
from speculoos.redaction import known_secrets, redact
from speculoos.settings import Settings, load
from tracking import db, jobs, leases, reports, shards
from tracking.states import JobState
from workers import identity, memory
from workers.celery_app import TASK, app, publish_ready
from workers.child.context import EXIT_FENCED, EXIT_ORPHANED, SUPERVISOR_PID
from workers.child.main import PAUSE_SIGNAL, SPACE_HINT, describe_error
from workers.timing import JobTiming, job_timing

log = logging.getLogger(__name__)
stopping = threading.Event()  # set when this worker is stopping (see workers.supervise.worker)
MAX_LOG_BYTES = 10 * 2**20  # maximum size of the log file, and of the older file
KILLED_REASON = "it was killed, perhaps because memory ran out"
SIGNALS = {signal.SIGKILL: KILLED_REASON, signal.SIGSEGV: "it crashed (SIGSEGV)"}
MEMORY_HINT = "If memory ran out, clone the job with a smaller batch or length, or free memory and retry."


@app.task(name=TASK)
def run_job(job_id: str) -> None:
    """The only Celery task: supervise a job if it can be claimed; a second or late message for it does nothing."""
    try:
        with logs.with_log_context(job=str(job_id)):
            supervise_job(load(), str(job_id), job_timing())
    except SpeculoosError as error:  # the row is unchanged; the reconciler sends a new message
        log.warning("Job %s was not started: %s", job_id, error)


def supervise_job(settings: Settings, job_id: str, timing: JobTiming) -> None:
    """Work on a job until it ends, is lost or this worker stops; after a last shard, go on with its parent job."""
    worked = False
    try:
        while not stopping.is_set() and not resources.resource_monitor(settings).shortage():
            with db.writing(settings) as session:
                attempt = jobs.claim(session, job_id, identity.worker_id(), timing.lease_seconds)
            if attempt is None:
                break
            worked = True
            with logs.with_log_context(attempt=attempt):
                AttemptSupervisor(settings, job_id, attempt, timing).run()
    finally:
        parent_id = None
        if worked:
            with db.writing(settings) as session:
                jobs.resume_parents(session)
                parent_id = shards.waiting_parent(session, job_id)
        publish_ready(settings)
    if parent_id and not stopping.is_set():
        supervise_job(settings, parent_id, timing)


class AttemptSupervisor:
    """Runs one attempt: its child process, its lease and its final state."""

    def __init__(self, settings: Settings, job_id: str, attempt: int, timing: JobTiming):
        self.settings, self.job_id, self.attempt, self.timing = settings, job_id, attempt, timing
        self._stop_requested_at: float | None = None  # when the child was requested to stop, by a signal or in its row
        self._merging = False  # the attempt merges the finished shards of a parent job that the user stopped
        self._shortage: resources.ResourceShortage | None = None  # why the child must pause
        self._log, self._renewed_at = log_path(settings, job_id), time.monotonic()

    def run(self) -> None:
        """Start the child, monitor it until it ends, and make sure that the job's row has its final state."""
        try:
            self._end_last_child()
            child = self._start()
            log.info("Started process %d.", child.pid)
            try:
                self._watch(child)
            finally:
                self._end(child)
            self._conclude(child.returncode)
        except Fenced:
            log.info("This worker no longer owns the attempt.")
        except Unavailable as error:
            # a process of an earlier attempt does not end, or the database cannot be reached
            log.warning("%s", error)
            with contextlib.suppress(SpeculoosError), db.writing(self.settings) as session:
                jobs.interrupt(session, self.job_id, self.attempt, str(error), uses_attempt=False)
            stopping.wait(self.timing.kill_seconds)
        except SpeculoosError as error:
            log.warning("%s", error)
        except OSError as error:
            self._fail_start(error)

    def _fail_start(self, error: OSError) -> None:
        """The log file or the process could not be created: store the reason, as the worker itself still runs."""
        log.warning("%s", error)
        try:
            with db.writing(self.settings) as session:
                if shortage := resources.find_shortage(self.settings):
                    jobs.interrupt(session, self.job_id, self.attempt, shortage.note, hint=SPACE_HINT)
                else:
                    jobs.fail(session, self.job_id, self.attempt, *describe_error(error))
        except SpeculoosError as problem:
            log.warning("%s", problem)

    def _end_last_child(self) -> None:
        with db.reading(self.settings) as session:
            job = jobs.get(session, self.job_id)
            last, self._merging = job.child, job.cancel_requested and job.shards > 0
        if identity.end_group(last, self.timing.kill_seconds):
            log.warning("Ended process %s of an earlier attempt.", last["pid"])
        if pids := identity.end_attempts(self.job_id, self.attempt - 1, self.timing.kill_seconds):
            raise Unavailable(f"Process {pids[0]} of an earlier attempt does not end; the job is retried once it has.")

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "workers.child.main", self.job_id, str(self.attempt)]
        environment = {
            **os.environ,
            SUPERVISOR_PID: str(os.getpid()),
            identity.ATTEMPT: f"{self.job_id}/{self.attempt}",
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        with open_log(self._log, self.attempt) as out:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        try:
            with db.writing(self.settings) as session:
                jobs.record_child(session, self.job_id, self.attempt, identity.process_identity(child.pid))
        except BaseException:
            self._end(child)
            raise
        return child

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        while not _wait_for_exit(child, self.timing.poll_seconds):
            rotate_if_full(self._log, MAX_LOG_BYTES)
            if not self._renew() or self._exceeds_memory(child):
                return
            self._pause_if_short(child)
            if stopping.is_set() and self._stop_requested_at is None:
                self._stop_requested_at = time.monotonic()
                identity.signal_group(child.pid, signal.SIGTERM)
            timeout = self.timing.stop_seconds if stopping.is_set() else self.timing.grace_seconds
            if self._stop_requested_at is not None and time.monotonic() - self._stop_requested_at > timeout:
                return

    def _pause_if_short(self, child: subprocess.Popen[bytes]) -> None:
        """If disk space or memory is short, signal the child to stop at its next safe point; the job resumes later."""
        if self._stop_requested_at is None and (shortage := resources.resource_monitor(self.settings).shortage()):
            self._shortage, self._stop_requested_at = shortage, time.monotonic()
            log.warning("%s.", shortage.note)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, PAUSE_SIGNAL)  # not the group: its children would end before it can save

    def _exceeds_memory(self, child: subprocess.Popen[bytes]) -> bool:
        if not (message := memory.memory_limit_error(self.settings, child.pid)):
            return False
        with db.writing(self.settings) as session:
            jobs.fail(session, self.job_id, self.attempt, "out_of_memory", message, memory.MEMORY_LIMIT_HINT)
        return True

    def _renew(self) -> bool:
        try:
            with db.writing(self.settings) as session:
                stop_requested = jobs.renew(session, self.job_id, self.attempt, self.timing.lease_seconds)
        except Fenced:
            return False
        except SpeculoosError as error:
            log.warning("The lease could not be renewed: %s", error)
            return time.monotonic() - self._renewed_at < self.timing.lease_seconds
        self._renewed_at = time.monotonic()
        if stop_requested and self._stop_requested_at is None and not self._merging:
            self._stop_requested_at = self._renewed_at
        return True

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        if not _wait_for_exit(child, 0 if self._stop_requested_at else self.timing.kill_seconds):
            identity.signal_group(child.pid, signal.SIGTERM)
            _wait_for_exit(child, self.timing.kill_seconds)
        identity.signal_group(child.pid, signal.SIGKILL)
        child.wait()
        identity.end_attempts(self.job_id, self.attempt, 0)  # processes that left the group

    def _conclude(self, status: int) -> None:
        """Set the job's state if the child ended without setting it. Raises Fenced."""
        with db.writing(self.settings) as session:
            leases.release(session, f"job:{self.job_id}", self.attempt)
            job = jobs.get(session, self.job_id)
            if job.attempt != self.attempt or job.state != JobState.RUNNING or not job.owner:
                return  # lost, ended, or waiting for its shards
            reason = self._reason(status)
            reports.add_log(session, self.job_id, self.attempt, reason, "warning")
            if job.cancel_requested and not job.shards:
                jobs.finish_cancelled(session, self.job_id, self.attempt)
            elif stopping.is_set():
                jobs.interrupt(session, self.job_id, self.attempt, "The worker was stopped.", uses_attempt=False)
            elif shortage := self._shortage:
                jobs.interrupt(session, self.job_id, self.attempt, shortage.note, uses_attempt=shortage.uses_attempt)
            elif status < 0 and faults.mentions_no_memory(reason):
                jobs.fail(session, self.job_id, self.attempt, "out_of_memory", reason, failure_hint(reason))
            elif status < 0 or status in (EXIT_FENCED, EXIT_ORPHANED):
                jobs.interrupt(session, self.job_id, self.attempt, reason, hint=failure_hint(reason))
            else:
                jobs.fail(session, self.job_id, self.attempt, "crashed", reason, failure_hint(reason))
        stopping.wait(self.timing.poll_seconds)  # limit the rate of a crash loop

    def _reason(self, status: int) -> str:
        how = f"ended with exit status {status}"
        if status < 0:
            how = "ended without a result: " + SIGNALS.get(-status, f"it was ended by {signal.Signals(-status).name}")
        last = last_line(self._log) if status != -signal.SIGKILL else ""
        detail = f"; its last line was: {redact(last, known_secrets(self.settings)).rstrip('.')}" if last else ""
        return f"The process of attempt {self.attempt} {how}{detail}."


def failure_hint(reason: str) -> str:
    """The hint for a process that ended with this reason."""
    return MEMORY_HINT if KILLED_REASON in reason or faults.mentions_no_memory(reason) else jobs.RETRY_HINT


def _wait_for_exit(child: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def log_path(settings: Settings, job_id: str) -> Path:
    """The log file of a job."""
    return settings.home / "logs" / f"{job_id}.log"


def open_log(log: Path, attempt: int) -> IO[bytes]:
    """Open the log file for an attempt's output, appending. Raises OSError if that fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    out = log.open("ab", buffering=0)
    with contextlib.suppress(OSError):  # a job must not fail because of a header line
        out.write(f"--- attempt {attempt} ---\n".encode())
    return out

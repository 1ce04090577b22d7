"""Supervising one job: claim it, run each attempt in a child process, keep its lease, end it when asked.

The worker itself never touches a device and never loads a model. Two trainers never run at once: a new attempt first
ends the process recorded by the last one, and every write of a child is fenced by its attempt number.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time

from speculoos import faults, logs, room
from speculoos.errors import Fenced, SpeculoosError, Unavailable
from speculoos.redaction import redact, secrets
from speculoos.settings import Settings
from tracking import db, jobs, leases, reports, rules, shards
from tracking.states import JobState
from workers import identity, joblog, memory
from workers.child.main import PAUSE, ROOM_HINT, describe
from workers.child.reporter import EXIT_FENCED, EXIT_ORPHANED, PARENT
from workers.jobs.publish import publish_ready
from workers.timing import JobTiming

log = logging.getLogger(__name__)
stopping = threading.Event()
"""Set when this worker was told to end (see workers.supervise.worker)."""
KILLED = "it was killed, perhaps because memory ran out"
SIGNALS = {signal.SIGKILL: KILLED, signal.SIGSEGV: "it crashed (SIGSEGV)"}
MEMORY_HINT = "If memory ran out, clone the job with a smaller batch or length, or free memory and retry."


def run(settings: Settings, job_id: str, timing: JobTiming) -> None:
    """Work on a job until it is no longer ours: ended, divided, taken by another, or interrupted by the worker's end.
    Whoever ends the last shard of a job goes on with that job, which need not wait behind others then."""
    worked = False
    try:
        while not stopping.is_set() and not room.watch(rules.lately(settings)).look():
            with db.writing(settings) as session:
                attempt = jobs.claim(session, job_id, identity.owner(), timing.lease_seconds)
            if attempt is None:
                break
            worked = True
            with logs.about(attempt=attempt):
                AttemptSupervisor(settings, job_id, attempt, timing).run()
    finally:
        whole = _whole(settings, job_id) if worked else None
        publish_ready(settings)
    if whole and not stopping.is_set():
        run(settings, whole, timing)


def _whole(settings: Settings, job_id: str) -> str | None:
    """The divided job that may go on now that its shard `job_id` has ended."""
    with db.writing(settings) as session:
        jobs.collect(session)
        return shards.waiting_whole(session, job_id)


class AttemptSupervisor:
    """One attempt: its child process, its lease, and how it ends."""

    def __init__(self, settings: Settings, job_id: str, attempt: int, timing: JobTiming):
        self.settings, self.job_id, self.attempt, self.timing = settings, job_id, attempt, timing
        self._asked_at: float | None = None  # when the child was asked to stop
        self._gathers = False  # begun after the stop of a divided job, to put together what there is
        self._short: room.Shortage | None = None  # what it was asked to pause for
        self._log = joblog.path(settings, job_id)
        self._renewed_at = time.monotonic()

    def run(self) -> None:
        """Start the child, watch it to its end, and make sure the row says how it went."""
        try:
            self._end_last_child()
            child = self._start()
            log.info("Process %d begins.", child.pid)
            try:
                self._watch(child)
            finally:
                self._end(child)
            self._conclude(child.returncode)
        except Fenced:
            log.info("The attempt is no longer ours.")
        except Unavailable as error:
            self._not_now(error)
        except SpeculoosError as error:
            log.warning("%s", error)
        except OSError as error:
            self._cannot(error)

    def _not_now(self, error: Unavailable) -> None:
        """An earlier attempt's process that does not end, or a database that is away: the job is tried again later."""
        log.warning("%s", error)
        with contextlib.suppress(SpeculoosError), db.writing(self.settings) as session:
            jobs.interrupt(session, self.job_id, self.attempt, str(error), counts=False)
        stopping.wait(self.timing.kill_seconds)

    def _cannot(self, error: OSError) -> None:
        """No room for the log, or none for a process. Said in the row: its worker has not fallen silent."""
        log.warning("%s", error)
        try:
            with db.writing(self.settings) as session:
                if short := room.shortage(rules.lately(self.settings)):
                    jobs.interrupt(session, self.job_id, self.attempt, short.note, hint=ROOM_HINT)
                else:
                    jobs.fail(session, self.job_id, self.attempt, *describe(error))
        except SpeculoosError as problem:
            log.warning("%s", problem)

    def _end_last_child(self) -> None:
        with db.reading(self.settings) as session:
            job = jobs.get(session, self.job_id)
            last, self._gathers = job.child, job.cancel_requested and job.shards > 0
        if identity.end_group(last, self.timing.kill_seconds):
            log.warning("Ended process %s of an earlier attempt.", last["pid"])
        if left := identity.end_attempts(self.job_id, self.attempt - 1, self.timing.kill_seconds):
            raise Unavailable(f"Process {left[0]} of an earlier attempt does not end; the job goes on once it has.")

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "workers.child.main", self.job_id, str(self.attempt)]
        environment = {
            **os.environ,
            PARENT: str(os.getpid()),
            identity.ATTEMPT: f"{self.job_id}/{self.attempt}",
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        with joblog.begin(self._log, self.attempt) as out:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        try:
            with db.writing(self.settings) as session:
                jobs.record_child(session, self.job_id, self.attempt, identity.identity(child.pid))
        except BaseException:
            self._end(child)
            raise
        return child

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        """Return when the child has ended, when the job is not ours any more, or when patience is over."""
        while not _ended(child, self.timing.poll_seconds):
            joblog.bound(self._log)
            if not self._renew() or self._takes_too_much(child):
                return
            self._pause_if_short(child)
            if stopping.is_set() and self._asked_at is None:
                self._asked_at = time.monotonic()
                identity.signal_group(child.pid, signal.SIGTERM)
            if self._asked_at is not None and time.monotonic() - self._asked_at > self._patience():
                return

    def _pause_if_short(self, child: subprocess.Popen[bytes]) -> None:
        """Below a floor, ask the child to stop at its next safe point, to go on when there is room."""
        if self._asked_at is None and (short := room.watch(rules.lately(self.settings)).look()):
            self._short, self._asked_at = short, time.monotonic()
            log.warning("%s.", short.note)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, PAUSE)  # not its group: what it started would end before it could save

    def _takes_too_much(self, child: subprocess.Popen[bytes]) -> bool:
        """Whether the job held more memory than it may; it has FAILED then."""
        if not (sentence := memory.too_much(rules.lately(self.settings), child.pid)):
            return False
        with db.writing(self.settings) as session:
            jobs.fail(session, self.job_id, self.attempt, "out_of_memory", sentence, memory.HINT)
        return True

    def _renew(self) -> bool:
        """Keep the lease and note when the user asked to stop; False when the job has ended or is not ours."""
        try:
            with db.writing(self.settings) as session:
                stop_asked = jobs.renew(session, self.job_id, self.attempt, self.timing.lease_seconds)
        except Fenced:
            return False
        except SpeculoosError as error:
            log.warning("The lease could not be renewed: %s", error)
            return time.monotonic() - self._renewed_at < self.timing.lease_seconds
        self._renewed_at = time.monotonic()
        if stop_asked and self._asked_at is None and not self._gathers:
            self._asked_at = self._renewed_at
        return True

    def _patience(self) -> float:
        return self.timing.stop_seconds if stopping.is_set() else self.timing.grace_seconds

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """Nothing that the child started outlives this: waited for, asked, then killed."""
        if not _ended(child, 0 if self._asked_at else self.timing.kill_seconds):
            identity.signal_group(child.pid, signal.SIGTERM)
            _ended(child, self.timing.kill_seconds)
        identity.signal_group(child.pid, signal.SIGKILL)
        child.wait()
        identity.end_attempts(self.job_id, self.attempt, 0)  # what left the group

    def _conclude(self, status: int) -> None:
        """A child that ended without a verdict in the row gets one here. Raises Fenced."""
        with db.writing(self.settings) as session:
            leases.release(session, f"job:{self.job_id}", self.attempt)
            job = jobs.get(session, self.job_id)
            if job.attempt != self.attempt or job.state != JobState.RUNNING or not job.owner:
                return  # not ours, ended, or given to its shards
            reason = self._reason(status)
            reports.add_log(session, self.job_id, self.attempt, reason, "warning")
            if job.cancel_requested and not job.shards:
                jobs.cancelled(session, self.job_id, self.attempt)
            elif stopping.is_set():
                jobs.interrupt(session, self.job_id, self.attempt, "The worker was stopped.", counts=False)
            elif self._short:
                jobs.interrupt(session, self.job_id, self.attempt, self._short.note, counts=self._short.counts)
            elif status < 0 and faults.says_no_memory(reason):
                jobs.fail(session, self.job_id, self.attempt, "out_of_memory", reason, hint(reason))
            elif status < 0 or status in (EXIT_FENCED, EXIT_ORPHANED):
                jobs.interrupt(session, self.job_id, self.attempt, reason, hint=hint(reason))
            else:
                jobs.fail(session, self.job_id, self.attempt, "crashed", reason, hint(reason))
        stopping.wait(self.timing.poll_seconds)  # a crash loop should not spin

    def _reason(self, status: int) -> str:
        how = f"ended with exit status {status}"
        if status < 0:
            how = "ended without a result: " + SIGNALS.get(-status, f"it was ended by {signal.Signals(-status).name}")
        last = joblog.last_line(self._log) if status != -signal.SIGKILL else ""
        said = f"; its last line was: {redact(last, secrets(self.settings)).rstrip('.')}" if last else ""
        return f"The process of attempt {self.attempt} {how}{said}."


def hint(reason: str) -> str:
    """What to do about a process that ended so."""
    return MEMORY_HINT if KILLED in reason or faults.says_no_memory(reason) else jobs.SEE_LOG


def _ended(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait at most `seconds` for the child; whether it has ended."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True

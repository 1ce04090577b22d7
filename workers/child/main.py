"""The process that runs one attempt of a job: `python -m workers.child.main JOB ATTEMPT`.

workers.supervise.attempt starts it in its own session with its output in the job's log file. It exits when its
supervisor dies, when another attempt owns the job, or when it is done. It stores its final state in the job's row.
"""

import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from sqlalchemy.orm import Session

from speculoos import logs, resources
from speculoos.errors import Cancelled, Fenced, ProcessLost, SpeculoosError
from speculoos.faults import disk_full, out_of_memory
from speculoos.limited import die_with_parent
from speculoos.private import set_private_umask
from speculoos.redaction import RedactingStream, known_secrets, redact
from speculoos.settings import load
from tracking import db, jobs, reports, shards
from tracking.shards import ShardPlan
from workers.child.context import EXIT_FENCED, SUPERVISOR_PID, JobContext
from workers.jobs.requests import from_json
from workers.memory import limit_child_memory
from workers.timing import job_timing

log = logging.getLogger(__name__)
PAUSE_SIGNAL = signal.SIGUSR1
"""Signal from the worker if disk space or memory is short: stop at the next safe point; the job resumes later."""
SPACE_HINT = "Free some space (the Storage page lists what is large), then retry: it resumes from its last saved state."


def main(job_id: str, attempt: int) -> int:
    """Run one attempt; the exit status is 0 if its final state is stored."""
    die_with_parent()
    set_private_umask()
    settings = load()
    logs.configure_logging(settings, "job", sys.stdout, job=job_id, attempt=attempt)
    sys.stdout, sys.stderr = (RedactingStream(s, known_secrets(settings)) for s in (sys.stdout, sys.stderr))
    context = JobContext(settings, job_id, attempt, job_timing(), int(os.environ.get(SUPERVISOR_PID, "0")) or None)
    context.check_parent()
    _stop_on_signals(context)
    try:
        with context:
            result = _work(context)
        _store_state(context, shards.create_shards if isinstance(result, ShardPlan) else jobs.succeed, result)
    except Fenced:
        return EXIT_FENCED
    except Cancelled as error:
        _store_stop(context, str(error))
    except ProcessLost as error:
        _store_state(context, _interrupt, str(error))
    except Exception as error:
        if not isinstance(error, SpeculoosError):
            traceback.print_exc()
        if not _store_pause(context, error):
            _store_failure(context, *describe_error(error))
    return 0


def describe_error(error: Exception) -> tuple[str, str, str]:
    """(code, message, hint) for an exception; the traceback of an unexpected one is only in the log file."""
    if isinstance(error, SpeculoosError):
        return error.code, str(error), error.hint
    if out_of_memory(error):
        return "out_of_memory", "The memory was not enough for this job.", "Use a smaller batch or a shorter length."
    if disk_full(error):
        return "disk_full", "The disk is full.", "Free some space (the Storage page lists what is large), then retry."
    first = (str(error).strip().splitlines() or [""])[0][:300]
    detail = f": {first}" if first else ""
    return "unexpected", f"An unexpected {type(error).__name__} stopped the work{detail}", jobs.RETRY_HINT


def _work(context: JobContext) -> dict[str, Any] | ShardPlan:
    with db.reading(context.settings) as session:
        job = jobs.get(session, context.job_id)
    limit_child_memory(job.kind, context.settings)
    return from_json(job.kind, job.request).run(context) or {}


def _stop_on_signals(context: JobContext) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        if number == PAUSE_SIGNAL:
            past = resources.ResourceShortage(kind="disk", sentence="space was short for a moment")
            context.shortage = resources.find_shortage(context.settings) or past
        context.interrupted.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(PAUSE_SIGNAL, handle)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles Ctrl-C


def _store_pause(context: JobContext, error: Exception) -> bool:
    """Pause the job if its error is due to a shortage of disk space or memory; returns whether it was."""
    shortage = resources.disk_shortage(context.settings) if disk_full(error) else None
    if shortage is None and not (context.shortage and out_of_memory(error)):
        return False
    note = (shortage or context.shortage).note
    log.warning("%s.", note)
    _store_state(context, jobs.interrupt, note, hint=SPACE_HINT)
    return True


def _store_stop(context: JobContext, message: str) -> None:
    if context.cancel_requested():
        _store_state(context, jobs.finish_cancelled, message)
    elif shortage := context.shortage:
        _store_state(context, jobs.interrupt, shortage.note, uses_attempt=shortage.uses_attempt, hint=SPACE_HINT)
    else:
        _store_state(context, jobs.interrupt, "The worker was stopped.", uses_attempt=False)


def _interrupt(session: Session, job_id: str, attempt: int, reason: str) -> None:
    reports.add_log(session, job_id, attempt, reason, "warning")
    jobs.interrupt(session, job_id, attempt, reason, hint=jobs.RETRY_HINT)


def _store_failure(context: JobContext, code: str, error: str, hint: str) -> None:
    secrets = known_secrets(context.settings)
    message, hint = redact(error, secrets), redact(hint, secrets)
    log.error("FAILED (%s): %s %s", code, message, hint)
    _store_state(context, jobs.fail, code, message, hint)


def _store_state(context: JobContext, set_state: Callable[..., Any], *values: Any, **options: Any) -> None:
    """Store the final state with a function of tracking.jobs; does nothing if another attempt owns the job."""

    def write() -> None:
        with contextlib.suppress(Fenced), db.writing(context.settings) as session:
            set_state(session, context.job_id, context.attempt, *values, **options)

    context.retry_until_stored(write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

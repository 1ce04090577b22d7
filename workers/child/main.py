"""The process that does the work of one attempt: `python -m workers.child.main JOB ATTEMPT`.

It is started by workers.supervise.attempt in a session of its own, with its output going to the job's log file. It
leaves when its supervisor dies, when the job belongs to another attempt, or when it is done; how it ended is in the
row.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from speculoos import logs, room
from speculoos.errors import Cancelled, Fenced, SpeculoosError
from speculoos.faults import disk_full, out_of_memory
from speculoos.private import keep_private
from speculoos.redaction import RedactingStream, redact, secrets
from speculoos.settings import load
from tracking import db, jobs, rules, shards
from tracking.shards import Division
from workers.child.context import Context
from workers.child.reporter import EXIT_FENCED, PARENT
from workers.jobs.pace import START
from workers.jobs.requests import from_json
from workers.memory import bound_child
from workers.timing import timing

log = logging.getLogger(__name__)
Result = dict[str, Any] | Division
PR_SET_PDEATHSIG = 1
PAUSE = signal.SIGUSR1
"""What a worker sends when its machine is short of disk or memory: stop at the next safe point, to go on later."""
ROOM_HINT = "Make room (the Settings page lists what is large), then retry: it goes on from the last saved state."


def main(job_id: str, attempt: int) -> int:
    """Run one attempt to its end; the exit status is 0 when the row says how it went."""
    die_with_parent()
    keep_private()
    settings = load()
    logs.configure(settings, "job", sys.stdout, job=job_id, attempt=attempt)
    sys.stdout, sys.stderr = (RedactingStream(s, secrets(settings)) for s in (sys.stdout, sys.stderr))
    context = Context(settings, job_id, attempt, timing(), int(os.environ.get(PARENT, "0")) or None)
    context.check_parent()
    _stop_on_signals(context)
    try:
        with context:
            result = with_start(context, _work(context))
        _say(context, shards.divide if isinstance(result, Division) else jobs.succeed, result)
    except Fenced:
        return EXIT_FENCED
    except Cancelled as error:
        _stopped(context, str(error))
    except SpeculoosError as error:
        if _paused(context, error):
            return 0
        _failed(context, error.code, str(error), error.hint)
    except Exception as error:
        traceback.print_exc()
        if _paused(context, error):
            return 0
        _failed(context, *describe(error))
    return 0


def describe(error: Exception) -> tuple[str, str, str]:
    """Code, sentence and hint for an error nobody foresaw; its traceback is in the log file only."""
    if out_of_memory(error):
        return "out_of_memory", "The memory was not enough for this job.", "Use a smaller batch or a shorter length."
    if disk_full(error):
        return "disk_full", "The disk is full.", "Free some space (the Storage page lists what is large), then retry."
    first = (str(error).strip().splitlines() or [""])[0][:300]
    said = f": {first}" if first else ""
    return "unexpected", f"An unexpected {type(error).__name__} stopped the work{said}", jobs.SEE_LOG


def die_with_parent() -> None:
    """Ask Linux to kill this process when the thread that started it ends, however that happens."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _work(context: Context) -> Result:
    with db.reading(context.settings) as session:
        job = jobs.get(session, context.job_id)
        context.settings = rules.combined(context.settings, rules.chosen(session))
    bound_child(job.kind, context.settings)
    return from_json(job.kind, job.request).run(context) or {}


def with_start(context: Context, result: Result) -> Result:
    """The result with the seconds before the work began, which estimates keep out of a job's pace."""
    if isinstance(result, Division) or not result or context.began is None:
        return result
    with db.reading(context.settings) as session:
        started = jobs.get(session, context.job_id).started_at
    return {**result, START: max((context.began - started).total_seconds(), 0.0)} if started else result


def _stop_on_signals(context: Context) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        if number == PAUSE:
            context.short = room.shortage(context.settings) or room.Shortage("disk", "there was no room for a moment")
        context.interrupted.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(PAUSE, handle)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the supervisor to translate


def _paused(context: Context, error: Exception) -> bool:
    """Whether the work failed for want of the room its worker asked it to pause for, or of a disk below its floor."""
    short = room.disk_shortage(context.settings) if disk_full(error) else None
    if short is None and not (context.short and out_of_memory(error)):
        return False
    note = (short or context.short).note
    log.warning("%s.", note)
    _say(context, jobs.interrupt, note, hint=ROOM_HINT)
    return True


def _stopped(context: Context, message: str) -> None:
    """Work that stopped when asked: for good if the user asked, for now if the worker goes down."""
    if context.cancel_requested():
        _say(context, jobs.cancelled, message)
    elif short := context.short:
        _say(context, jobs.interrupt, short.note, counts=short.counts, hint=ROOM_HINT)
    else:
        _say(context, jobs.interrupt, "The worker was stopped.", counts=False)


def _failed(context: Context, code: str, error: str, hint: str) -> None:
    known = secrets(context.settings)
    sentence, hint = redact(error, known), redact(hint, known)
    log.error("FAILED (%s): %s %s", code, sentence, hint)
    _say(context, jobs.fail, code, sentence, hint)


def _say(context: Context, verdict: Callable[..., Any], *said: Any, **more: Any) -> None:
    """Write a verdict of tracking.jobs into the row; another attempt's job needs none from us."""

    def write() -> None:
        with contextlib.suppress(Fenced), db.writing(context.settings) as session:
            verdict(session, context.job_id, context.attempt, *said, **more)

    context.insist(write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

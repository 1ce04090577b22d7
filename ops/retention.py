"""Retention: removes old rows and files by the rules of the settings, in small batches with pauses for other writers.

runs            chats and comparisons, whole, once their newest turn is old; with their steps
job logs        lines and files of jobs that ended long ago; beyond a total size the oldest files go first
exports         zips for download
uploads         uploaded files that no unfinished job needs, in the home and in the store
states          all but the last of a finished training; all of a failed or cancelled one after a while (a retry needs
                them; in the store they go with the leftovers by the same rule)
copies          automatic copies of the database beyond the last few
leftovers       files that no row uses, only on request: see ops.storage
"""

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, aliased

from ops import storage
from ops.migrate import copies
from speculoos.errors import SpeculoosError
from speculoos.files import total_bytes
from speculoos.settings import Settings
from tracking import db, rules, stored
from tracking.runs import ENDED
from tracking.states import FINISHED, JobState
from tracking.tables import Checkpoint, Job, JobLog, Preference, Run, RunStep, Stored, now

log = logging.getLogger(__name__)
BATCH, LINES = 20, 2000  # runs (with their steps) and log lines per transaction
PAUSE = 0.05  # seconds between two batches
EVERY = timedelta(hours=1)
NOTE = "retention"
"""Key of the preference with the time of the last cleanup (`updated_at`) and what was removed last
(`value["removed"]`)."""
PAGES = 500  # pages of SQLite's file that are freed at once


@dataclass
class RetentionPart:
    """What one rule removed: number, and bytes on disk (0 for rows)."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Round:
    settings: Settings
    at: datetime
    dry_run: bool = False

    def before(self, days: int) -> datetime | None:
        """Rows and files older than this are removed; None: keep all."""
        return self.at - timedelta(days=days) if days else None

    def remove(self, paths: Iterable[Path]) -> RetentionPart:
        """Remove files and folders, each after a rename, so that removal is atomic."""
        part = RetentionPart()
        for path in paths:
            part.count += 1
            part.bytes += total_bytes(path)
            if self.dry_run:
                continue
            gone = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            with suppress(OSError):
                path.rename(gone)
                shutil.rmtree(gone, ignore_errors=True) if gone.is_dir() else gone.unlink(missing_ok=True)
        return part


def clean(
    settings: Settings, *, dry_run: bool = False, leftovers: bool = False, at: datetime | None = None
) -> dict[str, RetentionPart]:
    """Apply every rule; returns what was (or with `dry_run` would be) removed, by rule."""
    turn = Round(rules.current_settings(settings), at or now(), dry_run)
    done = {name: rule(turn) for name, rule in RULES.items()}
    if leftovers:
        done["leftovers"] = _leftovers(turn)
    if not dry_run:
        _shrink_database(settings)
        _note(settings, done, turn.at)
    return done


def sweep(settings: Settings) -> dict[str, RetentionPart]:
    return {"leftovers": _leftovers(Round(rules.current_settings(settings), now()))}


def clean_when_due(settings: Settings) -> bool:
    """Apply the rules once an hour, whichever process calls; False when it is not time yet."""
    with db.writing(settings) as session:
        last = session.get(Preference, NOTE, with_for_update=True)
        if last and last.updated_at > now() - EVERY:
            return False
        session.merge(Preference(key=NOTE, value=dict(last.value) if last else {}, updated_at=now()))
    if words := in_words(clean(settings)):
        log.info("Retention removed %s.", words)
    return True


def in_background(settings: Settings) -> threading.Thread:
    """`clean_when_due` in a daemon thread; after an error it is tried again in an hour."""

    def run() -> None:
        try:
            clean_when_due(settings)
        except (SpeculoosError, OSError) as error:
            log.warning("Retention failed: %s", error)

    thread = threading.Thread(target=run, name="retention", daemon=True)
    thread.start()
    return thread


def in_words(done: dict[str, RetentionPart]) -> str:
    """`12 runs, 3 states (1,204.5 MB)`; empty when nothing was removed."""
    return ", ".join(
        f"{part.count:,} {name}" + (f" ({part.bytes / 1e6:,.1f} MB)" if part.bytes else "")
        for name, part in done.items()
        if part.count
    )


def states_of(folder: Path) -> list[Path]:
    """Training states of a checkpoint, oldest first, of all its attempts."""
    states = {path: re.fullmatch(r"state-(\d+)", path.name) for path in folder.glob("attempt-*/state-*")}
    return [path for _, path in sorted((int(match[1]), path) for path, match in states.items() if match)]


def _runs(turn: Round) -> RetentionPart:
    if (cutoff := turn.before(turn.settings.keep_runs_days)) is None:
        return RetentionPart()
    newer = aliased(Run)
    going_on = select(newer.id).where(newer.group_id == Run.group_id, newer.created_at >= cutoff).exists()
    old = (Run.state.in_(ENDED), Run.created_at < cutoff, ~going_on)
    return _rows(turn, select(Run.id).where(*old), BATCH, (RunStep.run_id, Run.id))


def _log_lines(turn: Round) -> RetentionPart:
    if (cutoff := turn.before(turn.settings.keep_logs_days)) is None:
        return RetentionPart()
    ended = select(Job.id).where(Job.state.in_(FINISHED), Job.finished_at < cutoff)
    return _rows(turn, select(JobLog.id).where(JobLog.job_id.in_(ended)), LINES, (JobLog.id,))


def _rows(turn: Round, old: Select[Any], batch: int, columns: Sequence[InstrumentedAttribute[Any]]) -> RetentionPart:
    """Delete the rows that have a key selected by `old` in one of `columns`, `batch` keys per transaction."""
    part = RetentionPart()
    if turn.dry_run:
        with db.reading(turn.settings) as session:
            part.count = session.scalar(select(func.count()).select_from(old.subquery())) or 0
        return part
    while True:
        with db.reading(turn.settings) as session:
            keys = list(session.scalars(old.limit(batch)))
        if not keys:
            return part
        with db.writing(turn.settings) as session:
            for column in columns:
                session.execute(delete(column.class_).where(column.in_(keys)))
        part.count += len(keys)
        time.sleep(PAUSE)


def _log_files(turn: Round) -> RetentionPart:
    """Files of jobs that ended before the cutoff; then the oldest until the rest is small enough."""
    settings, cutoff = turn.settings, turn.before(turn.settings.keep_logs_days)
    with db.reading(settings) as session:
        query = select(Job.id, Job.finished_at).where(Job.state.in_(FINISHED)).order_by(Job.finished_at)
        ended = [(job_id, at) for job_id, at in session.execute(query) if at]
    of_job: dict[str, list[Path]] = {}
    for path in (settings.home / "logs").glob("*.log*"):
        of_job.setdefault(path.name.partition(".")[0], []).append(path)
    files = [(path, at) for job_id, at in ended for path in of_job.get(job_id, [])]
    total, old = sum(total_bytes(path) for path, _ in files), []
    for path, at in files:
        if (cutoff and at < cutoff) or (settings.keep_logs_mb and total > settings.keep_logs_mb * 1e6):
            total -= total_bytes(path)
            old.append(path)
    return turn.remove(old)


def _uploads(turn: Round) -> RetentionPart:
    settings, cutoff = turn.settings, turn.before(turn.settings.keep_uploads_days)
    if cutoff is None:
        return RetentionPart()
    folder = settings.home / "uploads"
    with db.reading(settings) as session:
        needed = {*storage.uploads_of(session, settings.home)}
        awaited = stored.awaited_paths(session, settings)
        old_rows = session.scalars(select(Stored).where(Stored.kind == stored.UPLOADS, Stored.created_at < cutoff))
        in_store = [row for row in old_rows if row.id not in awaited] if settings.store else []
    old = _older(cutoff, (path for path in folder.rglob("*") if path not in needed and path.is_file()))
    part = turn.remove(old)
    for place in sorted({place for path in old for place in path.parents if folder in place.parents}, reverse=True):
        with suppress(OSError):  # not empty
            place.rmdir()
    for row in in_store:  # of jobs that failed; those that succeeded removed their own
        part.count += 1
        part.bytes += row.bytes
        if not turn.dry_run:
            with db.writing(settings) as session:
                stored.delete_stored(session, row.id)
            stored.RemoteFiles(settings, stored.store_key(row.kind, row.id)).remove()
    return part


def _exports(turn: Round) -> RetentionPart:
    cutoff = turn.before(turn.settings.keep_exports_days)
    return turn.remove(_older(cutoff, (turn.settings.home / "exports").glob("*/*")) if cutoff else ())


def _states(turn: Round) -> RetentionPart:
    cutoff, removed = turn.before(turn.settings.keep_states_days), RetentionPart()
    query = select(Job.state, Job.finished_at).select_from(Checkpoint).outerjoin(Job, Job.id == Checkpoint.job_id)
    for folder in (turn.settings.home / "checkpoints").glob("[!.]*"):
        if not (states := states_of(folder)):
            continue
        with db.reading(turn.settings) as session:  # now, as a training that is retried meanwhile needs its states
            row = session.execute(query.where(Checkpoint.id == folder.name)).first()
        if row is None or storage.resumable(row[0], row[1], cutoff):
            continue
        part = turn.remove(states[:-1] if row[0] in (None, JobState.SUCCEEDED) else states)
        removed.count, removed.bytes = removed.count + part.count, removed.bytes + part.bytes
    return removed


def _copies(turn: Round) -> RetentionPart:
    keep = turn.settings.keep_copies
    return turn.remove(copies(turn.settings)[keep:] if keep else [])


def _leftovers(turn: Round) -> RetentionPart:
    part = turn.remove([left.path for left in storage.leftovers(turn.settings, turn.at)])
    left = storage.store_leftovers(turn.settings, turn.at, turn.before(turn.settings.keep_states_days))
    if not turn.dry_run:
        storage.remove_from_store(turn.settings, left)
    return RetentionPart(part.count + len(left), part.bytes + sum(left.values()))


RULES: dict[str, Callable[[Round], RetentionPart]] = {
    "runs": _runs,
    "log lines": _log_lines,
    "log files": _log_files,
    "uploads": _uploads,
    "exports": _exports,
    "states": _states,
    "copies": _copies,
}


def _older(cutoff: datetime, paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if storage.newest(path) < cutoff.timestamp()]


def _shrink_database(settings: Settings) -> None:
    """Give SQLite's free pages back to the disk, a few at a time."""
    while storage.database_file(settings):
        with db.driver(settings) as driver:
            names = ("freelist_count", "auto_vacuum")
            free, automatic = (driver.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
            if automatic != 2 or free < PAGES:
                return
            driver.execute(f"PRAGMA incremental_vacuum({PAGES})").fetchall()
        time.sleep(PAUSE)


def _note(settings: Settings, done: dict[str, RetentionPart], at: datetime) -> None:
    removed = {name: asdict(part) for name, part in done.items() if part.count}
    value = {"removed": removed, "removed_at": at.isoformat()}
    with db.writing(settings) as session:
        last = session.get(Preference, NOTE)
        session.merge(Preference(key=NOTE, value=last.value if last and not removed else value, updated_at=now()))

"""What is kept for how long: rules from the settings, applied in small batches, so that nobody waits for it.

runs            chats and comparisons, whole, whose newest turn is old; their steps go along
job logs        lines and files of jobs that ended long ago; beyond a size the oldest files go first
exports         zips that were made for download
uploads         files given to the pages, which no waiting or running job needs, here and in the store
states          a finished training keeps its last one; a failed or cancelled one all, for a while: a retry needs them
                (in the store they go with the leftovers, by the same rule)
copies          automatic copies of the database, the last few are kept
leftovers       files that no row names (only when asked: see ops.storage)
"""

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from ops import storage, store_room
from ops.contents import uploads_of
from ops.migrate import copies
from speculoos.errors import SpeculoosError
from speculoos.files import total_bytes
from speculoos.settings import Settings
from tracking import db, rules, stored
from tracking.runs import ENDED
from tracking.states import FINISHED, JobState
from tracking.tables import Checkpoint, Job, JobLog, Preference, Run, RunStep, Stored, now

log = logging.getLogger(__name__)
BATCH = 20
"""Rows that go in one transaction (a run takes its steps along)."""
LINES = 2000
PAUSE = 0.05
"""Seconds between two batches, in which others write."""
EVERY = timedelta(hours=1)
NOTE = "retention"
"""Key of the preference that says when it was done last, and what went."""
PAGES = 500
"""Pages of SQLite's file that are given back to the disk at once."""
STATE = re.compile(r"state-(\d+)$")


@dataclass
class RetentionPart:
    """What one rule removed: how many, and their bytes on disk (rows count none)."""

    count: int = 0
    bytes: int = 0

    def add(self, count: int, bytes_: int = 0) -> None:
        self.count += count
        self.bytes += bytes_


@dataclass(frozen=True)
class Round:
    """One application of the rules: to what, as of when, and whether anything really goes."""

    settings: Settings
    at: datetime
    dry_run: bool

    def before(self, days: int) -> datetime | None:
        """What is older goes; None when nothing does."""
        return self.at - timedelta(days=days) if days else None

    def remove(self, paths: Iterable[Path], part: RetentionPart) -> None:
        """Files and folders; each under another name first, so that none is ever seen half."""
        for path in paths:
            part.add(1, total_bytes(path))
            if not self.dry_run:
                _remove(path)


def clean(
    settings: Settings, *, dry_run: bool = False, leftovers: bool = False, at: datetime | None = None
) -> dict[str, RetentionPart]:
    """Apply every rule; what went (or would go), by rule. Short transactions with pauses between them."""
    turn = Round(rules.current_settings(settings), at or now(), dry_run)
    done = {name: rule(turn) for name, rule in RULES.items()}
    if leftovers:
        done["leftovers"] = _leftovers(turn)
    if not dry_run:
        _give_back(settings)
        _note(settings, done, turn.at)
    return done


def sweep(settings: Settings) -> dict[str, RetentionPart]:
    """Remove what no row names."""
    return {"leftovers": _leftovers(Round(rules.current_settings(settings), now(), False))}


def clean_when_due(settings: Settings) -> bool:
    """Once an hour, whoever asks: apply the rules and say so in the log. False when it is not time yet."""
    with db.writing(settings) as session:
        last = session.get(Preference, NOTE, with_for_update=True)
        if last and last.updated_at > now() - EVERY:
            return False
        session.merge(Preference(key=NOTE, value=dict(last.value) if last else {}, updated_at=now()))
    done = clean(settings)
    if words := in_words(done):
        log.info("Kept in order: removed %s.", words)
    return True


def in_background(settings: Settings) -> threading.Thread:
    """`clean_when_due` in a thread that ends with its process; a database that is away is for the next hour."""

    def run() -> None:
        try:
            clean_when_due(settings)
        except (SpeculoosError, OSError) as error:
            log.warning("Nothing was put in order: %s", error)

    thread = threading.Thread(target=run, name="retention", daemon=True)
    thread.start()
    return thread


def in_words(done: dict[str, RetentionPart]) -> str:
    """`12 runs, 3 states (1,204.5 MB)`; empty when nothing went."""
    parts = [
        f"{part.count:,} {name}" + (f" ({part.bytes / 1e6:,.1f} MB)" if part.bytes else "")
        for name, part in done.items()
        if part.count
    ]
    return ", ".join(parts)


def last_round(session: Session) -> Preference | None:
    """When it was done last (`updated_at`), and what went (`value["removed"]`)."""
    return session.get(Preference, NOTE)


def compact(settings: Settings) -> int:
    """Write SQLite's file anew without holes, and so that holes are given back from now on; returns the bytes won.
    PostgreSQL does that by itself (autovacuum)."""
    path = storage.database_file(settings)
    if path is None:
        return 0
    before = path.stat().st_size
    with db.driver(settings) as driver:
        for statement in ("PRAGMA auto_vacuum=INCREMENTAL", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
            driver.execute(statement).fetchall()
    return before - path.stat().st_size


def _runs(turn: Round) -> RetentionPart:
    cutoff = turn.before(turn.settings.keep_runs_days)
    if cutoff is None:
        return RetentionPart()
    newer = aliased(Run)
    going_on = select(newer.id).where(newer.group_id == Run.group_id, newer.created_at >= cutoff).exists()
    old = (Run.state.in_(ENDED), Run.created_at < cutoff, ~going_on)
    return _rows(turn, select(Run.id).where(*old), BATCH, (RunStep.run_id, Run.id))


def _log_lines(turn: Round) -> RetentionPart:
    cutoff = turn.before(turn.settings.keep_logs_days)
    if cutoff is None:
        return RetentionPart()
    ended = select(Job.id).where(Job.state.in_(FINISHED), Job.finished_at < cutoff)
    return _rows(turn, select(JobLog.id).where(JobLog.job_id.in_(ended)), LINES, (JobLog.id,))


def _rows(turn: Round, old: Select[Any], at_once: int, columns: Sequence[InstrumentedAttribute[Any]]) -> RetentionPart:
    """Rows that have one of the keys `old` selects in one of these columns, so many keys in a transaction."""
    if turn.dry_run:
        with db.reading(turn.settings) as session:
            return RetentionPart(session.scalar(select(func.count()).select_from(old.subquery())) or 0)
    part = RetentionPart()
    for keys in _batches(turn.settings, old.limit(at_once)):
        with db.writing(turn.settings) as session:
            for column in columns:
                session.execute(delete(column.class_).where(column.in_(keys)))
        part.add(len(keys))
    return part


def _log_files(turn: Round) -> RetentionPart:
    """Files of jobs that ended before the cutoff; then the oldest until the rest is small enough."""
    settings, part = turn.settings, RetentionPart()
    cutoff = turn.before(settings.keep_logs_days)
    with db.reading(settings) as session:
        query = select(Job.id, Job.finished_at).where(Job.state.in_(FINISHED)).order_by(Job.finished_at)
        ended = [(job_id, at) for job_id, at in session.execute(query) if at]
    of_job: dict[str, list[Path]] = {}
    for path in (settings.home / "logs").glob("*.log*"):
        of_job.setdefault(path.name.partition(".")[0], []).append(path)
    files = [(path, at) for job_id, at in ended for path in of_job.get(job_id, [])]
    total = sum(total_bytes(path) for path, _ in files)
    for path, at in files:
        too_much = settings.keep_logs_mb and total > settings.keep_logs_mb * 1e6
        if (cutoff and at < cutoff) or too_much:
            total -= total_bytes(path)
            turn.remove([path], part)
    return part


def _uploads(turn: Round) -> RetentionPart:
    part, cutoff = RetentionPart(), turn.before(turn.settings.keep_uploads_days)
    if cutoff is None:
        return part
    with db.reading(turn.settings) as session:
        needed = {*uploads_of(session, turn.settings.home)}
    folder = turn.settings.home / "uploads"
    files = [path for path in folder.rglob("*") if path.is_file() and path not in needed]
    old = [path for path in files if _changed(path) < cutoff.timestamp()]
    turn.remove(old, part)
    outer = {place for path in old for place in path.parents if place.is_relative_to(folder)} - {folder}
    for place in sorted(outer, reverse=True):  # each upload has a folder of its own
        with suppress(OSError):
            place.rmdir()
    _uploads_in_store(turn, cutoff, part)
    return part


def _uploads_in_store(turn: Round, cutoff: datetime, part: RetentionPart) -> None:
    """Files of jobs that ended otherwise than well; what succeeded took its own away."""
    with db.reading(turn.settings) as session:
        needed = stored.awaited_paths(session, turn.settings)
        old = (Stored.kind == stored.UPLOADS, Stored.created_at < cutoff)
        going = [row for row in session.scalars(select(Stored).where(*old)) if row.id not in needed]
    for row in going if turn.settings.store else ():
        part.add(1, row.bytes)
        if not turn.dry_run:
            with db.writing(turn.settings) as session:
                stored.delete_stored(session, row.id)
            stored.RemoteFiles(turn.settings, stored.store_key(row.kind, row.id)).remove()


def _exports(turn: Round) -> RetentionPart:
    """With the notes beside them, and what was left half made."""
    part, cutoff = RetentionPart(), turn.before(turn.settings.keep_exports_days)
    files = (turn.settings.home / "exports").glob("*/*") if cutoff else ()
    turn.remove([path for path in files if _changed(path) < cutoff.timestamp()], part)
    return part


def _states(turn: Round) -> RetentionPart:
    """Of each checkpoint whose training has ended."""
    part, cutoff = RetentionPart(), turn.before(turn.settings.keep_states_days)
    with db.reading(turn.settings) as session:
        query = select(Checkpoint.id, Job.state, Job.finished_at).outerjoin(Job, Job.id == Checkpoint.job_id)
        rows = session.execute(query).all()
    for checkpoint_id, state, ended in rows:
        states = states_of(turn.settings.home / "checkpoints" / checkpoint_id)
        if state in (None, JobState.SUCCEEDED):
            going = states[:-1]
        else:
            going = [] if storage.resumable(state, ended, cutoff) else states
        if going and _still(turn.settings, checkpoint_id, state):
            turn.remove(going, part)
    return part


def states_of(folder: Path) -> list[Path]:
    """Training states of a checkpoint, the oldest first, of all its attempts."""
    numbered = [(int(match[1]), path) for path in folder.glob("attempt-*/state-*") if (match := STATE.match(path.name))]
    return [path for _, path in sorted(numbered)]


def _still(settings: Settings, checkpoint_id: str, state: JobState | None) -> bool:
    """Whether the training is as it was when we looked: one that was retried meanwhile needs its states."""
    with db.reading(settings) as session:
        query = select(Job.state).join(Checkpoint, Checkpoint.job_id == Job.id).where(Checkpoint.id == checkpoint_id)
        return session.scalar(query) == state


def _copies(turn: Round) -> RetentionPart:
    part, keep = RetentionPart(), turn.settings.keep_copies
    turn.remove(copies(turn.settings)[keep:] if keep else [], part)
    return part


def _leftovers(turn: Round) -> RetentionPart:
    part = RetentionPart()
    turn.remove([left.path for left in storage.leftovers(turn.settings, turn.at)], part)
    left = store_room.leftovers(turn.settings, turn.at, turn.before(turn.settings.keep_states_days))
    part.add(len(left), sum(left.values()))
    if not turn.dry_run:
        store_room.remove(turn.settings, left)
    return part


RULES: dict[str, Callable[[Round], RetentionPart]] = {
    "runs": _runs,
    "log lines": _log_lines,
    "log files": _log_files,
    "uploads": _uploads,
    "exports": _exports,
    "states": _states,
    "copies": _copies,
}


def _batches(settings: Settings, query: Select[Any]) -> Iterator[list[Any]]:
    """Keys of what is to go, until there is none."""
    while True:
        with db.reading(settings) as session:
            keys = list(session.scalars(query))
        if not keys:
            return
        yield keys
        time.sleep(PAUSE)


def _remove(path: Path) -> None:
    """Under a name that no reader looks for, then for good."""
    gone = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.rename(gone)
    except OSError:
        return
    shutil.rmtree(gone, ignore_errors=True) if gone.is_dir() else gone.unlink(missing_ok=True)


def _give_back(settings: Settings) -> None:
    """Give SQLite's free pages back to the disk, a few at a time. Files made by older versions keep theirs for rows to
    come, until they were compacted once."""
    if storage.database_file(settings) is None:
        return
    while True:
        with db.driver(settings) as driver:
            free, automatic = (
                driver.execute(f"PRAGMA {what}").fetchone()[0] for what in ("freelist_count", "auto_vacuum")
            )
            if automatic != 2 or free < PAGES:
                return
            driver.execute(f"PRAGMA incremental_vacuum({PAGES})").fetchall()
        time.sleep(PAUSE)


def _note(settings: Settings, done: dict[str, RetentionPart], at: datetime) -> None:
    removed = {name: {"count": part.count, "bytes": part.bytes} for name, part in done.items() if part.count}
    with db.writing(settings) as session:
        last = session.get(Preference, NOTE)
        value = {"removed": removed or (last.value.get("removed", {}) if last else {})}
        value["removed_at"] = at.isoformat() if removed or not last else last.value.get("removed_at", "")
        session.merge(Preference(key=NOTE, value=value, updated_at=now()))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()

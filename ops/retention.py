"""Retention: removes old rows and files by the rules of the settings, in small batches with pauses for other writers.

runs            chats and comparisons, whole, once their newest turn is old; with their steps
job logs        lines and files of jobs that ended long ago
exports         zips for download
uploads         uploaded files that no unfinished job needs, in the home and in the store
states          all but the last of a finished training; all of a failed or cancelled one after a while (a retry needs
                them; in the store they go with the leftovers by the same rule)
leftovers       files that no row uses, only on request: see ops.storage
"""

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, aliased

from ops import storage
from speculoos.errors import SpeculoosError
from speculoos.files import total_bytes
from speculoos.settings import Settings
from tracking import db, retention_rules, stored
from tracking.runs import ENDED
from tracking.states import FINISHED, JobState
from tracking.tables import Checkpoint, Job, JobLog, Preference, Run, RunStep, Stored, now

log = logging.getLogger(__name__)
BATCH, LINES = 20, 2000  # runs (with their steps) and log lines per transaction
PAUSE = 0.05  # seconds between two batches
EVERY = timedelta(hours=1)
EPOCH = datetime.fromtimestamp(0, UTC)
NOTE = "retention"
"""Key of the preference with the time of the last cleanup (`updated_at`) and what was removed last
(`value["removed"]`)."""
PAGES = 500  # pages of SQLite's file that are freed at once
Columns = tuple[InstrumentedAttribute[Any], ...]


@dataclass
class RetentionPart:
    """What one rule removed: number, and bytes on disk (0 for rows)."""

    count: int = 0
    bytes: int = 0


def clean(
    settings: Settings, *, dry_run: bool = False, leftovers: bool = False, at: datetime | None = None
) -> dict[str, RetentionPart]:
    """Apply every rule; returns what was (or with `dry_run` would be) removed, by rule."""
    settings, at = retention_rules.current_settings(settings), at or now()
    removed = {
        name: RetentionPart(_count_rows(settings, keys) if dry_run else _delete_rows(settings, keys, columns, batch))
        for name, (keys, columns, batch) in old_rows(settings, at).items()
    }
    removed |= {name: _remove_files(find(settings, at), dry_run) for name, find in OLD_FILES.items()}
    _remove_stored_uploads(settings, at, removed["uploads"], dry_run)
    if leftovers:
        removed |= sweep(settings, dry_run=dry_run, at=at)
    if not dry_run:
        _shrink_database(settings)
        _note(settings, removed, at)
    return removed


def sweep(settings: Settings, *, dry_run: bool = False, at: datetime | None = None) -> dict[str, RetentionPart]:
    """Remove the leftovers."""
    settings, at = retention_rules.current_settings(settings), at or now()
    part = _remove_files((item.path for item in storage.leftovers(settings, at)), dry_run)
    stored_leftovers = storage.store_leftovers(settings, at, _cutoff(at, settings.keep_states_days))
    if not dry_run:
        storage.remove_from_store(settings, stored_leftovers)
    return {"leftovers": RetentionPart(part.count + len(stored_leftovers), part.bytes + sum(stored_leftovers.values()))}


def clean_when_due(settings: Settings) -> bool:
    """Apply the rules once an hour, whichever process calls; False when it is not time yet."""
    with db.writing(settings) as session:
        last = session.get(Preference, NOTE, with_for_update=True)
        if last and last.updated_at > now() - EVERY:
            return False
        session.merge(Preference(key=NOTE, value=dict(last.value) if last else {}, updated_at=now()))
    if summary := describe(clean(settings)):
        log.info("Retention removed %s.", summary)
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


def describe(removed: dict[str, RetentionPart]) -> str:
    """`12 runs, 3 states (1,204.5 MB)`; empty when nothing was removed."""
    return ", ".join(
        f"{part.count:,} {name}" + (f" ({part.bytes / 1e6:,.1f} MB)" if part.bytes else "")
        for name, part in removed.items()
        if part.count
    )


def old_rows(settings: Settings, at: datetime) -> dict[str, tuple[Select[Any], Columns, int]]:
    """(keys of old rows, columns with such a key whose rows are deleted, keys per transaction) by rule."""
    cutoff, newer = _cutoff(at, settings.keep_runs_days), aliased(Run)
    going_on = select(newer.id).where(newer.group_id == Run.group_id, newer.created_at >= cutoff).exists()
    runs = select(Run.id).where(Run.state.in_(ENDED), Run.created_at < cutoff, ~going_on)
    jobs = select(Job.id).where(Job.state.in_(FINISHED), Job.finished_at < _cutoff(at, settings.keep_logs_days))
    lines = select(JobLog.id).where(JobLog.job_id.in_(jobs))
    return {"runs": (runs, (RunStep.run_id, Run.id), BATCH), "log lines": (lines, (JobLog.id,), LINES)}


def _cutoff(at: datetime, days: int) -> datetime:
    """Rows and files older than this are removed; nothing is for 0 days."""
    return at - timedelta(days=days) if days else EPOCH


def _count_rows(settings: Settings, keys: Select[Any]) -> int:
    with db.reading(settings) as session:
        return session.scalar(select(func.count()).select_from(keys.subquery())) or 0


def _delete_rows(settings: Settings, keys: Select[Any], columns: Columns, batch: int) -> int:
    count = 0
    while True:
        with db.reading(settings) as session:
            old_keys = list(session.scalars(keys.limit(batch)))
        if not old_keys:
            return count
        with db.writing(settings) as session:
            for column in columns:
                session.execute(delete(column.class_).where(column.in_(old_keys)))
        count += len(old_keys)
        time.sleep(PAUSE)


def _remove_files(paths: Iterable[Path], dry_run: bool) -> RetentionPart:
    """Remove files and folders, each after a rename, so that removal is atomic."""
    part = RetentionPart()
    for path in paths:
        part.count += 1
        part.bytes += total_bytes(path)
        if dry_run:
            continue
        renamed = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with suppress(OSError):
            path.rename(renamed)
            shutil.rmtree(renamed, ignore_errors=True) if renamed.is_dir() else renamed.unlink(missing_ok=True)
    return part


def _log_files(settings: Settings, at: datetime) -> Iterator[Path]:
    cutoff = _cutoff(at, settings.keep_logs_days)
    with db.reading(settings) as session:
        old = set(session.scalars(select(Job.id).where(Job.state.in_(FINISHED), Job.finished_at < cutoff)))
    return (path for path in (settings.home / "logs").glob("*.log*") if path.name.partition(".")[0] in old)


def _uploads(settings: Settings, at: datetime) -> Iterator[Path]:
    cutoff, folder = _cutoff(at, settings.keep_uploads_days).timestamp(), settings.home / "uploads"
    with db.reading(settings) as session:
        needed = {*storage.uploads_of(session, settings.home)}
    for path in [path for path in folder.rglob("*") if path not in needed and path.is_file()]:
        if storage.newest(path) < cutoff:
            yield path
            for parent in path.relative_to(folder).parents[:-1]:
                with suppress(OSError):  # not empty
                    (folder / parent).rmdir()


def _exports(settings: Settings, at: datetime) -> Iterator[Path]:
    cutoff = _cutoff(at, settings.keep_exports_days).timestamp()
    return (path for path in (settings.home / "exports").glob("*/*") if storage.newest(path) < cutoff)


def _states(settings: Settings, at: datetime) -> Iterator[Path]:
    cutoff = _cutoff(at, settings.keep_states_days)
    query = select(Job.state, Job.finished_at).select_from(Checkpoint).outerjoin(Job, Job.id == Checkpoint.job_id)
    for folder in (settings.home / "checkpoints").glob("[!.]*"):
        if not (states := states_of(folder)):
            continue
        with db.reading(settings) as session:  # now, as a training that is retried meanwhile needs its states
            row = session.execute(query.where(Checkpoint.id == folder.name)).first()
        if row is not None and not storage.resumable(row[0], row[1], cutoff):
            yield from states[:-1] if row[0] in (None, JobState.SUCCEEDED) else states


def states_of(folder: Path) -> list[Path]:
    """Training states of a checkpoint, oldest first, of all its attempts."""
    states = {path: re.fullmatch(r"state-(\d+)", path.name) for path in folder.glob("attempt-*/state-*")}
    return [path for _, path in sorted((int(match[1]), path) for path, match in states.items() if match)]


OLD_FILES: dict[str, Callable[[Settings, datetime], Iterator[Path]]] = {
    "log files": _log_files,
    "uploads": _uploads,
    "exports": _exports,
    "states": _states,
}


def _remove_stored_uploads(settings: Settings, at: datetime, part: RetentionPart, dry_run: bool) -> None:
    """Uploads of failed jobs in the store; those of jobs that succeeded removed their own."""
    if not settings.store:
        return
    cutoff = _cutoff(at, settings.keep_uploads_days)
    with db.reading(settings) as session:
        awaited = stored.awaited_paths(session, settings)
        rows = session.scalars(select(Stored).where(Stored.kind == stored.UPLOADS, Stored.created_at < cutoff))
        old = [row for row in rows if row.id not in awaited]
    for row in old:
        part.count, part.bytes = part.count + 1, part.bytes + row.bytes
        if not dry_run:
            with db.writing(settings) as session:
                stored.delete_stored(session, row.id)
            stored.RemoteFiles(settings, stored.store_prefix(row.kind, row.id)).remove()


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


def _note(settings: Settings, removed: dict[str, RetentionPart], at: datetime) -> None:
    removed_parts = {name: asdict(part) for name, part in removed.items() if part.count}
    value = {"removed": removed_parts, "removed_at": at.isoformat()}
    with db.writing(settings) as session:
        last = session.get(Preference, NOTE)
        session.merge(Preference(key=NOTE, value=last.value if last and not removed_parts else value, updated_at=now()))

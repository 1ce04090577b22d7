"""Sizes of everything in a home, and leftovers: files of the home or the store that no row uses.

Counting reads the whole home, so one thread does it at intervals; other code uses the last result.
"""

import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import select
from sqlalchemy.orm import Session

from speculoos.errors import Damaged, SpeculoosError
from speculoos.files import file_stats, total_bytes
from speculoos.settings import Settings
from speculoos.store import open_store
from tracking import db, stored
from tracking.states import FINISHED, JobState
from tracking.stored import EXPORTS, KINDS, UPLOADS
from tracking.tables import Checkpoint, Job, Stored, now

YOUNG = timedelta(days=1)  # files that changed within this time are not leftovers: they may be unfinished
FRESH_SECONDS = 60.0
SHARE = 50  # counting takes at most about 1/50 of the time
STATE = "state-"  # prefix of the folder of a training state


@dataclass(frozen=True)
class StorageItem:
    """A row with files. `states`: bytes of training states among them; `outside`: its files are not in the home."""

    kind: str
    id: str
    name: str
    bytes: int
    states: int = 0
    outside: bool = False


@dataclass(frozen=True)
class Leftover:
    """A file or folder of the home that no row uses."""

    path: Path
    bytes: int
    changed: datetime


@dataclass(frozen=True)
class StorageUsage:
    """Storage used by a home. `parts`: bytes by part of the home."""

    at: datetime
    items: list[StorageItem]
    leftovers: list[Leftover]
    parts: dict[str, int]
    disk_free: int
    disk_total: int
    seconds: float = 0.0

    @property
    def used(self) -> int:
        return sum(self.parts.values())


def measure_storage(settings: Settings) -> StorageUsage:
    """Measure everything now. Takes time where there are many files."""
    started = time.monotonic()
    with db.reading(settings) as session:
        items = [storage_item(settings, kind, row) for kind, row in rows_with_files(session)]
        parts = {"database": database_bytes(session)}
    unused_files = leftovers(settings)
    for kind in KINDS.values():
        parts[kind] = sum(each.bytes for each in items if each.kind == kind and not each.outside)
    for part in ("logs", "uploads", EXPORTS, db.BACKUPS, "broker"):
        parts[part] = total_bytes(settings.home / part)
    parts["hidden_states"] = total_bytes(settings.hidden_states_folder)
    parts["engines"] = total_bytes(settings.engines_folder)
    parts["trackers"] = total_bytes(settings.trackers_folder)
    parts["leftovers"] = sum(item.bytes for item in unused_files)
    parts["logs"] -= sum(item.bytes for item in unused_files if item.path.parent.name == "logs")  # counted once
    total, _, free = shutil.disk_usage(settings.home)
    return StorageUsage(now(), items, unused_files, parts, free, total, time.monotonic() - started)


def leftovers(settings: Settings, at: datetime | None = None) -> list[Leftover]:
    """Files and folders of models, datasets, checkpoints and logs that belong to no row, and incomplete ones whose job
    has ended, largest first; nothing that changed within a day."""
    cutoff = ((at or now()) - YOUNG).timestamp()
    with db.reading(settings) as session:
        rows = [row for _, row in rows_with_files(session)]
        known_names = {row.id for row in rows} | set(session.scalars(select(Job.id)))
        active_job_ids = set(session.scalars(select(Job.id).where(Job.state.not_in(FINISHED))))
    known_names |= {part for row in rows if row.path for part in Path(row.path).parts[-3:]}
    unfinished_ids = {row.id for row in rows if row.job_id in active_job_ids}
    entries = [path for kind in KINDS.values() for path in (settings.home / kind).glob("*")]
    entries += [path for path in (settings.home / "logs").glob("*.log*") if len(path.name.partition(".")[0]) == 32]
    items = []
    for path in entries:
        owner = path.name.lstrip(".").partition(".")[0].partition("-")[0]
        if path.name in known_names or owner in (unfinished_ids if path.name.startswith(".") else known_names):
            continue
        if (changed := newest(path)) < cutoff:
            items.append(Leftover(path, total_bytes(path), datetime.fromtimestamp(changed, tz=now().tzinfo)))
    return sorted(items, key=lambda item: -item.bytes)


def store_leftovers(
    settings: Settings, at: datetime | None = None, ended_before: datetime | None = None
) -> dict[str, int]:
    """{name in the store: bytes} of files of deleted rows, superseded files, and states of trainings that succeeded or
    `ended_before`. Nothing that changed within a day or that a job works on. Raises Unavailable when the store does not
    answer."""
    if (store := open_store(settings.store)) is None:
        return {}
    with db.reading(settings) as session:
        keys = {stored.store_prefix(row.kind, row.id): row.key for row in session.scalars(select(Stored))}
        known_prefixes = {stored.store_prefix(kind, row.id) for kind, row in rows_with_files(session)}
        known_prefixes |= {stored.store_prefix(EXPORTS, row_id) for row_id in session.scalars(select(Checkpoint.id))}
        known_prefixes |= {prefix for prefix in keys if prefix.startswith(f"{UPLOADS}/")}
        busy_prefixes = _busy_prefixes(session)
        query = select(Checkpoint.id, Job.state, Job.finished_at).join(Job, Job.id == Checkpoint.job_id)
        trainings = session.execute(query).all()
    resumable_prefixes = {
        stored.store_prefix("checkpoints", row[0]) for row in trainings if resumable(row[1], row[2], ended_before)
    }
    by_prefix: dict[str, dict[str, int]] = defaultdict(dict)
    for name, size in store.names().items():
        by_prefix[_prefix_of(name)][name] = size
    old: dict[str, int] = {}
    for prefix in by_prefix.keys() - busy_prefixes:
        names, key, used = by_prefix[prefix], keys.get(prefix, ""), set()
        states = {name for name in names if name.startswith(f"{prefix}/states/")}
        if prefix in known_prefixes:  # all of its files are used, unless there is a list of those in use
            used = names.keys() - states
            if key and not prefix.startswith(f"{EXPORTS}/"):
                with suppress(Damaged):
                    files = store.listed(prefix, key).values()
                    used = {f"{prefix}/folders/{key}.json", *(f"{prefix}/files/{entry['sha256']}" for entry in files)}
        used = used | states if prefix in resumable_prefixes else used
        old |= {name: size for name, size in names.items() if name not in used}
    before = (at or now()) - YOUNG
    return {name: size for name, size in old.items() if store.changed(name) < before}


def remove_from_store(settings: Settings, names: dict[str, int]) -> None:
    """Remove files from the store, except those of a job that was retried meanwhile."""
    if store := open_store(settings.store):
        with db.reading(settings) as session:
            busy_prefixes = _busy_prefixes(session)
        store.remove([name for name in names if _prefix_of(name) not in busy_prefixes])


def _prefix_of(name: str) -> str:
    return "/".join(name.split("/")[:2])


def _busy_prefixes(session: Session) -> set[str]:
    active_job_ids = set(session.scalars(select(Job.id).where(Job.state.not_in(FINISHED))))
    return {stored.store_prefix(kind, row.id) for kind, row in rows_with_files(session) if row.job_id in active_job_ids}


def uploads_of(session: Session, home: Path) -> list[Path]:
    """Uploaded files that unfinished jobs need: the file that a request names, or those of the folder it names."""
    requests = session.scalars(select(Job.request).where(Job.state.not_in(FINISHED)))
    named = [request.get(key) for request in requests for key in ("path", "location")]
    paths = [home / path for path in named if isinstance(path, str) and path]
    uploads = [path for path in paths if path.is_relative_to(home / "uploads")]
    return [file for path in uploads for file in (sorted(path.glob("*")) if path.is_dir() else [path])]


def resumable(state: str | None, ended: datetime | None, before: datetime | None) -> bool:
    """Whether a training in that job state still needs its states: it is unfinished, or a retry may use them because
    it did not end `before`."""
    if state in (None, JobState.SUCCEEDED):
        return False
    return state not in FINISHED or not (before and ended and ended < before)


def newest(path: Path) -> float:
    """Latest modification of a file or of anything in a folder, in seconds since the epoch; now for a missing one."""
    with suppress(OSError):
        return max([path.lstat().st_mtime, *(entry.st_mtime for entry in file_stats(path))])
    return time.time()


def database_file(settings: Settings) -> Path | None:
    url = db.database_url(settings)
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def database_bytes(session: Session) -> int:
    """Size of the database with its log."""
    if session.get_bind().dialect.name == "postgresql":
        return session.scalar(sa.text("SELECT pg_database_size(current_database())")) or 0
    name = session.scalar(sa.text("SELECT file FROM pragma_database_list WHERE name = 'main'"))
    return sum(total_bytes(Path(f"{name}{ending}")) for ending in ("", "-wal", "-shm"))


class StorageMonitor:
    """The last measured usage of a home. A thread measures again on request when it is older than a minute."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.last: StorageUsage | None = None
        self.problem = ""
        self._lock = threading.Lock()
        self._wanted = False
        self._thread: threading.Thread | None = None

    def get(self, fresh: float = FRESH_SECONDS) -> StorageUsage | None:
        """The last usage, without waiting; None before the first measurement has ended. Starts one if it is older than
        `fresh` seconds (later where measuring takes long)."""
        last = self.last
        is_old = last is None or (now() - last.at).total_seconds() > max(fresh, SHARE * last.seconds)
        if is_old and self._thread is None:
            self.measure()
        return last

    def measure(self) -> threading.Thread:
        """Measure in a thread; one at a time, and once more for requests made meanwhile."""
        with self._lock:
            self._wanted = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._measure, name="storage", daemon=True)
                self._thread.start()
            return self._thread

    def _measure(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                self._wanted = False
            try:
                self.last, self.problem = measure_storage(self.settings), ""
            except (SpeculoosError, OSError) as error:
                self.problem = str(error)


_monitors: dict[tuple[Path, str], StorageMonitor] = {}


def storage_monitor(settings: Settings) -> StorageMonitor:
    """The `StorageMonitor` of a home, shared by metrics and the Storage page."""
    return _monitors.setdefault((settings.home, settings.database_url), StorageMonitor(settings))


def rows_with_files(session: Session) -> Iterator[tuple[str, Any]]:
    """(kind, row) of every model, dataset and checkpoint."""
    for table, kind in KINDS.items():
        for row in session.scalars(select(table).order_by(table.created_at)):
            yield kind, row


def storage_item(settings: Settings, kind: str, row: Any) -> StorageItem:
    own_folder = settings.home / kind / row.id
    named_folder = settings.home / row.path if row.path else own_folder
    if not named_folder.is_relative_to(settings.home):
        return StorageItem(kind, row.id, row.name, total_bytes(named_folder), outside=True)
    folders = [own_folder] if named_folder.is_relative_to(own_folder) else [own_folder, named_folder]
    states = sum(total_bytes(path) for path in own_folder.glob(f"attempt-*/{STATE}*"))
    return StorageItem(kind, row.id, row.name, sum(map(total_bytes, folders)), states)

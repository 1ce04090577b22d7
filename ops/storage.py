"""What each thing costs: sizes of models, data sets, checkpoints, logs, uploads, copies, the database, and of what no
row names.

Counting walks the whole home, so it is done by one thread once in a while; everybody else reads the last result.
"""

import math
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from speculoos.errors import SpeculoosError
from speculoos.files import file_stats, total_bytes
from speculoos.settings import Settings
from tracking import db
from tracking.states import FINISHED, JobState
from tracking.stored import EXPORTS, KINDS
from tracking.tables import Job, JobLog, Run, RunStep, now

YOUNG = timedelta(days=1)
"""What changed lately is no leftover: someone may be making it."""
FRESH_SECONDS = 60.0
SHARE = 50
"""Counting takes at most about a fiftieth of the time."""
STATE = "state-"


@dataclass(frozen=True)
class StorageItem:
    """A row with files. `states` are the bytes of training states among them; `outside` that its files lie elsewhere,
    where they cost this home nothing."""

    kind: str
    id: str
    name: str
    bytes: int
    states: int = 0
    outside: bool = False


@dataclass(frozen=True)
class Leftover:
    """A file or folder of the home that no row names."""

    path: Path
    bytes: int
    changed: datetime


@dataclass(frozen=True)
class Survey:
    """What there is, as of `at`. `parts` are bytes by folder or other part; `counts` rows that grow with use."""

    at: datetime
    things: list[StorageItem]
    leftovers: list[Leftover]
    parts: dict[str, int]
    counts: dict[str, int]
    disk_free: int
    disk_total: int
    seconds: float = 0.0

    @property
    def used(self) -> int:
        """Bytes of everything in the home, and of the database."""
        return sum(self.parts.values())


def survey(settings: Settings) -> Survey:
    """Count everything now. Takes time where there are many files."""
    begun = time.monotonic()
    with db.reading(settings) as session:
        things = [thing(settings, kind, row) for kind, row in _rows(session)]
        counts = {t.__tablename__: session.scalar(select(func.count()).select_from(t)) or 0 for t in (Run, RunStep)}
        counts[JobLog.__tablename__] = session.scalar(select(func.count()).select_from(JobLog)) or 0
        parts = {"database": database_bytes(session)}
    left = leftovers(settings)
    for kind in KINDS.values():
        parts[kind] = sum(each.bytes for each in things if each.kind == kind and not each.outside)
    for part in ("logs", "uploads", EXPORTS, db.BACKUPS, "broker"):
        parts[part] = total_bytes(settings.home / part)
    parts["hidden_states"] = total_bytes(settings.hidden_states_folder)
    parts["trackers"] = total_bytes(settings.trackers_folder)
    parts["leftovers"] = sum(item.bytes for item in left)
    parts["logs"] -= sum(item.bytes for item in left if item.path.parent.name == "logs")  # counted once
    disk = shutil.disk_usage(settings.home)
    return Survey(now(), things, left, parts, counts, disk.free, disk.total, time.monotonic() - begun)


def leftovers(settings: Settings, at: datetime | None = None) -> list[Leftover]:
    """Files and folders of models, data sets, checkpoints and logs that belong to no row (half-made ones too, unless
    their job goes on), the largest first; nothing that changed within a day."""
    before = ((at or now()) - YOUNG).timestamp()
    with db.reading(settings) as session:
        known, active = _known(session)
    items = []
    for path in _entries(settings):
        owner = path.name.lstrip(".").partition(".")[0].partition("-")[0]
        half = path.name.startswith(".")
        if path.name in known or (owner in (active if half else known)):
            continue
        changed = newest(path)
        if changed < before:
            items.append(Leftover(path, total_bytes(path), datetime.fromtimestamp(changed, tz=now().tzinfo)))
    return sorted(items, key=lambda item: -item.bytes)


def resumable(state: str | None, ended: datetime | None, before: datetime | None) -> bool:
    """Whether a training of that job state still needs its states, here and in the store: it goes on, or a retry may,
    unless it ended `before`."""
    if state in (None, JobState.SUCCEEDED):
        return False
    return state not in FINISHED or not (before and ended and ended < before)


def newest(path: Path) -> float:
    """When anything in it was changed last, in seconds since the epoch."""
    try:
        own = path.lstat().st_mtime
    except OSError:
        return time.time()
    return max([own, *(entry.st_mtime for entry in file_stats(path))])


def database_file(settings: Settings) -> Path | None:
    """SQLite's file; None for a server."""
    url = db.database_url(settings)
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def database_bytes(session: Session) -> int:
    """How large the database is, its log included."""
    if session.get_bind().dialect.name == "postgresql":
        return session.scalar(sa.text("SELECT pg_database_size(current_database())")) or 0
    name = session.scalar(sa.text("SELECT file FROM pragma_database_list WHERE name = 'main'"))
    return sum(total_bytes(Path(f"{name}{ending}")) for ending in ("", "-wal", "-shm"))


class Surveys:
    """The last survey of a home, made anew by a thread when it is older than a minute and someone asks."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.last: Survey | None = None
        self.problem = ""
        self._lock = threading.Lock()
        self._requests = 0
        self._thread: threading.Thread | None = None

    def get(self, fresh: float = FRESH_SECONDS) -> Survey | None:
        """What is known now, at once; None before the first count has ended. What is older than `fresh` seconds is
        counted anew beside the caller; where that takes long, less often."""
        last = self.last
        age = (now() - last.at).total_seconds() if last else math.inf
        if not self._requests and age > max(fresh, SHARE * last.seconds if last else 0.0):
            self.count()
        return last

    def count(self) -> threading.Thread:
        """Count anew, beside the caller; one count at a time, and another one if things changed since it began."""
        with self._lock:
            self._requests += 1
            if self._thread is None or self._requests == 1:
                self._thread = threading.Thread(target=self._count, name="storage", daemon=True)
                self._thread.start()
            return self._thread

    def _count(self) -> None:
        while requests := self._requests:
            try:
                self.last, self.problem = survey(self.settings), ""
            except (SpeculoosError, OSError) as error:
                self.problem = str(error)
            with self._lock:
                self._requests = 0 if self._requests == requests else 1


_surveys: dict[tuple[Path, str], Surveys] = {}


def surveys_of(settings: Settings) -> Surveys:
    """The process-wide `Surveys` of a home: metrics and the Storage page look at the same count."""
    return _surveys.setdefault((settings.home, settings.database_url), Surveys(settings))


def _rows(session: Session) -> Iterator[tuple[str, Any]]:
    for table, kind in KINDS.items():
        for row in session.scalars(select(table).order_by(table.created_at)):
            yield kind, row


def thing(settings: Settings, kind: str, row: Any) -> StorageItem:
    """What one row's files cost."""
    own = settings.home / kind / row.id
    named = settings.home / row.path if row.path else own
    if not named.is_relative_to(settings.home):
        return StorageItem(kind, row.id, row.name, total_bytes(named), outside=True)
    folders = [own] if named.is_relative_to(own) else [own, named]
    states = sum(total_bytes(path) for path in own.glob(f"attempt-*/{STATE}*"))
    return StorageItem(kind, row.id, row.name, sum(map(total_bytes, folders)), states)


def _known(session: Session) -> tuple[set[str], set[str]]:
    """Names in the home that belong to rows, and ids whose half-made files a job still works on."""
    rows = [row for _, row in _rows(session)]
    known = {row.id for row in rows} | set(session.scalars(select(Job.id)))
    known |= {part for row in rows if row.path for part in Path(row.path).parts[-3:]}
    going_on = set(session.scalars(select(Job.id).where(Job.state.not_in(FINISHED))))
    return known, {row.id for row in rows if row.job_id in going_on}


def _entries(settings: Settings) -> Iterator[Path]:
    for kind in KINDS.values():
        yield from (settings.home / kind).glob("*")  # names that begin with a dot are among them
    yield from (path for path in (settings.home / "logs").glob("*.log*") if len(path.name.partition(".")[0]) == 32)

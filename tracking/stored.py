"""What of rows lies in the store (SPECULOOS_STORE), and where it is on this machine.

A row's `path` says where the machine that made its files has them, mostly inside its home. Another machine has them at
the same place of its own home once it fetched them: the home is a cache then. A machine knows by a folder's mark (see
speculoos.store) whether what it has is what the row means. Without a store every path is what the row says.
"""

import fcntl
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import delete as sql_delete
from sqlalchemy import select
from sqlalchemy.orm import Session

from speculoos.errors import SpeculoosError, Unavailable
from speculoos.settings import Settings
from speculoos.store import Store, StoredFolder, mark, marked, open_store, shown
from speculoos.sums import Sums
from tracking import db, places
from tracking.names import STARTER
from tracking.states import FINISHED
from tracking.tables import Base, Checkpoint, Dataset, Job, Stored, Table, now

log = logging.getLogger(__name__)
KINDS: dict[type[Table], str] = {Base: "models", Dataset: "datasets", Checkpoint: "checkpoints"}
UPLOADS, EXPORTS = "uploads", "exports"
SHIPPED = "starter_head"
"""Last part of the path of the head that every installation has."""
Installed = Callable[[str], Path | None]
"""Where this installation has the weights with that sum, if it came with them: see models.starter.installed."""


def of(session: Session, row_id: str) -> Stored | None:
    """What the store has of a row, or of a path by its id."""
    return session.get(Stored, row_id)


def keep(session: Session, kind: str, row_id: str, kept: StoredFolder) -> None:
    """Say that the store has a row's files."""
    session.merge(Stored(id=row_id, kind=kind, key=kept.key, bytes=kept.bytes, created_at=now()))


def forget(session: Session, row_id: str) -> None:
    """Say that the store has nothing of it any more."""
    session.execute(sql_delete(Stored).where(Stored.id == row_id))


def place(kind: str, row_id: str) -> str:
    """Where in the store the files of a row are."""
    return f"{kind}/{row_id}"


def path_id(settings: Settings, path: str | Path) -> str:
    """By what the store knows a file or folder that no row has, the same on every machine for one in a home."""
    return hashlib.sha256(places.stored(settings.home, str(path)).encode()).hexdigest()[:32]


def awaited_paths(session: Session, settings: Settings) -> set[str]:
    """Ids of the paths that jobs which are not over name."""
    found: list[str] = []
    for request in session.scalars(select(Job.request).where(Job.state.not_in(FINISHED))):
        places.each_path(request, found.append)
    return {path_id(settings, path) for path in found}


@dataclass(frozen=True)
class Files:
    """The files of rows on this machine. `kept` is always what `of` said of the row."""

    settings: Settings
    installed: Installed = lambda _: None

    @property
    def store(self) -> Store | None:
        return open_store(self.settings.store)

    def path(self, row: Any) -> Path:
        """Where a row's files are, or would be once they came."""
        own = Path(row.path)
        if self.store is None:
            return own
        if is_shipped(row):
            return self.installed(row.weights_sha256 if isinstance(row, Base) else row.sha256) or own
        if self._ours(own) or own.exists():
            return own
        return self.settings.home / KINDS[type(row)] / row.id

    def here(self, row: Any, kept: Stored | None) -> bool:
        """Whether this machine has them as the row means them."""
        at = self.path(row)
        if kept is None or is_shipped(row) or not self._ours(at):
            return at.exists()
        return marked(at) == kept.key

    def bring(self, row: Any, kept: Stored | None) -> Path:
        """Their folder, fetched if they are not here. Raises Unavailable when neither this machine nor the store has
        them, or the store does not answer."""
        at = self.path(row)
        if self.here(row, kept):
            return at
        if kept is None or self.store is None:
            hint = "" if is_shipped(row) else "Send the job again from the machine that has them."
            raise Unavailable(self._missing(row), hint)
        with _alone(at / ".lock"):
            if not self.here(row, kept):  # another process has just brought them
                self.store.get_folder(place(kept.kind, kept.id), kept.key, at)
        return at

    def local(self, row: Any) -> str:
        """`bring` for a row that belongs to no session any more, as text."""
        if self.store is None:
            return row.path
        with db.reading(self.settings) as session:
            kept = of(session, row.id)
        return str(self.bring(row, kept))

    def deliver(self, kind: str, row_id: str, folder: Path) -> StoredFolder:
        """Put a folder or file of this machine into the store, and mark it if it is the home's."""
        assert self.store is not None
        kept = self.store.put_folder(place(kind, row_id), folder, Sums.of(self.settings).of_file)
        if folder.is_dir() and self._ours(folder):
            mark(folder, kept.key)
        return kept

    def _missing(self, row: Any) -> str:
        if is_shipped(row):
            return f"This machine has no {STARTER} model with the weights this job means; run `make install` there."
        return f"The files of “{row.name}” are neither on this machine nor in the store {shown(self.settings.store)}."

    def _ours(self, path: Path) -> bool:
        return path.is_relative_to(self.settings.home)


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """One process of this machine at a time; the kernel lets go for one that is killed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def is_shipped(row: Any) -> bool:
    """Whether every installation brings the row's files: they never travel."""
    return getattr(row, "source", "") == STARTER or Path(row.path).name == SHIPPED


@dataclass(frozen=True)
class Remote:
    """A place in the store whose row is gone."""

    settings: Settings
    place: str

    def remove(self) -> int:
        """Remove what is there; returns its bytes. A store that is away keeps it until leftovers are cleaned up."""
        try:
            store = open_store(self.settings.store)
            return store.delete(self.place) if store else 0
        except SpeculoosError as error:
            log.warning("Not removed from the store yet: %s", error)
            return 0


def drop(session: Session, settings: Settings, row: Any) -> list[Remote]:
    """Forget a row's files in the store; returns what is to be removed there once that is committed."""
    kind = KINDS.get(type(row))
    if not (kind and settings.store):
        return []
    forget(session, row.id)
    exports = [Remote(settings, place(EXPORTS, row.id))] if isinstance(row, Checkpoint) else []
    return [Remote(settings, place(kind, row.id)), *exports]

"""Files of rows in the store (SPECULOOS_STORE) and on this machine.

A row's `path` is the location on the machine that created the files, usually inside its home. Another machine fetches
them to the same location in its own home, which then works as a cache. A folder's mark (see speculoos.store) tells
whether the files on this machine are those of the row. Without a store, `path` is used as it is.
"""

import fcntl
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import delete as sql_delete
from sqlalchemy import select
from sqlalchemy.orm import Session

from speculoos.checksums import ChecksumCache
from speculoos.errors import SpeculoosError, Unavailable
from speculoos.settings import Settings
from speculoos.store import Store, StoredFolder, hide_credentials, open_store, read_key, write_key
from tracking import db, path_columns
from tracking.names import STARTER
from tracking.states import FINISHED
from tracking.tables import Base, Checkpoint, Dataset, Job, Stored, Table, now

log = logging.getLogger(__name__)
KINDS: dict[type[Table], str] = {Base: "models", Dataset: "datasets", Checkpoint: "checkpoints"}
UPLOADS, EXPORTS = "uploads", "exports"
STARTER_DRAFT_FOLDER = "starter_head"  # folder name of the starter's draft, which is part of every installation
Installed = Callable[[str], Path | None]
"""Maps a checksum to the path of the installation's own weights, or None. See models.starter.installed."""


def stored_entry(session: Session, row_id: str) -> Stored | None:
    """The store's entry of a row, or of a path by its id; None if the store has no files of it."""
    return session.get(Stored, row_id)


def save_stored(session: Session, kind: str, row_id: str, folder: StoredFolder) -> None:
    session.merge(Stored(id=row_id, kind=kind, key=folder.key, bytes=folder.bytes, created_at=now()))


def delete_stored(session: Session, row_id: str) -> None:
    session.execute(sql_delete(Stored).where(Stored.id == row_id))


def store_prefix(kind: str, row_id: str) -> str:
    """The key prefix of a row's files in the store."""
    return f"{kind}/{row_id}"


def path_id(settings: Settings, path: str | Path) -> str:
    """Id in the store of a file or folder without a row; the same on every machine for a path inside the home."""
    return hashlib.sha256(path_columns.to_stored_path(settings.home, str(path)).encode()).hexdigest()[:32]


def awaited_paths(session: Session, settings: Settings) -> set[str]:
    """Ids of the paths in the requests of unfinished jobs."""
    paths: list[str] = []
    for request in session.scalars(select(Job.request).where(Job.state.not_in(FINISHED))):
        path_columns.map_paths(request, paths.append)
    return {path_id(settings, path) for path in paths}


@dataclass(frozen=True)
class RowFiles:
    """The files of rows on this machine. `entry` is the row's entry in the store."""

    settings: Settings
    installed: Installed = lambda _: None

    @property
    def store(self) -> Store | None:
        return open_store(self.settings.store)

    def path(self, row: Any) -> Path:
        """Location of a row's files on this machine, also before they are fetched."""
        recorded_path = Path(row.path)
        if self.store is None:
            return recorded_path
        if is_shipped(row):
            return self.installed(row.weights_sha256 if isinstance(row, Base) else row.sha256) or recorded_path
        if self._in_home(recorded_path) or recorded_path.exists():
            return recorded_path
        return self.settings.home / KINDS[type(row)] / row.id

    def is_local(self, row: Any, entry: Stored | None) -> bool:
        """Whether this machine has the files of the row."""
        path = self.path(row)
        if entry is None or is_shipped(row) or not self._in_home(path):
            return path.exists()
        return read_key(path) == entry.key

    def download(self, row: Any, entry: Stored | None) -> Path:
        """The path of the files, fetched from the store if necessary. Raises Unavailable if they are on neither."""
        path = self.path(row)
        if self.is_local(row, entry):
            return path
        if is_shipped(row):
            starter = f"{STARTER} model with the weights this job means"
            raise Unavailable(f"This machine has no {starter}; run `make install` there.")
        if entry is None or self.store is None:
            store = hide_credentials(self.settings.store)
            where = f"neither on this machine nor in the store {store}"
            raise Unavailable(f"The files of “{row.name}” are {where}; send the job again from the machine with them.")
        path.mkdir(parents=True, exist_ok=True)
        with (path / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it if the process is killed
            if not self.is_local(row, entry):  # another process may have fetched them meanwhile
                self.store.get_folder(store_prefix(entry.kind, entry.id), entry.key, path)
        return path

    def local(self, row: Any) -> str:
        """Like `download`, for a row without a session; returns a str."""
        if self.store is None:
            return row.path
        with db.reading(self.settings) as session:
            entry = stored_entry(session, row.id)
        return str(self.download(row, entry))

    def upload(self, kind: str, row_id: str, folder: Path) -> StoredFolder:
        """Upload a folder or file to the store, and mark the folder if it is inside the home."""
        assert self.store is not None
        uploaded = self.store.put_folder(store_prefix(kind, row_id), folder, ChecksumCache.of(self.settings).of_file)
        if folder.is_dir() and self._in_home(folder):
            write_key(folder, uploaded.key)
        return uploaded

    def _in_home(self, path: Path) -> bool:
        return path.is_relative_to(self.settings.home)


def is_shipped(row: Any) -> bool:
    """Whether the row's files are part of every installation, so that they are never transferred."""
    return getattr(row, "source", "") == STARTER or Path(row.path).name == STARTER_DRAFT_FOLDER


@dataclass(frozen=True)
class RemoteFiles:
    """Files in the store whose row was deleted."""

    settings: Settings
    prefix: str

    def remove(self) -> int:
        """Delete the files; returns their bytes. If the store is unavailable, a later clean-up deletes them."""
        try:
            store = open_store(self.settings.store)
            return store.delete(self.prefix) if store else 0
        except SpeculoosError as error:
            log.warning("Not removed from the store yet: %s", error)
            return 0


def drop_stored(session: Session, settings: Settings, row: Any) -> list[RemoteFiles]:
    """Delete the store's entry of a row; returns the files to remove from the store after the commit."""
    kind = KINDS.get(type(row))
    if not (kind and settings.store):
        return []
    delete_stored(session, row.id)
    exports = [RemoteFiles(settings, store_prefix(EXPORTS, row.id))] if isinstance(row, Checkpoint) else []
    return [RemoteFiles(settings, store_prefix(kind, row.id)), *exports]

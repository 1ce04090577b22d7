"""Files of a job between its machine and the store: what goes in comes here before the work, what comes out goes there
before it is published. So a row that is ready can be used on every machine, and a kill between the two loses nothing:
what was delivered is known by its content. Without a store nothing moves.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from formats.store import StoredExport, deliver_export
from models import starter
from speculoos.reporting import Reporter, check_stop
from speculoos.settings import Settings
from speculoos.store import Store, StoreAway, StoredFolder, files_of
from speculoos.sums import file_sha256
from tracking import db, stored
from tracking.stored import KINDS, UPLOADS, Files, place
from tracking.tables import Stored, Table

PATIENCE = 600.0
"""Seconds a job waits for a store that does not answer, before it fails and keeps what it made for a retry."""
PAUSE = 5.0
GIVEN = "given"
"""What a folder is called here whose path ends in `..`: nothing may be fetched beside its place."""
Given = TypeVar("Given")


class JobFiles:
    """The files of one attempt's rows."""

    def __init__(self, settings: Settings, reporter: Reporter):
        self.settings, self.reporter = settings, reporter
        self.files = Files(settings, starter.installed)

    @property
    def store(self) -> Store | None:
        return self.files.store

    def bring(self, row: Any) -> Any:
        """The row, its `path` where its files are on this machine; it must belong to no session."""
        if self.store is None:
            return row
        kept = self._kept(row.id)
        if not self.files.here(row, kept):
            self.reporter.log(f"Fetching the files of “{row.name}” from the store.")
        row.path = str(self._patiently(lambda: self.files.bring(row, kept)))
        return row

    def bring_output(self, table: type[Table], row_id: str, folder: Path) -> None:
        """What the store has of a row this job goes on with, where the job will write."""
        if self.store and (kept := self._kept(row_id)) and stored.marked(folder) != kept.key:
            store, key = self.store, kept.key
            self._patiently(lambda: store.get_folder(place(KINDS[table], row_id), key, folder))

    def bring_path(self, path: str, into: Path | None = None) -> str:
        """A file or folder that a request names, on this machine: where it lay when it was asked for, or a copy (a
        folder's `into` that one, all else with the uploads)."""
        kept = self._kept(stored.path_id(self.settings, path)) if self.store and path else None
        if kept is None:
            return path
        at = place(UPLOADS, kept.id)
        listed = self._patiently(lambda: self.files.store.listed(at, kept.key))
        if _is_same(Path(path), listed):
            return path
        shelf = self.settings.home / UPLOADS / kept.id
        name = Path(path).name
        copy, is_file = shelf / (name if name != ".." else GIVEN), list(listed) == [name]
        target = shelf if is_file else (into or copy)
        self._patiently(lambda: self.files.store.get_folder(at, kept.key, target))
        return str(copy if is_file else target)

    def forget_path(self, path: str, used: str) -> None:
        """What was brought for this job alone is not needed any more, here and in the store."""
        if self.store is None:
            return
        path_id = stored.path_id(self.settings, path)
        with db.writing(self.settings) as session:
            stored.forget(session, path_id)
        stored.Remote(self.settings, place(UPLOADS, path_id)).remove()
        if used != path:
            shutil.rmtree(self.settings.home / UPLOADS / path_id, ignore_errors=True)

    def deliver(self, table: type[Table], row_id: str, folder: str) -> StoredFolder | None:
        """Put a row's files into the store, to be published with what is returned; None where nothing travels."""
        if self.store is None or table not in KINDS or Path(folder) in (starter.starter_path(), starter.HEAD):
            return None
        return self._patiently(lambda: self.files.deliver(KINDS[table], row_id, Path(folder)))

    def deliver_export(self, checkpoint_id: str, source: str, export: StoredExport) -> bool:
        """Put a zip for download where the pages find it; False where nothing travels."""
        if (store := self.store) is None:
            return False
        self._patiently(lambda: deliver_export(store, checkpoint_id, source, export))
        return True

    def _kept(self, row_id: str) -> Stored | None:
        with db.reading(self.settings) as session:
            return stored.of(session, row_id)

    def _patiently(self, move: Callable[[], Given]) -> Given:
        """Try until the store answers; hours of work must not fail by a minute without it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return move()
            except StoreAway as error:
                if time.monotonic() > deadline:
                    raise
                self.reporter.log(f"{error} Trying again.", "warning")
            check_stop(self.reporter)
            time.sleep(PAUSE)


def _is_same(path: Path, listed: dict[str, dict[str, Any]]) -> bool:
    """Whether a local file, or folder by its names and sizes, is what was put."""
    found = files_of(path)
    if {name: file.stat().st_size for name, file in found.items()} != {n: e["bytes"] for n, e in listed.items()}:
        return False
    return path.is_dir() or all(file_sha256(file) == listed[name]["sha256"] for name, file in found.items())

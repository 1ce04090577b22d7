"""Transfers a job's files between its machine and the store: inputs are downloaded before the work, outputs uploaded
before their rows are updated. So a ready row is usable on every machine, and an interrupted upload is resumed, since
files are identified by content. Without a store nothing is transferred.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from formats.store import StoredExport, upload_export
from models import starter
from speculoos.checksums import file_sha256
from speculoos.reporting import Reporter, check_stop
from speculoos.settings import Settings
from speculoos.store import Store, StoredFolder, StoreUnavailable, files_to_upload, read_key
from tracking import db, stored
from tracking.stored import KINDS, UPLOADS, RowFiles, store_prefix
from tracking.tables import Stored, Table

STORE_TIMEOUT = 600.0
"""Seconds a job retries an unreachable store before it fails; its results are kept for a retry of the job."""
PAUSE = 5.0
DOTDOT_NAME = "folder"
"""Local name of a folder whose path ends in `..`, so that nothing is written outside of the upload folder."""
T = TypeVar("T")


class JobFiles:
    """The files of one attempt's rows."""

    def __init__(self, settings: Settings, reporter: Reporter):
        self.settings, self.reporter = settings, reporter
        self.files = RowFiles(settings, starter.installed)

    @property
    def store(self) -> Store | None:
        return self.files.store

    def download(self, row: Any) -> Any:
        """Download the files of a row and set its `path` to them. The row must be detached from its session."""
        if self.store is None:
            return row
        stored_row = self._stored(row.id)
        if not self.files.is_local(row, stored_row):
            self.reporter.log(f"Downloading the files of “{row.name}” from the store.")
        row.path = str(self._retry(lambda: self.files.download(row, stored_row)))
        return row

    def download_output(self, table: type[Table], row_id: str, folder: Path) -> None:
        """Download the stored files of an output row that this job continues, into the folder it writes."""
        if self.store and (stored_row := self._stored(row_id)) and read_key(folder) != stored_row.key:
            source = store_prefix(KINDS[table], row_id)
            self._retry(lambda: self.files.store.get_folder(source, stored_row.key, folder))

    def download_path(self, path: str, into: Path | None = None) -> str:
        """Local path of a file or folder that a request names: the original path if its content matches, else a copy
        (folders: `into` if set; otherwise in the uploads folder)."""
        stored_row = self._stored(stored.path_id(self.settings, path)) if self.store and path else None
        if stored_row is None:
            return path
        source = store_prefix(UPLOADS, stored_row.id)
        listed = self._retry(lambda: self.files.store.listed(source, stored_row.key))
        if _is_same(Path(path), listed):
            return path
        folder = self.settings.home / UPLOADS / stored_row.id
        name = Path(path).name
        copy, is_file = folder / (name if name != ".." else DOTDOT_NAME), list(listed) == [name]
        target = folder if is_file else (into or copy)
        self._retry(lambda: self.files.store.get_folder(source, stored_row.key, target))
        return str(copy if is_file else target)

    def delete_uploaded_input(self, path: str, used: str) -> None:
        """Delete an input that was uploaded for this job only, from the store and from this machine."""
        if self.store is None:
            return
        path_id = stored.path_id(self.settings, path)
        with db.writing(self.settings) as session:
            stored.delete_stored(session, path_id)
        stored.RemoteFiles(self.settings, store_prefix(UPLOADS, path_id)).remove()
        if used != path:
            shutil.rmtree(self.settings.home / UPLOADS / path_id, ignore_errors=True)

    def upload(self, table: type[Table], row_id: str, folder: str) -> StoredFolder | None:
        """Upload a row's files. Returns the stored folder for the row, or None if nothing is uploaded."""
        if self.store is None or table not in KINDS or Path(folder) in (starter.starter_path(), starter.STARTER_HEAD):
            return None
        return self._retry(lambda: self.files.upload(KINDS[table], row_id, Path(folder)))

    def upload_export(self, checkpoint_id: str, source: str, export: StoredExport) -> bool:
        """Upload a zip file for download from the pages; False without a store."""
        if (store := self.store) is None:
            return False
        self._retry(lambda: upload_export(store, checkpoint_id, source, export))
        return True

    def _stored(self, row_id: str) -> Stored | None:
        with db.reading(self.settings) as session:
            return stored.stored_entry(session, row_id)

    def _retry(self, transfer: Callable[[], T]) -> T:
        """Retry until the store is reachable: a short outage must not fail hours of work."""
        deadline = time.monotonic() + STORE_TIMEOUT
        while True:
            try:
                return transfer()
            except StoreUnavailable as error:
                if time.monotonic() > deadline:
                    raise
                self.reporter.log(f"{error} Retrying.", "warning")
            check_stop(self.reporter)
            time.sleep(PAUSE)


def _is_same(path: Path, listed: dict[str, dict[str, Any]]) -> bool:
    """Whether a local file (by checksum) or folder (by names and sizes) matches the stored list."""
    files = files_to_upload(path)
    if {name: file.stat().st_size for name, file in files.items()} != {n: e["bytes"] for n, e in listed.items()}:
        return False
    return path.is_dir() or all(file_sha256(file) == listed[name]["sha256"] for name, file in files.items())

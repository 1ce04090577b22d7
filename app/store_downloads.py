"""Downloads files that a page needs from the shared store in threads, while the page shows a notice."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sqlalchemy.orm import Session

from app.i18n import t
from models.starter import installed
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import stored
from tracking.stored import RowFiles

AT_ONCE = 2
_pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="store-downloads")
_downloads: dict[str, Future[Any]] = {}
_lock = threading.Lock()


def files_of(settings: Settings) -> RowFiles:
    """The local files of rows."""
    return RowFiles(settings, installed)


def download_notice(session: Session, settings: Settings, *rows: Any) -> str:
    """A message that files of these rows are being downloaded, or why the download failed; "" if all files are local.
    Starts missing downloads; the next call after a failure retries."""
    if not settings.store:
        return ""
    files = files_of(settings)
    missing = [
        (row, stored_row) for row in rows if not files.is_local(row, stored_row := stored.stored_entry(session, row.id))
    ]
    with _lock:
        for row in rows:
            if row.id not in {other.id for other, _ in missing}:
                _downloads.pop(row.id, None)
    messages = [_state(files, row, stored_row) for row, stored_row in missing]
    return messages[0] if messages else ""


def signature() -> str:
    """Changes when a download starts or ends, so that waiting pages are redrawn."""
    with _lock:
        return ",".join(f"{row_id[:8]}{int(future.done())}" for row_id, future in sorted(_downloads.items()))


def _state(files: RowFiles, row: Any, stored_row: Any) -> str:
    with _lock:
        future = _downloads.get(row.id)
        if future is not None and future.done():
            del _downloads[row.id]
            if isinstance(error := future.exception(), SpeculoosError):
                return str(error)
            if error:
                return t("Its files could not be downloaded from the store: {error}.", error=error)
            future = None
        if future is None:
            _downloads[row.id] = _pool.submit(files.download, row, stored_row)
    return t("The files of “{name}” are being downloaded from the store.", name=row.name)

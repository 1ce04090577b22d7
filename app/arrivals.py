"""Files that a page needs and only the store has: brought by a thread, while the page says that they are coming."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sqlalchemy.orm import Session

from models.starter import installed
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import stored
from tracking.stored import Files

AT_ONCE = 2
_pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="arrivals")
_coming: dict[str, Future[Any]] = {}
_lock = threading.Lock()


def files_of(settings: Settings) -> Files:
    """Where the files of rows are on this machine."""
    return Files(settings, installed)


def awaited(session: Session, settings: Settings, *rows: Any) -> str:
    """In one sentence, that files of these rows are on their way, or why they do not come; "" when all are here.
    Whoever asks again after a failure starts another try."""
    if not settings.store:
        return ""
    files = files_of(settings)
    away = [(row, kept) for row in rows if not files.here(row, kept := stored.of(session, row.id))]
    with _lock:
        for row in rows:
            if row.id not in {each.id for each, _ in away}:
                _coming.pop(row.id, None)
    said = [_state(files, row, kept) for row, kept in away]
    return said[0] if said else ""


def signature() -> str:
    """Changes when files begin to come or have come: pages that wait for some are drawn again then."""
    with _lock:
        return ",".join(f"{row_id[:8]}{int(future.done())}" for row_id, future in sorted(_coming.items()))


def _state(files: Files, row: Any, kept: Any) -> str:
    with _lock:
        future = _coming.get(row.id)
        if future is not None and future.done():
            del _coming[row.id]
            if error := future.exception():
                return str(error) if isinstance(error, SpeculoosError) else f"Its files do not come: {error}."
            future = None
        if future is None:
            _coming[row.id] = _pool.submit(files.bring, row, kept)
    return f"The files of “{row.name}” are coming from the store; they are shown once they are here."

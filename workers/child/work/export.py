"""Job `export`: a checkpoint in a server's format, checked and zipped for download."""

from typing import Any

from formats.export import build
from formats.store import exports_folder, source_of, store
from models.base import load_base
from speculoos.files import temporary_folder
from tracking.tables import Base, Checkpoint
from workers.ask.requests import Export
from workers.child.context import Context


def run(request: Export, context: Context) -> dict[str, Any]:
    """Write, check and zip it; the zip and what the check found lie under exports/ of the home."""
    row = context.usable(Checkpoint, request.checkpoint_id)
    base_row = context.usable(Base, row.base_id)
    base = load_base(base_row.path, "float32", "cpu", context.known(base_row), context.sums)
    kept, source = exports_folder(context.settings.home, row.id), source_of(row.path)
    kept.mkdir(parents=True, exist_ok=True)
    with temporary_folder(kept) as folder:
        report = build(row.path, base, request.format, folder / "export", context)
        made = store(kept, request.format, folder / "export", source, report.to_json())
    return {"checkpoint_id": row.id, "format": request.format, "bytes": made.bytes, "passed": report.passed}

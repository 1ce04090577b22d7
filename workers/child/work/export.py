"""Job `export`: a checkpoint in a server's format, compared with what that server reads, zipped for download."""

from typing import Any

from formats.export import build
from formats.facts import Facts
from formats.store import exports_folder, make_room, note, source_of
from models.base import load_base
from tracking.tables import Base, Checkpoint
from workers.ask.requests import Export
from workers.child.context import Context


def run(request: Export, context: Context) -> dict[str, Any]:
    """Write, validate and zip it; zip and report lie under exports/ of the home. On the processor, beside what else
    goes on. Fails with the reason when the validation does."""
    row = context.usable(Checkpoint, request.checkpoint_id)
    base_row = context.usable(Base, row.base_id)
    source = source_of(row.path)
    base = load_base(base_row.path, "float32", "cpu", context.known(base_row), context.sums)
    archive = make_room(exports_folder(context.settings.home, row.id), request.format)
    report = build(row.path, base, request.format, archive, context, Facts.of(base_row, row.name))
    made = note(archive, source, report.to_json())
    return {"checkpoint_id": row.id, "format": request.format, "bytes": made.bytes, "figures": report.figures}

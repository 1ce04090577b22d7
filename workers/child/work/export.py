"""Job `export`: writes a checkpoint in a server's format, validates it, and zips it for download."""

import shutil
from typing import Any

from formats.export import build_export, check_export
from formats.facts import CardFacts
from formats.store import checkpoint_state, exports_folder, store_export
from models import archive
from models.base import load_base
from tracking import queries
from tracking.evaluations import measurements
from tracking.tables import Base, Checkpoint
from workers.child.context import JobContext
from workers.jobs.requests import Export


def run(request: Export, context: JobContext) -> dict[str, Any]:
    """Write, validate and zip the checkpoint; zip and report are stored under exports/ of the home. Runs on the CPU,
    next to other jobs. Fails if the validation fails."""
    row = context.input_with_files(Checkpoint, request.checkpoint_id)
    base_row = context.input_with_files(Base, row.base_id)
    check_export(row.path, base_row.path, request.format)
    archive.check_checkpoint_files(row.path, row.name, row.sha256, context.sums)
    source, folder = checkpoint_state(row.path), exports_folder(context.settings.home, row.id)
    base = load_base(base_row.path, "float32", "cpu", context.known(base_row), context.sums)
    temporary = folder / f".{context.job_id}"
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed attempt
    try:
        # the folder in the zip has the name of the downloaded file
        name = archive.archive_name(base_row.name, row.name).removesuffix(".zip")
        zipped = temporary / f"{name}-{request.format}.zip"
        with context.session() as session:
            facts = CardFacts.of(base_row, row.name, measurements(queries.evaluations(session, row.id)))
        report = build_export(row.path, base, request.format, zipped, context, facts)
        stored = store_export(zipped, folder / f"{request.format}.zip", source, report.to_json())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    result = {"checkpoint_id": row.id, "format": request.format, "bytes": stored.bytes, "figures": report.figures}
    if not context.files.deliver_export(row.id, source, stored):
        return result
    return {**result, "source": source, "report": report.to_json()}  # for pages on machines without the zip

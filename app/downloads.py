"""Download routes: a checkpoint as a zip in the native or a server's format, a dataset as one JSONL file, and the
leaderboard (the view of the query) and an experiment as CSV. A zip is written once, so an interrupted download can be
resumed; a dataset is streamed from its shards. URLs contain ids, never paths."""

import threading
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response, StreamingResponse

from app.pages import experiments
from app.store_downloads import files_of
from app.views import leaderboard
from app.views.manage import row as find_row
from formats import OWN
from formats.store import checkpoint_state, exports_folder, fetch_export, store_export, stored_exports
from models import archive, data_export
from models.archive import archive_name
from models.starter import STARTER_HEAD
from speculoos.checksums import ChecksumCache
from speculoos.errors import Conflict, NotFound
from speculoos.files import portable_name
from speculoos.redaction import known_secrets
from speculoos.settings import Settings
from speculoos.store import open_store
from tracking.db import reading
from tracking.leaderboard import LeaderboardView
from tracking.queries import must_be_ready
from tracking.tables import Base, Checkpoint, Dataset, Experiment

MOST_ROWS = 100_000  # maximum number of rows of a CSV file
REVALIDATE = {"Cache-Control": "private, no-cache"}
"""Revalidated on every request; a browser can still resume a partial download."""


def routes(settings: Settings) -> APIRouter:
    """The routes of files under `/api`."""
    router, writing = APIRouter(prefix="/api"), {}

    @router.get("/checkpoints/{checkpoint_id}/download")
    def download(checkpoint_id: str) -> FileResponse:
        return export(checkpoint_id, OWN)

    @router.get("/checkpoints/{checkpoint_id}/exports/{name}")
    def export(checkpoint_id: str, name: str) -> FileResponse:
        folder, filename = checkpoint_files(settings, checkpoint_id)
        exports, source = exports_folder(settings.home, checkpoint_id), checkpoint_state(folder)
        export = stored_exports(exports, source).get(name)
        if export is None and name == OWN:
            # concurrent requests for the same zip wait for one writer; others do not wait
            with writing.setdefault(checkpoint_id, threading.Lock()):
                if (export := stored_exports(exports, source).get(name)) is None:
                    written = archive.write_zip(folder, exports / f".{OWN}.zip")
                    export = store_export(written, exports / f"{OWN}.zip", source, {})
        if export is None and settings.store:
            export = fetch_export(open_store(settings.store), exports, checkpoint_id, source, name)
        if export is None:
            raise NotFound("This download does not exist yet or is outdated. Create it on the draft's page.")
        filename = filename if name == OWN else f"{filename.removesuffix('.zip')}-{name}.zip"
        return FileResponse(export.path, media_type="application/zip", filename=filename, headers=REVALIDATE)

    @router.get("/datasets/{dataset_id}/{form}")
    def dataset(dataset_id: str, form: str) -> StreamingResponse:
        with reading(settings) as session:
            data = find_row(session, Dataset, "dataset", dataset_id)
            must_be_ready(data)
        lines = data_export.export_lines(local_folder(settings, data, settings.home / "datasets"), form)
        filename = data_export.file_name(data.name)
        headers = {**REVALIDATE, "Content-Disposition": f'attachment; filename="{filename}"'}
        return StreamingResponse(data_export.chunks(lines), media_type="application/jsonl", headers=headers)

    @router.get("/evaluations.csv")
    def evaluations_csv(request: Request) -> Response:
        view = LeaderboardView.of(request.query_params)
        with reading(settings) as session:
            rows = list(session.scalars(view.select().limit(MOST_ROWS)))
            text = leaderboard.as_csv(rows, leaderboard.names_of(session, rows))
        return as_csv_file(text, "evaluations.csv")

    @router.get("/experiments/{experiment_id}.csv")
    def experiment_csv(experiment_id: str) -> Response:
        with reading(settings) as session:
            row = find_row(session, Experiment, "experiment", experiment_id)
            text = experiments.as_csv(session, row, settings.home, known_secrets(settings))
            return as_csv_file(text, f"{portable_name(row.name.lower()) or 'experiment'}.csv")

    return router


def local_folder(settings: Settings, row: Dataset | Checkpoint, *roots: Path) -> Path:
    """The folder of a row's files. Raises NotFound if they are missing or outside of `roots`."""
    folder = Path(files_of(settings).local(row)).resolve()
    if any(folder.is_relative_to(root.resolve()) for root in roots):
        return folder
    raise NotFound(f"The files of “{row.name}” are outside the home folder and cannot be downloaded.")


def checkpoint_files(settings: Settings, checkpoint_id: str) -> tuple[Path, str]:
    """The checkpoint's folder and the zip's file name. Raises NotFound for an unknown id or missing files, Conflict for
    an unfinished checkpoint, Damaged if its checksums do not match."""
    with reading(settings) as session:
        checkpoint = find_row(session, Checkpoint, "draft", checkpoint_id)
        base = session.get_one(Base, checkpoint.base_id)
    if checkpoint.state != "ready":
        raise Conflict(f"The draft “{checkpoint.name}” is not finished; wait for its job.")
    folder = local_folder(settings, checkpoint, settings.home / "checkpoints", STARTER_HEAD)
    archive.check_checkpoint_files(folder, checkpoint.name, checkpoint.sha256, ChecksumCache.of(settings))
    return folder, archive_name(base.name, checkpoint.name)


def as_csv_file(text: str, name: str) -> Response:
    """CSV that spreadsheets read as UTF-8, saved as a file and not cached."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(text.encode("utf-8-sig"), media_type="text/csv; charset=utf-8", headers=headers)

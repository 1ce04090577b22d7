"""Downloads over our own routes: a checkpoint as one zip, ours or in a server's format, and a data set as one JSONL
file. A zip is written once, so a download that broke off can be continued; a data set is read from its shards while it
is sent. Addresses are ids, never paths."""

import threading
from collections.abc import Iterator
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, StreamingResponse

from app.arrivals import files_of
from formats import OWN
from formats.store import StoredExport, exports_folder, fetch_export, source_of, store_export, stored_exports
from models import archive, data_export
from models.archive import archive_name
from models.starter import HEAD
from speculoos.errors import Conflict, NotFound
from speculoos.settings import Settings
from speculoos.store import open_store
from speculoos.sums import Sums
from tracking.db import reading
from tracking.queries import must_be_ready
from tracking.tables import Base, Checkpoint, Dataset

KEEP_OUT = {"Cache-Control": "private, no-cache"}
"""Asked for anew each time; a browser may still go on with a part it has."""


def routes(settings: Settings) -> APIRouter:
    """GET /api/checkpoints/{id}/download, /api/checkpoints/{id}/exports/{format} and /api/datasets/{id}/{format}."""
    router, writing = APIRouter(prefix="/api"), {}

    @router.get("/checkpoints/{checkpoint_id}/download")
    def download(checkpoint_id: str) -> FileResponse:
        return export(checkpoint_id, OWN)

    @router.get("/checkpoints/{checkpoint_id}/exports/{name}")
    def export(checkpoint_id: str, name: str) -> FileResponse:
        folder, filename = checkpoint_files(settings, checkpoint_id)
        exports, source = exports_folder(settings.home, checkpoint_id), source_of(folder)
        export = stored_exports(exports, source).get(name)
        if export is None and name == OWN:
            # who asks for the same zip meanwhile gets the one that is being written; others do not wait
            with writing.setdefault(checkpoint_id, threading.Lock()):
                export = stored_exports(exports, source).get(name) or own_zip(exports, folder, source)
        if export is None and settings.store:
            export = fetch_export(open_store(settings.store), exports, checkpoint_id, source, name)
        if export is None:
            raise NotFound("This download is not made yet, or was made of an older state; make it on its page.")
        filename = filename if name == OWN else f"{filename.removesuffix('.zip')}-{name}.zip"
        return FileResponse(export.path, media_type="application/zip", filename=filename, headers=KEEP_OUT)

    @router.get("/datasets/{dataset_id}/{form}")
    def dataset(dataset_id: str, form: str) -> StreamingResponse:
        folder, filename = dataset_files(settings, dataset_id)
        lines = data_export.export_lines(folder, form)
        headers = {**KEEP_OUT, "Content-Disposition": f'attachment; filename="{filename}"'}
        return StreamingResponse(data_export.chunks(lines), media_type="application/jsonl", headers=headers)

    return router


def dataset_files(settings: Settings, dataset_id: str) -> tuple[Path, str]:
    """The data set's folder, checked to lie in this home, and the name of its file.

    Raises NotFound for an unknown id or missing files, Conflict for one that is not finished.
    """
    with reading(settings) as rows:
        data = rows.get(Dataset, dataset_id)
        if data is None:
            raise NotFound("This data set is gone; it was deleted, or the address is wrong.")
        must_be_ready(data)
    folder = Path(files_of(settings).local(data)).resolve()
    if not folder.is_relative_to((settings.home / "datasets").resolve()):
        raise NotFound(f"The files of “{data.name}” lie outside of this home, so they are not served.")
    return folder, data_export.file_name(data.name)


def own_zip(exports: Path, folder: Path, source: str) -> StoredExport:
    """Our own format: the checkpoint's folder as it is."""
    return store_export(archive.write_zip(folder, exports / f".{OWN}.zip"), exports / f"{OWN}.zip", source, {})


def checkpoint_files(settings: Settings, checkpoint_id: str) -> tuple[Path, str]:
    """The checkpoint's folder, checked to lie in a store of ours, and the zip's file name.

    Raises NotFound for an unknown id or missing files, Conflict for one that is not finished, Damaged for one whose
    sums do not hold: what is given away must be what was trained.
    """
    with reading(settings) as rows:
        checkpoint = rows.get(Checkpoint, checkpoint_id)
        if checkpoint is None:
            raise NotFound("This checkpoint is gone; it was deleted, or the address is wrong.")
        base = rows.get_one(Base, checkpoint.base_id)
    if checkpoint.state != "ready":
        raise Conflict(f"The checkpoint “{checkpoint.name}” is not finished; wait for its job.")
    folder = Path(files_of(settings).local(checkpoint)).resolve()
    if not any(folder.is_relative_to(root) for root in stores(settings)):
        raise NotFound(f"The files of “{checkpoint.name}” lie outside of this home, so they are not served.")
    archive.check(folder, checkpoint.name, checkpoint.sha256, Sums.of(settings))
    return folder, archive_name(base.name, checkpoint.name)


def stores(settings: Settings) -> Iterator[Path]:
    """Folders that checkpoints may be served from: the home's, and that of the head the installation came with."""
    yield (settings.home / "checkpoints").resolve()
    yield HEAD

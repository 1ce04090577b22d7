"""Downloads over our own routes: a checkpoint as one zip, made while it is sent. Addresses are ids, never paths."""

from collections.abc import Iterator
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from models import archive
from models.archive import archive_name, stream_zip
from models.starter import HEAD
from speculoos.errors import Conflict, NotFound
from speculoos.settings import Settings
from speculoos.sums import Sums
from tracking.db import reading
from tracking.tables import Base, Checkpoint


def routes(settings: Settings) -> APIRouter:
    """GET /api/checkpoints/{id}/download."""
    router = APIRouter(prefix="/api")

    @router.get("/checkpoints/{checkpoint_id}/download")
    def download(checkpoint_id: str) -> StreamingResponse:
        folder, name = checkpoint_files(settings, checkpoint_id)
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return StreamingResponse(stream_zip(folder), media_type="application/zip", headers=headers)

    return router


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
    folder = Path(checkpoint.path).resolve()
    if not any(folder.is_relative_to(store) for store in stores(settings)):
        raise NotFound(f"The files of “{checkpoint.name}” lie outside of this home, so they are not served.")
    archive.check(folder, checkpoint.name, checkpoint.sha256, Sums.of(settings))
    return folder, archive_name(base.name, checkpoint.name)


def stores(settings: Settings) -> Iterator[Path]:
    """Folders that checkpoints may be served from: the home's, and that of the head the installation came with."""
    yield (settings.home / "checkpoints").resolve()
    yield HEAD

"""An experiment taken away: `/api/experiments/{id}.json` and `.csv`."""

from fastapi import APIRouter
from fastapi.responses import Response
from sqlalchemy.orm import Session

from app.evaluation_files import as_file
from app.views import experiment_export
from speculoos.errors import NotFound
from speculoos.redaction import secrets
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Experiment


def routes(settings: Settings) -> APIRouter:
    """GET /api/experiments/{id}.json and GET /api/experiments/{id}.csv."""
    router = APIRouter(prefix="/api")

    @router.get("/experiments/{experiment_id}.json")
    def as_json(experiment_id: str) -> Response:
        with reading(settings) as session:
            row = found(session, experiment_id)
            text = experiment_export.as_json(session, row, settings.home, secrets(settings))
            return as_file(text.encode(), "application/json", f"{file_name(row)}.json")

    @router.get("/experiments/{experiment_id}.csv")
    def as_csv(experiment_id: str) -> Response:
        with reading(settings) as session:
            row = found(session, experiment_id)
            text = experiment_export.as_csv(session, row, settings.home, secrets(settings))
            return as_file(text.encode("utf-8-sig"), "text/csv; charset=utf-8", f"{file_name(row)}.csv")

    return router


def found(session: Session, experiment_id: str) -> Experiment:
    """The row. Raises NotFound."""
    row = session.get(Experiment, experiment_id[:64])
    if row is None:
        raise NotFound("This experiment is gone; it was deleted, or the address is wrong.")
    return row


def file_name(row: Experiment) -> str:
    """Its name in letters, digits and dashes, as a header may hold it."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in row.name.lower())
    return "-".join(filter(None, plain.split("-"))) or "experiment"

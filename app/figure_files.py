"""Export routes: the leaderboard as `/api/evaluations.csv` with the view of the query, and an experiment as
`/api/experiments/{id}.csv`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sqlalchemy.orm import Session

from app.views import experiment_export, leaderboard
from speculoos.errors import NotFound
from speculoos.redaction import known_secrets
from speculoos.settings import Settings
from tracking.db import reading
from tracking.leaderboard import LeaderboardView
from tracking.tables import Experiment

MOST = 100_000
"""Maximum number of rows of a file."""
CSV = "text/csv; charset=utf-8"


def routes(settings: Settings) -> APIRouter:
    """GET /api/evaluations.csv, GET /api/experiments/{id}.csv."""
    router = APIRouter(prefix="/api")

    @router.get("/evaluations.csv")
    def evaluations_csv(request: Request) -> Response:
        view = LeaderboardView.of(request.query_params)
        with reading(settings) as session:
            rows = list(session.scalars(view.select().limit(MOST)))
            text = leaderboard.as_csv(rows, leaderboard.names_of(session, rows))
        return as_file(text.encode("utf-8-sig"), CSV, "evaluations.csv")

    @router.get("/experiments/{experiment_id}.csv")
    def experiment_csv(experiment_id: str) -> Response:
        with reading(settings) as session:
            row = experiment_row(session, experiment_id)
            text = experiment_export.as_csv(session, row, settings.home, known_secrets(settings))
            return as_file(text.encode("utf-8-sig"), CSV, f"{file_name(row)}.csv")

    return router


def as_file(content: bytes, kind: str, name: str) -> Response:
    """A response that browsers save as a file and do not cache."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(content, media_type=kind, headers=headers)


def experiment_row(session: Session, experiment_id: str) -> Experiment:
    """The row. Raises NotFound."""
    row = session.get(Experiment, experiment_id[:64])
    if row is None:
        raise NotFound("This experiment is gone: it was deleted, or the URL is wrong.")
    return row


def file_name(row: Experiment) -> str:
    """The experiment's name reduced to letters, digits and dashes, which are safe in a header."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in row.name.lower())
    return "-".join(filter(None, plain.split("-"))) or "experiment"

"""The leaderboard taken away: `/api/evaluations.csv` and `.png`, of the view that their query names."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.views import leaderboard
from app.widgets import intervals
from speculoos.settings import Settings
from tracking.db import reading
from tracking.leaderboard import View

MOST = 100_000
"""Rows of a file."""


def routes(settings: Settings) -> APIRouter:
    """GET /api/evaluations.csv and GET /api/evaluations.png."""
    router = APIRouter(prefix="/api")

    @router.get("/evaluations.csv")
    def as_csv(request: Request) -> Response:
        view = View.of(request.query_params)
        with reading(settings) as session:
            rows = list(session.scalars(view.select().limit(MOST)))
            text = leaderboard.as_csv(rows, leaderboard.names_of(session, rows))
        return as_file(text.encode("utf-8-sig"), "text/csv; charset=utf-8", "evaluations.csv")

    @router.get("/evaluations.png")
    def as_png(request: Request) -> Response:
        view = View.of(request.query_params)
        with reading(settings) as session:
            rows = list(session.scalars(view.select().limit(intervals.MOST)))
            bars = leaderboard.bars(rows, leaderboard.names_of(session, rows), view)
        return as_file(intervals.png(*bars), "image/png", "evaluations.png")

    return router


def as_file(content: bytes, kind: str, name: str) -> Response:
    """Saved by the browser, and asked for anew each time."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(content, media_type=kind, headers=headers)

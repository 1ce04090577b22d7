"""`GET /api/changes`: signatures of what pages show, a cheap way to poll for changes without Gradio events.

Results are cached for half a second and shared by concurrent requests.
"""

import asyncio
import time
import zlib
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.i18n import language
from app.pages import checkpoints, data, evaluations, experiments, home, jobs, models, servers, trainings
from app.views import status_bar
from app.views.trainings_view import LONGEST
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.states import JobState
from tracking.tables import Job

LISTINGS = (jobs.JOBS, models.MODELS, data.DATA, checkpoints.CHECKPOINTS, experiments.EXPERIMENTS)
LISTINGS += (evaluations.EVALUATIONS,)
SIGNATURES: dict[str, Callable[[Session, str], str]] = {
    **dict.fromkeys(("home", "guided"), home.now),
    trainings.PAGE: trainings.now,
    servers.PAGE: servers.now,
    **{what.page: what.now for what in LISTINGS},
}
"""Page → function of its signature. Pages without one show the status strip only."""
CACHE_SECONDS = 0.5
IDLE, LISTED, OPEN = 10.0, 2.0, 1.0
"""Maximum poll interval in seconds: while nothing runs, of a list, of an open row."""


def routes(settings: Settings) -> APIRouter:
    """GET /api/changes."""
    router, cache = APIRouter(prefix="/api"), ChangesCache(settings)

    @router.get("/changes")
    async def changes(page: str = "", id: str = "", strip: str = "") -> JSONResponse:
        page, row_id = (page, id[:LONGEST]) if page in SIGNATURES else ("", "")
        return JSONResponse(await cache.answer(page, row_id, strip), headers={"Cache-Control": "no-store"})

    return router


class ChangesCache:
    """Cache of recent results. Used from one event loop; the queries run in threads."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._tasks: dict[tuple[str, ...], tuple[float, asyncio.Task[Any]]] = {}

    async def answer(self, page: str, row_id: str, shown: str) -> dict[str, Any]:
        """`page`: the signature ("" while the database is not available); `strip`: its HTML and tag, unless `shown` is
        the tag; `wait`: maximum seconds until the next request."""
        html, busy = await self._cached(("strip", language()), self._strip)
        signature = await self._cached(("page", page, row_id), lambda: self._signature(page, row_id)) if page else ""
        wait = (OPEN if row_id else LISTED) if busy else IDLE
        tag = f"{zlib.crc32(html.encode()):08x}"
        return {"page": signature, "wait": wait, **({} if tag == shown else {"strip": {"tag": tag, "html": html}})}

    async def _cached(self, key: tuple[str, ...], query: Callable[[], Any]) -> Any:
        now, tasks = time.monotonic(), self._tasks.items()
        self._tasks = {k: (at, task) for k, (at, task) in tasks if now - at < CACHE_SECONDS or not task.done()}
        if key not in self._tasks:
            self._tasks[key] = now, asyncio.create_task(asyncio.to_thread(query))
        return await asyncio.shield(self._tasks[key][1])

    def _strip(self) -> tuple[str, bool]:
        """HTML of the strip, and whether a job runs."""
        running = select(Job.id).where(Job.state == JobState.RUNNING).limit(1)
        busy = self._rows(lambda session: session.scalar(running) is not None, False)
        return status_bar.render(self.settings), busy

    def _signature(self, page: str, row_id: str) -> str:
        return self._rows(lambda session: SIGNATURES[page](session, row_id), "")

    def _rows(self, query: Callable[[Session], Any], default: Any) -> Any:
        """The result of `query`, or `default` while the database is not available."""
        try:
            with reading(self.settings) as session:
                return query(session)
        except SpeculoosError:
            return default

"""`GET /api/changes`: has what a page shows changed? One cheap answer for every page, instead of an event of Gradio's.

What many pages ask at once is looked up once: answers are kept for half a second, and those under way are shared.
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

from app.pages import checkpoints, data, evaluations, experiments, jobs, models, plans, trainings
from app.views import status_bar
from app.views.trainings_view import LONGEST
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import listing
from tracking.db import reading
from tracking.states import JobState
from tracking.tables import Job

LISTINGS = (
    *(jobs.JOBS, models.MODELS, data.DATA, checkpoints.CHECKPOINTS, plans.PLANS),
    experiments.EXPERIMENTS,
)
SIGNATURES: dict[str, Callable[[Session, str], str]] = {
    "home": lambda session, _id: listing.signature(session),
    "evaluations": evaluations.now,
    trainings.PAGE: trainings.now,
    **{what.page: what.now for what in LISTINGS},
}
"""How each page that lives from rows says what it shows; the others have the strip alone."""
KEPT_SECONDS = 0.5
ENDED = 20
"""Ended jobs named at once."""
IDLE, LISTED, OPEN = 10.0, 2.0, 1.0
"""The longest pause between two questions in seconds: while nothing runs, of a list, of an open row."""


def routes(settings: Settings) -> APIRouter:
    """GET /api/changes."""
    router, board = APIRouter(prefix="/api"), Board(settings)

    @router.get("/changes")
    async def changes(page: str = "", id: str = "", strip: str = "", ended: str = "") -> JSONResponse:
        page, row_id = (page, id[:LONGEST]) if page in SIGNATURES else ("", "")
        answer = await board.answer(page, row_id, strip)
        more = {"ended": await board.ended()} if ended else {}
        return JSONResponse({**answer, **more}, headers={"Cache-Control": "no-store"})

    return router


class Board:
    """What was looked up lately. Used from one event loop; the looks themselves run in threads."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._answers: dict[tuple[str, ...], tuple[float, Any]] = {}
        self._looking: dict[tuple[str, ...], asyncio.Task[Any]] = {}

    async def answer(self, page: str, row_id: str, shown: str) -> dict[str, Any]:
        """`page`: the signature ("" while the database does not answer); `strip`: its HTML and tag, unless `shown` is
        the tag; `wait`: the longest pause in seconds until the next question."""
        html, busy = await self._look(("strip",), self._strip)
        signature = await self._look(("page", page, row_id), lambda: self._signature(page, row_id)) if page else ""
        wait = (OPEN if row_id else LISTED) if busy else IDLE
        tag = f"{zlib.crc32(html.encode()):08x}"
        return {"page": signature, "wait": wait, **({} if tag == shown else {"strip": {"tag": tag, "html": html}})}

    async def ended(self) -> list[dict[str, Any]]:
        """The long jobs that ended by themselves last, newest first; for browsers that show notifications."""
        return await self._look(("ended",), self._ended)

    async def _look(self, key: tuple[str, ...], look: Callable[[], Any]) -> Any:
        at, answer = self._answers.get(key, (0.0, None))
        if at and time.monotonic() - at < KEPT_SECONDS:
            return answer
        if key not in self._looking:
            self._looking[key] = task = asyncio.create_task(asyncio.to_thread(look))
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(self._looking[key])

    def _keep(self, key: tuple[str, ...], done: "asyncio.Task[Any]") -> None:
        del self._looking[key]
        now = time.monotonic()
        self._answers = {k: entry for k, entry in self._answers.items() if now - entry[0] < KEPT_SECONDS}
        if not done.cancelled() and done.exception() is None:
            self._answers[key] = now, done.result()

    def _strip(self) -> tuple[str, bool]:
        """The strip, and whether something runs."""
        running = select(Job.id).where(Job.state == JobState.RUNNING).limit(1)
        busy = self._rows(lambda session: session.scalar(running) is not None, False)
        return status_bar.render(self.settings), busy

    def _ended(self) -> list[dict[str, Any]]:
        jobs = self._rows(lambda session: listing.ended(session, ENDED), [])
        return [{"id": job.id, "name": job.name, "state": job.state} for job in jobs]

    def _signature(self, page: str, row_id: str) -> str:
        return self._rows(lambda session: SIGNATURES[page](session, row_id), "")

    def _rows(self, look: Callable[[Session], Any], away: Any) -> Any:
        """What `look` finds, or `away` while the database does not answer."""
        try:
            with reading(self.settings) as session:
                return look(session)
        except SpeculoosError:
            return away
